"""Connections that break and a database that goes away: the same processes go on, and say so in a few lines."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from jobs.database import rows
from jobs.models import Job
from tests.process.stories import (
    assert_at_rest,
    database_now,
    events,
    finished,
    happened,
    seconds_between,
    story,
    submit,
)
from tests.support.process import PATIENCE_SECONDS, PROFILE, Fleet
from tests.support.proxy import Proxy
from tests.support.submitter import acknowledged_jobs

pytestmark = pytest.mark.process

TERMINATE = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query ~ %(query)s"""
TERMINATE_ONE = "select pg_terminate_backend(%(pid)s)"
# A session that runs a statement, or one that is in the middle of its commit: to any other a cancel means nothing.
CANCEL_ONE = """
select pg_cancel_backend(pid) from (
    select pid from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state = 'active'
        and backend_type = 'client backend' and (wait_event is not distinct from 'PgSleep') = %(in_commit)s
    order by random() limit 1) at_work"""
# A commit by itself is over in one step that no cancel can meet; with a deferred trigger it takes a moment.
SLOW_COMMITS = """
create function tests_linger() returns trigger language plpgsql as $$
begin perform pg_sleep(0.005); return null; end $$;
create constraint trigger tests_linger after insert or update on jobs_job deferrable initially deferred
for each row execute function tests_linger()"""
FAST_COMMITS = "drop trigger tests_linger on jobs_job; drop function tests_linger()"
CANCEL_SECONDS = 0.02  # by then the answer to a statement that was hit has come
COUNT = """select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query ~ %(query)s"""
SESSIONS = """
select pid from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() order by pid"""
EVERY, LISTENERS = "", '^(listen "|show transaction_read_only$)'
CONNECTIONS = 5  # loop and listener of the scheduler; loop, heartbeat and listener of the worker
FIRST_LINES = 5
POLL_SECONDS = 2 * PROFILE["tick_seconds"] + 1.0  # the scheduler's and the worker's, and to act
SEED, CUTS = 55, 3
# The figure promised for each is 300 (DB_CUTS=300 DB_CANCELS=300); an ordinary run does fewer.
RANDOM_CUTS = int(os.environ.get("DB_CUTS") or 25)
RANDOM_CANCELS = int(os.environ.get("DB_CANCELS") or 60)


def terminate(query: str = EVERY) -> int:
    """Cut all other sessions of this database whose last statement matches; how many they were."""
    return int(rows(TERMINATE, {"query": query})[0][0])


def sessions() -> list[int]:
    """Process ids of all other sessions of this database."""
    return [pid for (pid,) in rows(SESSIONS, {})]


@contextmanager
def few_lines(fleet: Fleet, a_second: float = 1.0) -> Iterator[None]:
    """Fail if a process logs more lines a second meanwhile, but for the first few."""
    began, before = time.monotonic(), [len(process.logged()) for process in fleet.processes]
    yield
    seconds = time.monotonic() - began
    for process, known in zip(fleet.processes, before, strict=True):
        added = len(process.logged()) - known
        assert added <= a_second * seconds + FIRST_LINES, fleet.tell(
            f"{added} lines, {seconds:.1f} s"
        )


@contextmanager
def outage() -> Iterator[None]:
    """The database takes no connection but the test's own, and has cut all others."""
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    with connection._nodb_cursor() as server:
        server.execute(f"alter database {name} with allow_connections false")
        try:
            terminate()
            yield
        finally:
            server.execute(f"alter database {name} with allow_connections true")


@contextmanager
def slow_commits() -> Iterator[None]:
    """Every commit of a change to a job lingers, so that a cancel can strike it."""
    with connection.cursor() as cursor:
        cursor.execute(SLOW_COMMITS)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(FAST_COMMITS)


@pytest.fixture
def proxy(database_url) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@contextmanager
def demotion() -> Iterator[None]:
    """Every session of the server but the test's own becomes read-only, and none is cut."""
    with connection.cursor() as server:
        server.execute("set default_transaction_read_only = off")
        server.execute("alter system set default_transaction_read_only = on")
        server.execute("select pg_reload_conf()")
        try:
            yield
        finally:
            server.execute("alter system reset default_transaction_read_only")
            server.execute("select pg_reload_conf()")


