"""Fixtures for every test: the database of this run, and its URL for processes that a test starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.apps import AppConfig, apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings
from whitenoise.middleware import WhiteNoiseMiddleware

from jobs.conf import conf
from jobs.models import JobEvent, Shard
from jobs.queries.catalog import forget

LARGEST = "select max(pg_relation_size(name::regclass)) from unnest(%(names)s::text[]) as name"
FEW_BYTES = (
    2**18
)  # up to this size deleting is cheaper than new files; dead rows do not pile up beyond it

# A property holds or not; how long an example takes says something about the machine only.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, then those with processes, in random order among themselves.

    With `-n 2` one half of the list goes to each process and whoever is done takes from the end of the other's. So the
    tests with processes, which wait for most of their time, run beside tests that compute, and no long one comes last.
    """
    items.sort(
        key=lambda item: (
            item.get_closest_marker("long") is None,
            item.get_closest_marker("process") is None,
        )
    )


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_keepdb: bool
) -> None:
    """Name the test database after this process, so that two runs on one given server do not meet."""
    if not django_db_keepdb:
        given = connections["default"].settings_dict
        given["TEST"]["NAME"] = f"test_{given['NAME']}_{os.getpid()}"


@receiver(post_migrate)
def refill_lanes_and_shards(app_config: AppConfig, **kwargs: object) -> None:
    """Lanes and shards come with a migration; what follows a test with real commits takes them away."""
    if app_config.label == "jobs" and not Shard.objects.exists():
        import_module("jobs.migrations.0004_default_lanes_and_shards").fill(apps, None)


def empty_tables(case: TransactionTestCase) -> None:
    """Take away what a test with real commits has left, and put lanes and shards back.

    Django's own flush truncates all tables and then sends every app's signal: a third of a second for a handful of rows.
    Types and permissions, which only that signal would bring back, stay. The lock waits for writers whose process is
    gone already: what they still commit must not meet the next test.
    """
    tables = sorted(
        connection.ops.quote_name(model._meta.db_table)
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and model not in (ContentType, Permission)
    )
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute(f"lock table {', '.join(tables)} in exclusive mode")
        cursor.execute(LARGEST, {"names": tables})
        ((largest,),) = cursor.fetchall()
        if largest > FEW_BYTES:
            cursor.execute(f"truncate {', '.join(tables)}")
        else:
            cursor.execute("; ".join(f"delete from {table}" for table in tables))
    refill_lanes_and_shards(apps.get_app_config("jobs"))


def add_known_files(middleware: WhiteNoiseMiddleware) -> None:
    """What WhiteNoise itself does for each test client anew: half of a short test's time went into that."""
    if not static_files:
        find_static_files(middleware)
        static_files.update(middleware.files)
    middleware.files.update(static_files)


static_files: dict[str, Any] = {}
find_static_files = WhiteNoiseMiddleware.add_files_from_finders
WhiteNoiseMiddleware.add_files_from_finders = add_known_files
TransactionTestCase._fixture_teardown = empty_tables  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_connection_of_others(request: pytest.FixtureRequest) -> None:
    """A test without the database meets no open connection of an earlier one: merely looking at it would be refused."""
    marked = request.node.get_closest_marker("django_db") is not None
    asks = {"db", "transactional_db"} & set(request.fixturenames)
    if not marked and not asks and not connection.in_atomic_block:
        connection.close()


@pytest.fixture(scope="session", autouse=True)
def whole_turns() -> None:
    """A turn of dispatch that a busy machine slows down is not cut short: tests say what one turn does."""
    from jobs.services import dispatch  # only here, so that settings decide first

    dispatch.TURN_SECONDS = 600.0


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
