"""The raw-SQL limit keeps up with the schema, and the drain benchmark prints what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from benchmarks.drain import drain
from benchmarks.engines import LIMIT
from benchmarks.handlers import NOOP
from benchmarks.processes import ROOT, BenchmarkError
from benchmarks.workload import check_books, make_jobs, make_tenants
from jobs.clock import database_now
from tests.factories import make_handler, make_pool

pytestmark = pytest.mark.process

PROMISED = {
    "jobs", "jobs_per_s", "limit_jobs_per_s", "ratio", "db_cpu_us_per_job", "python_cpu_us_per_job",
    "scheduler_cpu_us_per_job", "worker_cpu_us_per_job", "limit_db_cpu_us_per_job", "limit_python_cpu_us_per_job",
    "hot_update_ratio_job", "events_per_job", "wal_bytes_per_job", "python", "postgresql", "cores", "slots", "commit",
}  # fmt: skip


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
        [sys.executable, "-m", "benchmarks", "drain", "--jobs", "300", "--json"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert set(values) >= PROMISED
    assert values["jobs"] == 300
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