def test_kf55_processes_whose_connections_are_cut_again_and_again_go_on(fleet, probe):
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()

    def connected_again() -> bool:
        return len(sessions()) >= CONNECTIONS

    with few_lines(fleet, a_second=5.0):  # a line for each that breaks
        for _ in range(CUTS):  # idle
            assert terminate() >= CONNECTIONS
            fleet.until(connected_again, "they have connected again")
        idle = submit()
        fleet.until(lambda: finished(idle), "a job after the idle cuts")
        job = submit(gate="end")
        fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
        for _ in range(CUTS):  # in the middle of a job
            terminate()
            fleet.until(connected_again, "they have connected again")
        probe.open("end")
        terminate()  # and at the moment of its report
        fleet.until(lambda: finished(job), "the job in the middle of the cuts")

    assert story(idle) == ["created", "leased", "started", "succeeded"]
    assert Job.objects.get(pk=job).status == "succeeded"
    assert len(probe.notes(job, "began")) <= 2
    assert not any(process.ended for process in fleet.processes)
    assert_at_rest()


def test_kf55_a_database_that_is_away_for_longer_than_a_lease_costs_a_job_one_more_try_at_most(
    fleet, probe
):
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()
    job = submit("probe.heed", gate="end")
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    with few_lines(fleet):
        with outage():
            # The worker cannot know whether it still owns the job, so it stops its handler.
            fleet.until(lambda: probe.notes(job, "stop seen"), "the handler is stopped")
            lapsed_at = time.monotonic() + PROFILE["lease_ttl_seconds"] / 2
            fleet.until(lambda: time.monotonic() > lapsed_at, "the lease has lapsed for certain")
        back_at = database_now()
        probe.open("end")
        after = submit()
        fleet.until(lambda: finished(job, after), "both jobs are finished")

    for each in (job, after):
        (succeeded,) = events(each, "succeeded")
        assert seconds_between(back_at, succeeded.at) <= 10.0
    assert len(probe.notes(job, "began")) == 2
    assert len(probe.notes(after, "began")) == 1
    assert not any(process.ended for process in fleet.processes)
    assert_at_rest()


def test_f38_work_goes_on_soon_after_a_server_that_refused_writes_takes_them_again(
    fleet, database_url
):
    if "?host=" not in database_url:
        pytest.skip("changes the whole server, so only on one of its own")
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()
    with few_lines(fleet):
        with demotion():
            job = submit()
            fleet.until(
                lambda: all("read-only" in each.log.read_text() for each in fleet.processes),
                "both are refused",
            )
            long_enough = time.monotonic() + 3.0
            fleet.until(lambda: time.monotonic() > long_enough, "their pauses have grown")
        back_at = database_now()
        fleet.until(lambda: finished(job), "the job is finished")

    (succeeded,) = events(job, "succeeded")
    assert seconds_between(back_at, succeeded.at) <= 3.0
    assert not any(process.ended for process in fleet.processes)
    assert_at_rest()


@pytest.mark.timeout(120 + 2 * RANDOM_CUTS)
def test_f39_connections_cut_at_random_under_load_lose_nothing_and_double_nothing(fleet, probe):
    rng = random.Random(SEED)
    fleet.scheduler(), fleet.worker("--slots", "4"), fleet.worker("--slots", "4")
    fleet.ready()
    jobs, cut = [], 0
    with few_lines(fleet, a_second=5.0):
        for _ in range(RANDOM_CUTS):
            seen = len(probe.notes())
            jobs += [submit(seconds=0.05, tenant=f"shop-{n}", max_attempts=20) for n in range(4)]
            fleet.until(lambda seen=seen: len(probe.notes()) > seen, "work goes on")
            time.sleep(rng.uniform(0, 0.1))  # where in it the cut strikes
            ((was_there,),) = rows(TERMINATE_ONE, {"pid": rng.choice(sessions())})
            cut += was_there
        fleet.until(lambda: finished(*jobs), f"all jobs are finished (seed {SEED})")

    assert cut >= RANDOM_CUTS - 5  # one that has just ended by itself is not cut
    assert Job.objects.filter(pk__in=jobs, status="succeeded").count() == len(jobs)
    assert not any(process.ended for process in fleet.processes)
    assert_at_rest()


def cancel_one(proxy: Proxy, *, in_commit: bool) -> bool:
    """Whether a statement, or a commit, was really met: its client was told that it was canceled."""
    before, patience = proxy.canceled, time.monotonic() + CANCEL_SECONDS
    if rows(CANCEL_ONE, {"in_commit": in_commit}) != [(True,)]:
        return False
    while proxy.canceled == before and time.monotonic() < patience:
        time.sleep(0.001)
    return proxy.canceled > before


