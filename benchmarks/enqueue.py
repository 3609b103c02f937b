"""enqueue: how many jobs one client stores a second, one a commit and many a commit, by the product and in raw SQL.

The client is this process; it calls the service behind the REST API. Nothing runs the jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import batched

import psycopg

from benchmarks.accounting import CpuMeter
from benchmarks.database import connect, row
from benchmarks.drain import WAL
from benchmarks.handlers import NOOP
from benchmarks.limit import Creator
from benchmarks.processes import BenchmarkError
from benchmarks.report import Figures, Result, alternate, say
from benchmarks.workload import (
    ACTOR,
    make_tenants,
    payload_of,
    remove_jobs,
    request,
    settle,
)
from jobs.models import Tenant
from jobs.services.submit import submit_jobs

type Create = Callable[[Sequence[int]], None]

STORED = """
select (select count(*) from jobs_job where status = 'scheduled'), (select count(*) from jobs_dueentry),
    (select count(*) from jobs_jobevent where kind = 'created')"""


def measure(url: str, *, single: int, bulk: int, batch: int, tenants: int, repeat: int) -> Result:
    """All runs of this benchmark, product and limit in turn."""
    owners = make_tenants(tenants)
    with connect(url) as link:
        remove_jobs(link)  # those of another benchmark may have the same keys
    submit_jobs(tenant=owners[0], requests=[request(0)], actor=ACTOR)  # now there is a route

    def run(name: str, creator: Callable[[psycopg.Connection], Create]) -> Figures:
        with connect(url) as link, connect(url) as client:
            create = creator(client)
            one = _store(link, create, jobs=single, batch=1)
            many = _store(link, create, jobs=bulk, batch=batch)
        say(f"  {name:8} {one['jobs_per_s']:8.0f} and {many['jobs_per_s']:8.0f} jobs/s")
        return {
            f"{how}_{figure}": value
            for how, figures in (("single", one), ("bulk", many))
            for figure, value in figures.items()
        }

    return Result(
        name="enqueue",
        size={"single": single, "bulk": bulk, "batch": batch, "tenants": tenants},
        runs=alternate(
            repeat,
            lambda: run("product", lambda _: _by_the_product(owners)),
            lambda: run("limit", lambda client: _in_raw_sql(client, owners)),
        ),
        ratios={"single_ratio": "single_jobs_per_s", "bulk_ratio": "bulk_jobs_per_s"},
    )


def _by_the_product(owners: Sequence[Tenant]) -> Create:
    def create(numbers: Sequence[int]) -> None:
        requests = [request(number) for number in numbers]
        submit_jobs(tenant=owners[_turn(numbers) % len(owners)], requests=requests, actor=ACTOR)

    return create


def _in_raw_sql(client: psycopg.Connection, owners: Sequence[Tenant]) -> Create:
    limit = Creator(client, handler=NOOP)
    tenants = [owner.pk for owner in owners]

    def create(numbers: Sequence[int]) -> None:
        payloads = [payload_of(number) for number in numbers]
        limit.create(tenants[_turn(numbers) % len(tenants)], numbers, payloads)

    return create


def _turn(numbers: Sequence[int]) -> int:
    """Number of this batch: each is one tenant's, in turn."""
    return numbers[0] // len(numbers)


def _store(
    link: psycopg.Connection, create: Create, *, jobs: int, batch: int
) -> dict[str, float | None]:
    """Store so many jobs, and look whether they are there."""
    remove_jobs(link)
    settle(link)
    create(range(jobs, jobs + batch))  # the first one loads and plans
    meter, (wal,) = CpuMeter({}, link), row(link, WAL)
    start, began, cpu = meter.read(), time.perf_counter(), time.process_time()
    for numbers in batched(range(jobs), batch):
        create(numbers)
    seconds, client = time.perf_counter() - began, time.process_time() - cpu
    used = meter.read().since(start)
    (wal,) = row(link, "select pg_current_wal_insert_lsn() - %s::pg_lsn", wal)
    if (stored := row(link, STORED)) != (jobs + batch,) * 3:
        raise BenchmarkError(f"{jobs + batch} jobs were to be stored, but there are {stored}")
    return {
        "jobs_per_s": jobs / seconds,
        "db_cpu_us_per_job": None if used.database is None else used.database * 1e6 / jobs,
        "python_cpu_us_per_job": client * 1e6 / jobs,
        "wal_bytes_per_job": float(wal) / jobs,
        "foreign_cores": used.foreign / used.at,
    }
