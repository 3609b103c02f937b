"""depth: a few jobs that come due among many that are not, beside the same few alone. The product both times."""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg

from benchmarks.database import row
from benchmarks.drain import drain
from benchmarks.engines import PRODUCT
from benchmarks.report import Figures, Result, alternate, say
from benchmarks.workload import BATCH, make_jobs, make_tenants

FIRST_DUE, APART = timedelta(days=30), "interval '40 seconds'"
COLUMNS = """
select array_agg(quote_ident(attname) order by attnum) from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = ''"""
# Ids of the model job with other milliseconds: ordered by time and in the shard of their model.
NEW_ID = """(lpad(to_hex(x'{ms}'::bigint + copy), 12, '0') || substr(replace({id}::text, '-', ''), 13))::uuid"""


def measure(url: str, *, jobs: int, future: int, slots: int, tenants: int, repeat: int) -> Result:
    """All runs of this benchmark, in turn."""

    def run(name: str, *, among: int) -> Figures:
        drained, _ = drain(
            url,
            PRODUCT,
            jobs=jobs,
            tenants=tenants,
            slots=slots,
            among=(lambda link: make_future(link, jobs=among, tenants=tenants)) if among else None,
        )
        say(
            f"  {name:8} {drained.jobs_per_s:8.0f} jobs/s; others {drained.foreign_cores:.2f} cores"
        )
        return drained.figures()

    return Result(
        name="depth",
        size={"jobs": jobs, "future": future, "slots": slots, "tenants": tenants},
        runs=alternate(repeat, lambda: run("among", among=future), lambda: run("alone", among=0)),
        ratios={"ratio": "jobs_per_s"},
        other="alone",
    )


def make_future(link: psycopg.Connection, *, jobs: int, tenants: int) -> None:
    """So many jobs due from in 30 days on: the first through the product's own submit, copies of those in SQL."""
    began = time.monotonic()
    (due_at,) = row(link, "select clock_timestamp() + %s", FIRST_DUE)
    models = min(jobs, BATCH)
    make_jobs(jobs=models, tenants=make_tenants(tenants), due_at=due_at, key="later")
    copies, ms = jobs // models - 1, f"{time.time_ns() // 1_000_000:x}"
    later = f"due_at + copy * {APART}"
    job_id = NEW_ID.format(ms=ms, id="job_id")
    changed = {
        "jobs_job": {
            "id": NEW_ID.format(ms=ms, id="id"),
            "request_key": "request_key || '-' || copy",
            "due_at": later,
        },
        "jobs_dueentry": {"job_id": job_id, "due_at": later},
        "jobs_jobevent": {
            "id": f"uuid_hash_extended({job_id}, seq)",
            "job_id": job_id,
            "due_at": later,
        },
    }
    for table, expressions in changed.items():
        (columns,) = row(link, COLUMNS, table)
        values = [expressions.get(name, name) for name in columns]
        link.execute(
            f"insert into {table} ({', '.join(columns)}) select {', '.join(values)}"
            f" from {table}, generate_series(1, {copies}) copy where due_at = %s order by copy".encode(),
            (due_at,),
        )
    say(f"  {models * (copies + 1)} jobs for later, made in {time.monotonic() - began:.0f} s")