@pytest.mark.timeout(120 + 4 * RANDOM_CANCELS)
def test_f40_statements_and_commits_cancelled_at_random_are_never_taken_for_durable(
    fleet, proxy, tmp_path
):
    """Those of the engine, and those of a client that notes what it believes to be accepted."""
    rng = random.Random(SEED)
    noted = tmp_path / "acknowledged"
    through = {"DATABASE_URL": proxy.url}
    loops = [
        fleet.scheduler(**through),
        fleet.worker("--slots", "4", **through),
        fleet.worker("--slots", "4", **through),
    ]
    fleet.ready()
    client = fleet.start(
        "client", sys.executable, "-m", "tests.support.submitter", noted, **through
    )
    fleet.until(lambda: acknowledged_jobs(noted), "the client is answered")
    hits = Counter[bool]()
    with few_lines(fleet, a_second=20.0), slow_commits():
        while hits.total() < RANDOM_CANCELS:
            in_commit = hits[True] <= hits[False]
            fleet.until(
                lambda in_commit=in_commit: cancel_one(proxy, in_commit=in_commit),
                f"a cancel strikes (seed {SEED}, so far {dict(hits)})",
            )
            hits[in_commit] += 1
            time.sleep(rng.uniform(0, 0.05))  # where in the work the next one strikes
    before = len(acknowledged_jobs(noted))
    fleet.until(lambda: len(acknowledged_jobs(noted)) > before, "the client is still answered")
    client.kill()
    jobs = acknowledged_jobs(noted)
    fleet.until(lambda: finished(*jobs), f"all jobs are finished (seed {SEED})")
    fleet.until(lambda: not Job.objects.filter(finished_at=None).exists(), "and the last one")

    assert proxy.canceled >= RANDOM_CANCELS
    assert min(hits.values()) >= RANDOM_CANCELS // 2, "statements and commits, half and half"
    assert Job.objects.filter(pk__in=jobs, status="succeeded").count() == len(set(jobs))
    assert Job.objects.count() - len(set(jobs)) <= 1  # committed when the client was killed
    assert not any(process.ended for process in loops)
    assert_at_rest()


def test_f39_a_take_whose_answer_is_lost_costs_the_job_no_attempt(fleet, probe):
    """Committed, and the worker never hears of it: the lease is its own, and nothing has begun."""
    fleet.scheduler(lease_ttl_seconds=20.0)  # so long it believes in a silent worker
    first = fleet.worker()
    fleet.ready()
    first.kill()  # work is still published for it
    job = submit(max_attempts=1)
    fleet.until(lambda: happened(job, "leased"), "the job is published")
    fleet.worker(failpoints="take.take_batch:committed=raise")
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == [
        *("created", "leased", "started", "released"),
        *("leased", "started", "succeeded"),
    ]
    (released,) = events(job, "released")
    assert released.detail["reason"] == "take_unanswered"
    assert [note.attempt for note in probe.notes(job, "began")] == [2]
    assert_at_rest()


def test_kf54_jobs_start_within_a_poll_where_no_hint_ever_arrives(fleet):
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    fleet.scheduler(listen_url=nowhere), fleet.worker(listen_url=nowhere)
    fleet.ready()
    with few_lines(fleet):
        for _ in range(5):
            assert lag_of_one_job(fleet) <= POLL_SECONDS
    assert_at_rest()


def test_kf54_hints_are_heard_again_soon_after_every_listener_was_cut(fleet):
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()
    fleet.until(lambda: rows(COUNT, {"query": LISTENERS}) == [(2,)], "both processes listen")
    with few_lines(fleet):
        assert terminate(LISTENERS) == 2
        assert lag_of_one_job(fleet) <= POLL_SECONDS
        cut_at = time.monotonic()
        # Four in a row that are faster than polls would be: no luck.
        while max(lag_of_one_job(fleet) for _ in range(4)) > PROFILE["tick_seconds"] / 2:
            assert time.monotonic() - cut_at < PATIENCE_SECONDS, fleet.tell(
                "no hint is heard again"
            )
    assert_at_rest()


def lag_of_one_job(fleet: Fleet) -> float:
    """Seconds from due to started."""
    job = submit()
    fleet.until(lambda: finished(job), "the job is finished")
    (started,) = events(job, "started")
    return seconds_between(Job.objects.get(pk=job).due_at, started.at)
