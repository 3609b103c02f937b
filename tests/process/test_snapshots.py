"""Transactions that stay open: an abandoned claim gives its rows back, and an old snapshot hides no work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from jobs.database import rows
from jobs.models import Job
from tests.process.stories import (
    assert_at_rest,
    database_now,
    events,
    finished,
    seconds_between,
    story,
    submit,
    submit_many,
)
from tests.support.process import PROFILE
from tests.support.proxy import Proxy
from workers.quickstart.figures import look

pytestmark = pytest.mark.process

TICK = PROFILE["tick_seconds"]
IDLE_SECONDS = 3.0  # how long the server waits for a client that is silent inside a transaction
ACT_SECONDS = 1.0
PUBLISH_TEXT = (
    b"with lanes as materialized"  # the claim's second statement: its rows are locked by then
)
IDLE_SESSIONS = """
select pid, state_change from pg_stat_activity
where datname = current_database() and state = 'idle in transaction' and query ~ 'jobs_dueentry'"""
LOCKED = """
with free as (select job_id from jobs_dueentry for update skip locked)
select (select count(*) from jobs_dueentry) - count(*) from free"""
DEAD_ROWS = """
select n_dead_tup from pg_stat_user_tables where relname = 'jobs_dueentry'"""
RAN = ["created", "leased", "started", "succeeded"]


def idle_claims() -> list[tuple[int, object]]:
    """Sessions that hold the locks of a claim and say nothing, and since when."""
    return rows(IDLE_SESSIONS, {})


@pytest.fixture
def proxy(database_url) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["process frozen", "link held"])
def test_f24_rows_of_a_claim_whose_client_vanished_are_late_for_seconds_only(fleet, proxy, fault):
    """It fell silent between the lock and the write; the server ends its transaction, another scheduler claims."""
    lost = fleet.scheduler(DATABASE_URL=proxy.url)
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()
    proxy.hold_link_at(PUBLISH_TEXT)
    jobs: list[UUID] = []

    def trapped():  # at last by a job in its half of the shards
        jobs.append(submit(tenant=f"shop-{len(jobs)}"))
        return proxy.trapped.wait(0.1)

    fleet.until(trapped, "the claim is stopped half-way")
    ((session, silent_since),) = fleet.until(idle_claims, "its transaction is open")
    if fault == "process frozen":
        lost.freeze()
    else:
        proxy.hold()
    assert rows(LOCKED, {})[0][0] >= 1, "nothing is locked"
    shown = look([])
    assert shown.due >= 1, "a locked job is not shown as due"
    assert shown.oldest is not None
    assert shown.oldest[0] > 0.0
    fleet.until(lambda: session not in [pid for pid, _ in idle_claims()], "its session is ended")
    assert seconds_between(silent_since, database_now()) <= IDLE_SECONDS + TICK + ACT_SECONDS
    fleet.until(lambda: finished(*jobs), "all are claimed, by whoever it was")

    for job in jobs:
        (leased,) = events(job, "leased")
        assert seconds_between(silent_since, leased.at) <= IDLE_SECONDS + TICK + ACT_SECONDS
        assert story(job) == RAN
    lost.thaw()
    proxy.release()
    proxy.cut()  # at the latest now it learns of the end
    fleet.ready()
    after = [submit(tenant=f"shop-{n}") for n in range(8)]
    fleet.until(lambda: finished(*after), "both schedulers go on")
    assert not any(process.ended for process in fleet.processes)
    assert_at_rest()


@contextmanager
def snapshot(database_url: str) -> Iterator[psycopg.Connection]:
    """A transaction that somebody has forgotten: nothing that dies after its start can be cleaned up."""
    with psycopg.connect(database_url) as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("select count(*) from jobs_dueentry").fetchone()
        yield report
        report.rollback()


ROUNDS, JOBS_A_ROUND = 12, 40


def test_kf59_all_jobs_flow_past_an_old_snapshot_and_its_owner_is_named(
    fleet, probe, database_url
):
    scheduler = fleet.scheduler(old_transaction_seconds=0.2)
    fleet.worker("--slots", "4"), fleet.worker("--slots", "4")
    fleet.ready()
    jobs = []
    with snapshot(database_url) as report:
        for number in range(ROUNDS):
            jobs += submit_many(JOBS_A_ROUND, tenant=f"shop-{number % 3}")
            jobs += submit_many(2, tenant=f"shop-{number % 3}", delay_seconds=0.2 * number)
            half = jobs[: -JOBS_A_ROUND // 2]
            fleet.until(lambda half=half: finished(*half), "jobs flow")
        fleet.until(lambda: finished(*jobs), "all are finished")
        owner = report.info.backend_pid
        fleet.until(
            lambda: (
                {"transaction.old": owner}
                in [{line.get("event"): line.get("pid")} for line in scheduler.logged()]
            ),
            "the log names its session",
        )
        assert report.execute("select count(*) from jobs_job").fetchone() == (0,), (
            "no old snapshot"
        )
        with connection.cursor() as cursor:
            cursor.execute("vacuum jobs_dueentry")
            cursor.execute("select pg_stat_clear_snapshot()")
        ((dead,),) = rows(DEAD_ROWS, {})
        assert dead >= len(jobs), "the snapshot has kept nothing from being cleaned up"

    assert Job.objects.filter(status="succeeded").count() == len(jobs)
    assert len(probe.notes(what="began")) == len(jobs)
    for job in jobs:
        assert story(job) == RAN
    assert_at_rest()
