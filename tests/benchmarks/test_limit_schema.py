"""The raw-SQL limit keeps up with the schema, and every benchmark gives the figures that it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from benchmarks import depth, enqueue, moments
from benchmarks import drain as drains
from benchmarks.drain import drain
from benchmarks.engines import LIMIT
from benchmarks.handlers import NOOP, NOTE
from benchmarks.limit import Creator
from benchmarks.processes import ROOT, BenchmarkError
from benchmarks.workload import (
    ACTOR,
    check_books,
    make_jobs,
    make_tenants,
    remove_jobs,
    request,
)
from jobs.clock import database_now
from jobs.services.submit import submit_jobs
from tests.factories import make_handler, make_pool

pytestmark = pytest.mark.process

# Which columns are filled, and what does not differ from job to job.
JOB = """
select status, attempt, attempt_limit, seq, lease_token, route_id, lane_id, retry, timeout_seconds, request_key,
    (select array_agg(key order by key) from jsonb_each(to_jsonb(job)) where value <> 'null') from jobs_job job"""
EVENT = """
select kind, from_status, to_status, seq, attempt, actor,
    (select array_agg(key order by key) from jsonb_each(to_jsonb(event)) where value <> 'null') from jobs_jobevent event"""

PROMISED = {
    "jobs", "jobs_per_s", "limit_jobs_per_s", "ratio", "db_cpu_us_per_job", "python_cpu_us_per_job",
    "scheduler_cpu_us_per_job", "worker_cpu_us_per_job", "limit_db_cpu_us_per_job", "limit_python_cpu_us_per_job",
    "hot_update_ratio_job", "events_per_job", "wal_bytes_per_job", "python", "postgresql", "cores", "slots", "commit",
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_looks(monkeypatch) -> None:
    """Nobody reads these figures; that idleness is watched shows in a moment too."""
    monkeypatch.setattr(drains, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(moments, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(moments, "LEAD_SECONDS", 1.0)


@pytest.fixture
def known_work(committed: None, database_url: str) -> str:
    """The URL of a database that knows the handler and its pool, as after a worker's start."""
    make_handler(NOOP)
    make_pool("default")
    return database_url


def test_the_limit_ends_every_job_with_its_whole_history_on_todays_schema(known_work):
    drained, (jobs, events) = drain(known_work, LIMIT, jobs=200, tenants=7, slots=4)
    assert drained.events_per_job == 4
    assert drained.jobs_per_s > 0
    assert [(row[0], row[-1]) for row in jobs] == [("succeeded", 200)]
    assert [(row[0], row[-1]) for row in events] == [
        ("created", 200), ("leased", 200), ("started", 200), ("succeeded", 200),
    ]  # fmt: skip


def test_jobs_of_the_limits_client_look_like_those_of_the_product(known_work):
    (owner,) = make_tenants(1)
    submit_jobs(tenant=owner, requests=[request(0)], actor=ACTOR)
    shapes = []
    with psycopg.connect(known_work, autocommit=True) as link:
        for create in (
            lambda: submit_jobs(tenant=owner, requests=[request(1)], actor=ACTOR),
            lambda: Creator(link, handler=NOOP).create(owner.pk, [1], [{"customer": 1}]),
        ):
            remove_jobs(link)
            create()
            shapes.append((link.execute(JOB).fetchall(), link.execute(EVENT).fetchall()))
            assert link.execute("select count(*) from jobs_dueentry").fetchone() == (1,)
    assert shapes[0] == shapes[1]


def test_enqueue_stores_and_counts_what_it_was_asked_for(known_work):
    make_jobs(jobs=1, tenants=make_tenants(1), due_at=database_now())  # of the benchmark before
    values = enqueue.measure(known_work, single=5, bulk=20, batch=10, tenants=2, repeat=1).values()
    for how in ("single", "bulk"):
        for side in ("", "limit_"):
            assert values[f"{side}{how}_jobs_per_s"] > 0
        assert values[f"{how}_ratio"] == pytest.approx(
            values[f"{how}_jobs_per_s"] / values[f"limit_{how}_jobs_per_s"], rel=0.02
        )


def test_latency_and_precision_tell_when_handlers_begin(known_work):
    make_handler(NOTE)
    latency = moments.measure_latency(known_work, jobs=10, gap_ms=20, slots=2, repeat=1).values()
    precision = moments.measure_precision(known_work, jobs=10, seconds=1, slots=2, repeat=1)
    for values in (latency, precision.values()):
        for side in ("", "limit_"):
            assert (
                0 < values[f"{side}p50_ms"] <= values[f"{side}p99_ms"] <= values[f"{side}max_ms"]
            )
    assert latency["from_commit_p50_ms"] < latency["p50_ms"]
    assert precision.values()["early"] == 0


def test_depth_drains_the_due_ones_and_leaves_all_the_others(known_work):
    result = depth.measure(known_work, jobs=20, future=200, slots=4, tenants=3, repeat=1)
    assert result.values()["ratio"] > 0
    assert result.runs[0][0]["events_per_job"] == result.runs[0][1]["events_per_job"] == 4


def test_books_with_a_job_that_never_ran_are_no_result(known_work):
    due_at = database_now()
    make_jobs(jobs=3, tenants=make_tenants(2), due_at=due_at)
    with (
        psycopg.connect(known_work, autocommit=True) as link,
        pytest.raises(BenchmarkError, match="expected 3 jobs succeeded"),
    ):
        check_books(link, jobs=3, due_at=due_at)


def test_drain_prints_one_json_object_with_every_promised_figure_and_leaves_nothing_behind():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "drain", "--jobs", "100", "--json"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert set(values) >= PROMISED
    assert values["jobs"] == 100
    assert values["events_per_job"] == 4
    assert 0 < values["hot_update_ratio_job"] <= 1
    assert values["ratio"] == pytest.approx(
        values["jobs_per_s"] / values["limit_jobs_per_s"], abs=1e-3
    )
    for name in ("db_cpu_us_per_job", "python_cpu_us_per_job", "wal_bytes_per_job"):
        assert values[name] > 0, name
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as link:
        names = {name for (name,) in link.execute("select datname from pg_database")}
    assert not [name for name in names if name.startswith("duekeeper_benchmark")]
