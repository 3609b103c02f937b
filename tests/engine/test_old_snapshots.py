"""KF-59: what an old snapshot keeps in the indexes is not read again at every look, and what waits is found all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction
from pytest_django.fixtures import Settings

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import DueEntry
from jobs.queries.candidates import seconds_to_next_due
from jobs.services import backlog as backlogs
from jobs.services.backlog import Backlog
from jobs.states import Place
from jobs.transitions.finish import complete_jobs
from tests.factories import WORKER, all_shards
from tests.support.crowd import make_crowd
from tests.support.plans import statements_sent_by
from tests.support.sql import Statement

pytestmark = pytest.mark.usefixtures("committed")

DRAINED, WAITING = (
    3000,
    20,
)  # by ten shards of the deep kind; 300 s at 100 jobs a second are ten times as many
HOUR = 3600.0
MOST_TIMES = 5.0


@pytest.fixture
def sweeps_are_dear(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Whatever a sweep costs: the next one is a tick away, and a tick is long."""
    settings.JOBS = {**settings.JOBS, "tick_seconds": 300.0}
    conf.cache_clear()
    monkeypatch.setattr(backlogs, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(backlogs, "LOOK_SHARE", 1e-9)
    monkeypatch.setattr(backlogs, "CHEAP_SECONDS", 1e9)  # every turn looks


@contextmanager
def old_snapshot(database_url: str) -> Iterator[None]:
    with psycopg.connect(database_url) as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("select count(*) from jobs_job").fetchone()
        yield
        report.rollback()


class Clock:
    """In place of the monotonic one: each reading is a millisecond later."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds


def drain(count: int) -> None:
    """Jobs that were due an hour ago come and go."""
    crowd = make_crowd(count, place=Place.RUNNING, delay_seconds=-HOUR)
    results: dict[UUID, object] = {member.lease_id: None for member in crowd}
    ended = complete_jobs(shards=all_shards(), worker_id=WORKER, results=results)
    assert len(ended) == count


def look(backlog: Backlog) -> None:
    at = database_now().timestamp()
    backlog.look(shards=all_shards(), head_starts={}, at=at, now=None)


def scan(backlog: Backlog) -> None:
    """What each turn reads of the calendar, whether it finds something or not."""
    look(backlog)
    seconds_to_next_due(shards=all_shards(), floors=backlog.floors)


def buffers(work: Callable[[], object]) -> int:
    """Pages that its statements touch, in memory or not."""
    sent = [one for one in statements_sent_by(work) if "jobs_dueentry" in one.sql]
    assert sent
    return sum(_buffers(one) for one in sent)


def _buffers(statement: Statement) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "explain (analyze, buffers, format json) " + statement.sql, statement.params
        )
        ((told,),) = cursor.fetchall()
    plan: dict[str, Any] = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute("vacuum (analyze) jobs_dueentry")


def found_by(backlog: Backlog) -> set[UUID]:
    return {row.job_id for group in backlog.groups.values() for _, row in group.items}


@pytest.mark.parametrize("deep", [False, True], ids=["shards as a whole", "shards by groups"])
def test_kf59_a_look_past_an_old_snapshot_reads_little_more_than_without_one_and_misses_nothing(
    database_url, monkeypatch, sweeps_are_dear, deep
):
    if deep:
        monkeypatch.setattr(backlogs, "SHALLOW_ROWS", 1)
    make_crowd(WAITING)
    vacuum()
    usual = buffers(lambda: scan(Backlog()))
    with old_snapshot(database_url):
        DueEntry.objects.all().delete()
        drain(DRAINED)
        waiting = {member.job_id for member in make_crowd(WAITING)}
        backlog = Backlog()
        # All that was drained is still in front of what waits, or this would prove nothing.
        from_the_beginning = buffers(lambda: scan(Backlog()))
        assert from_the_beginning > usual + DRAINED // 20
        for _ in range(backlogs.DEAR_SWEEPS):
            look(backlog)
        assert buffers(lambda: scan(backlog)) <= MOST_TIMES * usual
        assert buffers(lambda: scan(backlog)) - usual < (from_the_beginning - usual) / 2
        look(backlog)
        heads = {group.items[0][1].job_id for group in backlog.groups.values()}
        assert heads <= found_by(backlog) <= waiting
        if not deep:
            assert found_by(backlog) == waiting
    vacuum()
    assert buffers(lambda: scan(Backlog())) <= MOST_TIMES * usual


def test_kf19_kf59_r14_what_comes_below_the_floor_is_found_by_the_next_sweep(
    monkeypatch, sweeps_are_dear
):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    backlog = Backlog()
    for _ in range(backlogs.DEAR_SWEEPS + 1):
        look(backlog)
    (late,) = make_crowd(1, delay_seconds=-HOUR)
    (prompt,) = make_crowd(1)
    look(backlog)
    assert found_by(backlog) == {prompt.job_id}, "it looks from the beginning each time"
    clock.seconds += conf().tick_seconds + 1.0
    for _ in ("a sweep", "from the floors that it has set"):
        look(backlog)
        assert found_by(backlog) == {late.job_id, prompt.job_id}


def test_kf59_a_commit_that_is_late_by_less_than_a_second_needs_no_sweep(sweeps_are_dear):
    backlog = Backlog()
    for _ in range(backlogs.DEAR_SWEEPS + 1):
        look(backlog)
    before = database_now() - timedelta(seconds=backlogs.LATE_SECONDS / 2)
    (late,) = make_crowd(1, due_at=before)
    look(backlog)
    assert found_by(backlog) == {late.job_id}


def test_kf59_another_share_of_the_shards_is_read_from_its_beginning(sweeps_are_dear):
    backlog = Backlog()
    (old,) = make_crowd(1, delay_seconds=-HOUR)
    shards = [shard for shard in all_shards() if shard != old.shard]
    for _ in range(backlogs.DEAR_SWEEPS + 1):
        backlog.look(shards=shards, head_starts={}, at=database_now().timestamp(), now=None)
    assert found_by(backlog) == set()
    look(backlog)
    assert found_by(backlog) == {old.job_id}
