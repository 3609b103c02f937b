"""Fixtures of worker tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django.fixtures import Settings

from jobs.conf import conf
from tests.workers.stage import PROFILE, Stage


@pytest.fixture
def profile(settings: Settings) -> None:
    """Short leases and ticks."""
    settings.JOBS = PROFILE
    conf.cache_clear()


@pytest.fixture
def stage(committed: None, profile: None) -> Iterator[Stage]:
    """Workers in this process, gone before the tables are emptied."""
    with Stage() as stage:
        yield stage
