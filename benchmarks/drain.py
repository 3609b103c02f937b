"""drain: many no-op jobs that come due at one moment, from then to the last `finished_at`.

The product first, then its limit (limit.py) on the same tables and the same jobs. All processes are idle before the
jobs come due. Needs a configured Django.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import psycopg

from benchmarks.accounting import CpuMeter, CpuReading
from benchmarks.database import connect, row, true
from benchmarks.engines import LIMIT, POLL_SECONDS, PRODUCT, Engine, wait
from benchmarks.processes import BenchmarkError
from benchmarks.report import Figures, Result, alternate, say
from benchmarks.workload import (
    BATCH,
    Shape,
    check_books,
    make_jobs,
    make_tenants,
    remove_jobs,
    settle,
)
from jobs.queries.candidates import NEXT_DUE
from jobs.queries.catalog import forget

LOOK_SECONDS = 1.0  # how long idleness is watched
IDLE_CORES_MOST = 0.2

JOB_UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'jobs_job'"
WAL = "select pg_current_wal_insert_lsn()"


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

    def figures(self) -> Figures:
        """By name, in the order of a table."""
        values = asdict(self)
        names = list(values)
        names.insert(names.index("wal_bytes_per_job"), "python_cpu_us_per_job")
        return {name: getattr(self, name) for name in names}


def measure(url: str, *, jobs: int, slots: int, tenants: int, repeat: int) -> Result:
    """All runs of this benchmark, product and limit in turn."""
    shapes: dict[str, Shape] = {}

    def run(engine: Engine, name: str) -> Figures:
        drained, shapes[name] = drain(url, engine, jobs=jobs, tenants=tenants, slots=slots)
        say(
            f"  {name:8} {drained.jobs_per_s:8.0f} jobs/s; others {drained.foreign_cores:.2f} cores"
        )
        if len(set(map(str, shapes.values()))) > 1:
            raise BenchmarkError(
                f"limit.py no longer leaves the rows that the product leaves: {shapes}"
            )
        return drained.figures()

    return Result(
        name="drain",
        size={"jobs": jobs, "slots": slots, "tenants": tenants},
        runs=alternate(repeat, lambda: run(PRODUCT, "product"), lambda: run(LIMIT, "limit")),
        ratios={"ratio": "jobs_per_s"},
    )


def drain(
    url: str,
    engine: Engine,
    *,
    jobs: int,
    tenants: int,
    slots: int,
    among: Callable[[psycopg.Connection], None] | None = None,
) -> tuple[Drained, Shape]:
    """One drain by an engine, of jobs in emptied tables or among the rows that `among` has put there."""
    with connect(url) as link:
        remove_jobs(link)
        if among is not None:
            among(link)
            settle(link)
        with engine.at_work(url, link, slots=slots) as processes:
            meter = CpuMeter(processes.pids, link)
            due_at = _fill(link, jobs=jobs, tenants=tenants)
            before, (wal,) = row(link, JOB_UPDATES), row(link, WAL)
            idle = _until_due(link, due_at, meter)
            start = meter.read()
            wait(lambda: _is_drained(link, due_at), 60 + jobs / 200, processes)
            used = meter.read().since(start)
            (wal,) = row(link, "select pg_current_wal_insert_lsn() - %s::pg_lsn", wal)
        # The processes are gone, and with them the last of their counters have arrived.
        after = row(link, JOB_UPDATES)
        shape = check_books(link, jobs=jobs, due_at=due_at)
        (seconds,) = row(
            link,
            "select extract(epoch from max(finished_at) - %s)::float8 from jobs_job where due_at = %s",
            *(due_at, due_at),
        )
    micro = 1e6 / jobs
    return Drained(
        jobs_per_s=jobs / seconds,
        db_cpu_us_per_job=None if used.database is None else used.database * micro,
        scheduler_cpu_us_per_job=used.processes["scheduler"] * micro,
        worker_cpu_us_per_job=used.processes["worker"] * micro,
        wal_bytes_per_job=float(wal) / jobs,
        events_per_job=sum(int(str(one[-1])) for one in shape[1]) / jobs,
        hot_update_ratio_job=(after[1] - before[1]) / max(1, after[0] - before[0]),
        foreign_cores=used.foreign / used.at,
        idle_cores=idle.own_cores,
    ), shape


def _is_drained(link: psycopg.Connection, due_at: datetime) -> bool:
    """All of it is finished. The product's own probe: a scan would read all that waits for later."""
    if true(link, "select clock_timestamp() < %s", due_at):
        return False
    shards = row(link, "select array_agg(number) from jobs_shard")[0]
    ((seconds,),) = link.execute(NEXT_DUE.encode(), {"shards": shards, "now": None}).fetchall()
    # In the order in which a job moves: looked for the other way round, it could be in between and be missed twice.
    return (seconds is None or seconds > 0) and true(
        link, "select not exists (select from jobs_lease)"
    )


def _fill(link: psycopg.Connection, *, jobs: int, tenants: int) -> datetime:
    """Create the jobs, due when everything is written and quiet; returns their due time.

    A rehearsal tells how long that takes: the due time must be known before the first job is made.
    """
    owners = make_tenants(tenants)
    forget()  # the worker has just advertised its handlers: all jobs are made by one reading
    rehearsed = min(jobs, BATCH)
    (now,) = row(link, "select clock_timestamp()")
    began = time.monotonic()
    make_jobs(jobs=rehearsed, tenants=owners, due_at=now + timedelta(days=1))
    filled = time.monotonic()
    remove_jobs(link, due_at=now + timedelta(days=1))
    settle(link)
    seconds = 2 * (filled - began) * jobs / rehearsed + 3 * (time.monotonic() - filled) + 3
    # One slow checkpoint in the rehearsal must not make everybody wait for minutes.
    seconds = min(seconds, 20 + jobs / 500)
    (now,) = row(link, "select clock_timestamp()")
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
