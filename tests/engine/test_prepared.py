"""Which statements are prepared: the hot ones, by their second use, and none behind a pooler."""

from __future__ import annotations

import pytest
from django.db import connection

from jobs.conf import conf
from jobs.database import PREPARE_AFTER, forget_plans, rows

pytestmark = pytest.mark.django_db

PREPARED = "select statement, generic_plans from pg_prepared_statements"
HOT, PLAIN = "select number from jobs_shard where number = any(%(shards)s)", "select %(one)s::int"


@pytest.fixture(autouse=True)
def nothing_prepared() -> None:
    with connection.cursor() as cursor:
        cursor.execute("deallocate all")
        connection.connection._prepared.clear()  # what the driver believes


def prepared() -> list[str]:
    return [statement for statement, _ in rows(PREPARED, {}) if "pg_prepared" not in statement]


def test_a_hot_statement_is_prepared_once_it_has_been_used_twice():
    for _ in range(PREPARE_AFTER):
        rows(HOT, {"shards": [1, 2]}, hot=True)
        assert prepared() == []
    for _ in range(3):
        assert rows(HOT, {"shards": [1, 2]}, hot=True) == [(1,), (2,)]
    assert len(prepared()) == 1


def test_another_statement_is_planned_for_its_values_however_often_it_is_used():
    for _ in range(10):
        rows(PLAIN, {"one": 1})
    assert prepared() == []


def test_nothing_is_prepared_behind_a_pooler(settings):
    settings.JOBS = {**settings.JOBS, "listen_url": "postgresql://db/past-the-pooler"}
    conf.cache_clear()
    for _ in range(10):
        rows(HOT, {"shards": [1, 2]}, hot=True)
    assert prepared() == []


def test_forgetting_its_plan_leaves_a_statement_prepared():
    for _ in range(10):
        rows(HOT, {"shards": [1, 2]}, hot=True)
    forget_plans()
    assert rows(HOT, {"shards": [3]}, hot=True) == [(3,)]
    assert len(prepared()) == 1
