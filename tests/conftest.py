"""Fixtures for every test: the database of this run, and its URL for processes that a test starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from urllib.parse import quote, urlsplit

import pytest
from django.apps import AppConfig, apps
from django.db import connection, connections
from django.db.models.signals import post_migrate
from django.dispatch import receiver

from jobs.conf import conf
from jobs.models import JobEvent, Shard
from jobs.queries.catalog import forget


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_keepdb: bool
) -> None:
    """Name the test database after this process, so that two runs on one given server do not meet."""
    if not django_db_keepdb:
        settings = connections["default"].settings_dict
        settings["TEST"]["NAME"] = f"test_{settings['NAME']}_{os.getpid()}"


@receiver(post_migrate)
def refill_lanes_and_shards(app_config: AppConfig, **kwargs: object) -> None:
    """Lanes and shards come with a migration; the flush after a test with real commits takes them away."""
    if app_config.label == "jobs" and not Shard.objects.exists():
        import_module("jobs.migrations.0004_default_lanes_and_shards").fill(apps, None)


@pytest.fixture(autouse=True)
def fresh_readings() -> Iterator[None]:
    """Each test reads the catalog and the settings anew: they are kept per process, its rows are not."""
    forget()
    conf.cache_clear()
    yield
    forget()
    conf.cache_clear()


@pytest.fixture
def committed(transactional_db: None) -> Iterator[None]:
    """Real commits, for tests with a second connection or a statement that fails; their history goes too."""
    yield
    JobEvent.objects.all().delete()  # an unmanaged table: the flush does not empty it


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """URL of the current test database, for real processes. Rows are committed, and flushed after the test."""
    return url_of_test_database()


def url_of_test_database() -> str:
    given = urlsplit(os.environ["DATABASE_URL"])
    return given._replace(path=f"/{quote(str(connection.settings_dict['NAME']))}").geturl()
