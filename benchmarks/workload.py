"""The jobs of the benchmarks and their books: made through the product's own submit, checked row by row after.

Needs a configured Django.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import batched

import psycopg
from django.db import connection, transaction

from benchmarks.handlers import NOOP
from benchmarks.processes import BenchmarkError
from jobs.models import Lane, Tenant
from jobs.services.requests import JobRequest, parse_request
from jobs.services.submit import submit_jobs

BATCH = 1_000
ACTOR = "token:benchmark"
HOT_TABLES = "jobs_job, jobs_dueentry, jobs_lease, jobs_jobevent, jobs_deadletter"
LIFE = ("created", "leased", "started", "succeeded")

# Everything about the outcome that does not differ from job to job: two engines that did the same work leave the same.
# Which columns are filled is asked of the rows themselves, so that a new column counts too. Only a late claim tells what
# the job waited for.
JOB_SHAPE = """
select status, attempt, attempt_limit, seq, lease_token, updated_at = finished_at,
    (select array_agg(key order by key) from jsonb_each(to_jsonb(job)) where value <> 'null'), count(*)
from jobs_job job where due_at = %(due_at)s group by 1, 2, 3, 4, 5, 6, 7 order by 1, 2, 3, 4, 5, 6, 7"""
EVENT_SHAPE = """
select event.kind, event.from_status, event.to_status, event.seq, event.attempt, event.token,
    split_part(event.actor, ':', 1), event.shard = job.shard, event.tenant_id = job.tenant_id,
    (select array_agg(key order by key) from jsonb_each(to_jsonb(event)) where value <> 'null'),
    (select array_agg(key order by key) from jsonb_object_keys(event.detail - 'waited') key), count(*)
from jobs_jobevent event join jobs_job job on job.id = event.job_id where job.due_at = %(due_at)s
group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 order by 4, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11"""
LEFT_OVER = """
select (select count(*) from jobs_dueentry where due_at = %(due_at)s), (select count(*) from jobs_lease), (select count(*) from jobs_deadletter)"""

Shape = tuple[list[tuple[object, ...]], list[tuple[object, ...]]]


def make_tenants(count: int) -> list[Tenant]:
    """Tenants bench-000 and so on."""
    return [
        Tenant.objects.get_or_create(slug=f"bench-{n:03}", defaults={"name": f"Benchmark {n}"})[0]
        for n in range(count)
    ]


def payload_of(number: int) -> dict[str, object]:
    """Of the jobs whose handler reads none of it."""
    return {"customer": number % 1000, "amount": 4500, "currency": "EUR"}


def request(
    number: int, *, lane: str | None = None, key: str = "order", **more: object
) -> JobRequest:
    """Number so and so, checked as the API checks it: no-op, due now, unless `more` says otherwise."""
    return parse_request(
        {
            "handler": NOOP,
            "payload": payload_of(number),
            "request_key": f"{key}-{number}",
            **{name: value for name, value in more.items() if value is not None},
        }
    )


def make_jobs(
    *, jobs: int, tenants: Sequence[Tenant], due_at: datetime, key: str = "order"
) -> None:
    """Create the jobs, in transactions of BATCH jobs with every tenant in each, as arrivals mix.

    Args:
        jobs: How many.
        tenants: Owners, in turn.
        due_at: Of all of them; lanes are mixed within each tenant.
        key: Begin of their request keys.
    """
    lanes = list(Lane.objects.order_by("id").values_list("name", flat=True))
    for numbers in batched(range(jobs), BATCH):
        shares: dict[int, list[JobRequest]] = {}
        for number in numbers:
            turn, owner = divmod(number, len(tenants))
            lane = lanes[turn % len(lanes)]
            shares.setdefault(owner, []).append(request(number, lane=lane, key=key, due_at=due_at))
        with transaction.atomic():
            for owner, requests in shares.items():
                submit_jobs(tenant=tenants[owner], requests=requests, actor=ACTOR)
    connection.close()


def remove_jobs(link: psycopg.Connection, *, due_at: datetime | None = None) -> None:
    """Empty the tables that grow with jobs, of jobs due at one moment or of all; nobody may be working on them."""
    if due_at is None:
        link.execute(f"truncate {HOT_TABLES}")
        return
    with link.transaction():
        ids = "select id from jobs_job where due_at = %s"
        link.execute(f"delete from jobs_jobevent where job_id in ({ids})", (due_at,))
        link.execute("delete from jobs_dueentry where due_at = %s", (due_at,))
        link.execute("delete from jobs_job where due_at = %s", (due_at,))


def settle(link: psycopg.Connection) -> None:
    """Leave the database nothing to catch up with while it is measured."""
    link.execute("vacuum (analyze)")
    link.execute("checkpoint")


def check_books(link: psycopg.Connection, *, jobs: int, due_at: datetime) -> Shape:
    """Make sure that every job due at this moment succeeded at its first attempt and that its history says so.

    Returns:
        What the rows have in common, for comparing two engines.

    Raises:
        BenchmarkError: Something is missing or too much.
    """
    shape = _rows(link, JOB_SHAPE, due_at), _rows(link, EVENT_SHAPE, due_at)
    statuses = [(row[0], row[1], row[-1]) for row in shape[0]]
    if statuses != [("succeeded", 1, jobs)]:
        raise BenchmarkError(f"expected {jobs} jobs succeeded at attempt 1, found {shape[0]}")
    if [(row[0], row[-1]) for row in shape[1]] != [(kind, jobs) for kind in LIFE]:
        raise BenchmarkError(f"expected {jobs} of each of {LIFE}, found {shape[1]}")
    left_over = _rows(link, LEFT_OVER, due_at)
    if left_over != [(0, 0, 0)]:
        raise BenchmarkError(f"due entries, leases and dead letters left over: {left_over}")
    return shape


def _rows(link: psycopg.Connection, query: str, due_at: datetime) -> list[tuple[object, ...]]:
    return link.execute(query.encode(), {"due_at": due_at}).fetchall()
