"""drain: many no-op jobs that come due at one moment, from then to the last `finished_at`.

The product first, then its limit (limit.py) on the same tables and the same jobs. All processes are idle before the
jobs come due. Needs a configured Django.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from benchmarks.accounting import CpuMeter, CpuReading
from benchmarks.database import connect
from benchmarks.handlers import NOOP
from benchmarks.processes import BenchmarkError, Running, running
from benchmarks.workload import (
    BATCH,
    Shape,
    check_books,
    make_jobs,
    make_tenants,
    remove_jobs,
    settle,
)

READY_SECONDS = 60.0
LOOK_SECONDS, POLL_SECONDS = (
    1.0,
    0.1,
)  # how long idleness is watched; how often the end is looked for
IDLE_CORES_MOST = 0.2

# The product is ready when its worker has made its handler known and its scheduler owns every shard.
PRODUCT_READY = f"""
select exists (select from jobs_worker where state = 'running' and handlers ? '{NOOP}')
    and not exists (select from jobs_shard where owner is null or owner not in (select id from jobs_schedulernode))"""
LIMIT_READY = """
select count(*) = 2 from pg_stat_activity where datname = current_database() and state = 'idle'
    and application_name in ('duekeeper_limit_scheduler', 'duekeeper_limit_worker')"""
DRAINED = "select not exists (select from jobs_dueentry) and not exists (select from jobs_lease)"
JOB_UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'jobs_job'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """One drain. CPU is microseconds a job from due to the end; None where the server is out of sight.

    Attributes:
        jobs_per_s: Jobs over the seconds from due to the last `finished_at`, both by the database's clock.
        foreign_cores: Cores that others kept busy meanwhile: above 0.1 the figures are too low.
        idle_cores: Cores that the measured processes and the database used in the second before.
    """

    jobs_per_s: float
    db_cpu_us_per_job: float | None
    scheduler_cpu_us_per_job: float
    worker_cpu_us_per_job: float
    wal_bytes_per_job: float
    events_per_job: float
    hot_update_ratio_job: float
    foreign_cores: float
    idle_cores: float

    @property
    def python_cpu_us_per_job(self) -> float:
        """Scheduler and worker together."""
        return self.scheduler_cpu_us_per_job + self.worker_cpu_us_per_job


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def drain_product(url: str, *, jobs: int, tenants: int, slots: int) -> tuple[Drained, Shape]:
    """One scheduler and one worker process of the product."""
    commands = {
        "scheduler": ["manage.py", "runscheduler"],
        "worker": ["manage.py", "runworker", "--slots", str(slots)],
    }
    return _drain(url, commands=commands, ready=PRODUCT_READY, jobs=jobs, tenants=tenants)


def drain_limit(url: str, *, jobs: int, tenants: int, slots: int) -> tuple[Drained, Shape]:
    """The raw-SQL limit. The handler and the default pool must be known to the database."""
    commands = {
        "scheduler": ["-m", "benchmarks.limit", "scheduler"],
        "worker": ["-m", "benchmarks.limit", "worker", str(slots)],
    }
    return _drain(url, commands=commands, ready=LIMIT_READY, jobs=jobs, tenants=tenants)


def _drain(
    url: str, *, commands: Mapping[str, list[str]], ready: str, jobs: int, tenants: int
) -> tuple[Drained, Shape]:
    with connect(url) as link:
        remove_jobs(link)
        with running(commands, url) as processes:
            _wait(lambda: _true(link, ready), READY_SECONDS, processes)
            meter = CpuMeter(processes.pids, link)
            due_at = _fill(link, jobs=jobs, tenants=tenants)
            before = _row(link, JOB_UPDATES)
            wal_before = _row(link, "select pg_current_wal_insert_lsn()")
            idle = _until_due(link, due_at, meter)
            start = meter.read()
            _wait(lambda: _true(link, DRAINED), 60 + jobs / 200, processes)
            used = meter.read().since(start)
            ((wal,),) = link.execute(
                "select pg_current_wal_insert_lsn() - %s::pg_lsn", wal_before
            ).fetchall()
        # The processes are gone, and with them the last of their counters have arrived.
        after = _row(link, JOB_UPDATES)
        shape = check_books(link, jobs=jobs)
        (seconds,) = _row(
            link,
            "select extract(epoch from max(finished_at) - max(due_at))::float8 from jobs_job",
        )
        (events,) = _row(link, "select count(*) from jobs_jobevent")
    micro = 1e6 / jobs
    return Drained(
        jobs_per_s=jobs / seconds,
        db_cpu_us_per_job=None if used.database is None else used.database * micro,
        scheduler_cpu_us_per_job=used.processes["scheduler"] * micro,
        worker_cpu_us_per_job=used.processes["worker"] * micro,
        wal_bytes_per_job=float(wal) / jobs,
        events_per_job=events / jobs,
        hot_update_ratio_job=(after[1] - before[1]) / max(1, after[0] - before[0]),
        foreign_cores=used.foreign / used.at,
        idle_cores=idle.own_cores,
    ), shape


def _fill(link: psycopg.Connection, *, jobs: int, tenants: int) -> datetime:
    """Create the jobs, due when everything is written and quiet; returns their due time.

    A rehearsal tells how long that takes: the due time must be known before the first job is made.
    """
    owners = make_tenants(tenants)
    rehearsed = min(jobs, BATCH)
    (now,) = _row(link, "select clock_timestamp()")
    began = time.monotonic()
    make_jobs(jobs=rehearsed, tenants=owners, due_at=now + timedelta(days=1))
    filled = time.monotonic()
    remove_jobs(link)
    settle(link)
    seconds = 2 * (filled - began) * jobs / rehearsed + 3 * (time.monotonic() - filled) + 3
    # One slow checkpoint in the rehearsal must not make everybody wait for minutes.
    seconds = min(seconds, 20 + jobs / 500)
    (now,) = _row(link, "select clock_timestamp()")
    due_at: datetime = now + timedelta(seconds=seconds)
    make_jobs(jobs=jobs, tenants=owners, due_at=due_at)
    settle(link)
    return due_at


def _until_due(link: psycopg.Connection, due_at: datetime, meter: CpuMeter) -> CpuReading:
    """Wait until just before the jobs are due, watching that nothing works meanwhile."""
    query = "select extract(epoch from %s::timestamptz - clock_timestamp())::float8"
    ((left,),) = link.execute(query, (due_at,)).fetchall()
    spare = left - LOOK_SECONDS - POLL_SECONDS
    if spare < 0:
        raise BenchmarkError("the machine is too busy: the jobs came due before all were written")
    time.sleep(spare)
    start = meter.read()
    time.sleep(LOOK_SECONDS)
    idle = meter.read().since(start)
    if idle.own_cores > IDLE_CORES_MOST:
        say(f"  not idle before the jobs came due: {idle.own_cores:.2f} cores")
    return idle


def _wait(condition: Callable[[], bool], seconds: float, processes: Running) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        processes.check()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"no end within {seconds:g} s:\n{processes.log_end()}")
        time.sleep(POLL_SECONDS)


def _row(link: psycopg.Connection, query: str) -> tuple[Any, ...]:
    row = link.execute(query.encode()).fetchone()
    if row is None:
        raise BenchmarkError(f"no answer to {query}")
    return row


def _true(link: psycopg.Connection, query: str) -> bool:
    return bool(_row(link, query)[0])
