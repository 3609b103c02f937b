"""Fixtures of process tests: a fleet on the test's database, and the talk with its handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from jobs.conf import conf
from tests.conftest import url_of_test_database
from tests.process.probes.notes import Probe
from tests.support.forks import Parent
from tests.support.process import PROFILE, Fleet, fleet_environment


@pytest.fixture(scope="session")
def forks(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    """One parent for all fleets of the run: a start costs each test a fork, and no imports."""
    log = tmp_path_factory.mktemp("forks") / "parent.log"
    with closing(Parent(env=fleet_environment(url_of_test_database()), log=log)) as parent:
        yield parent


@pytest.fixture
def fleet(
    committed: None, database_url: str, settings: Settings, tmp_path: Path, forks: Parent
) -> Iterator[Fleet]:
    """No process yet. All of them are gone before the tables are emptied."""
    settings.JOBS = PROFILE
    conf.cache_clear()
    with Fleet(database_url=database_url, folder=tmp_path, forks=forks) as fleet:
        yield fleet


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """What the handlers of the fleet's workers noted, and the gates they wait at."""
    return Probe(tmp_path)
