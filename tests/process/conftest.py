"""Fixtures of process tests: a fleet on the test's database, and the talk with its handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from jobs.conf import conf
from tests.process.probes.notes import Probe
from tests.support.process import PROFILE, Fleet


@pytest.fixture
def fleet(
    committed: None, database_url: str, settings: Settings, tmp_path: Path
) -> Iterator[Fleet]:
    """No process yet. All of them are gone before the tables are emptied."""
    settings.JOBS = PROFILE
    conf.cache_clear()
    with Fleet(database_url=database_url, folder=tmp_path) as fleet:
        yield fleet


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """What the handlers of the fleet's workers noted, and the gates they wait at."""
    return Probe(tmp_path)
