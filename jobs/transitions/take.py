"""take: a published lease becomes a worker's. leased stays leased; the lease gets an owner and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import commits, rows
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import insert_event, worker_actor

# The array is an InitPlan: it runs once, so exactly the locked rows change, at most `limit`.
TAKE = f"""
with started as (
    update jobs_lease set worker = %(worker)s, started_at = {NOW_SQL}, heartbeat_at = {
    NOW_SQL
}, seq = seq + 1,
        expires_at = {NOW_SQL} + %(ttl)s * interval '1 second'
    where shard = any(%(shards)s) and id = any(array(
        select id from jobs_lease
        where shard = any(%(shards)s) and pool_id = %(pool)s and worker is null and not cancel_requested
            and route_id = any(array(select id from jobs_route where handler = any(%(handlers)s)))
        order by rank, published_at limit %(limit)s for update skip locked))
    returning id, job_id, shard, tenant_id, route_id, attempt, token, seq
), told as (
    {
    insert_event(
        source="started",
        kind=EventKind.STARTED,
        start=JobStatus.LEASED,
        end=JobStatus.LEASED,
        lease="id",
        token="token",
    )
}
)
select started.id, started.job_id, started.shard, started.tenant_id, started.route_id, started.attempt,
    started.token, job.attempt_limit, job.handler, job.payload, job.payload_ref, job.retry, job.timeout_seconds,
    job.request_key, job.fire_at
from started join jobs_job job on job.shard = started.shard and job.id = started.job_id"""


class Taken(NamedTuple):
    """One attempt, as the worker receives it."""

    lease_id: UUID
    job_id: UUID
    shard: int
    tenant_id: int
    route_id: int
    attempt: int
    token: int
    attempt_limit: int
    handler: str
    payload: str | None  # JSON text: parsed only by the attempt that needs it
    payload_ref: str | None
    retry: str  # JSON text of the policy
    timeout_seconds: float
    request_key: str | None
    fire_at: datetime | None = None  # of a schedule's job: the firing it stands for


@commits
def take_batch(
    *,
    shards: Sequence[int],
    pool_id: int,
    handlers: Sequence[str],
    worker_id: UUID,
    limit: int,
    now: datetime | None = None,
) -> list[Taken]:
    """published → running, for at most `limit` leases of this pool in rank order.

    Args:
        shards: Where to look; a worker names all of them.
        pool_id: The worker's pool.
        handlers: Names this worker knows: it takes nothing else.
        worker_id: New owner, random per process start.
        limit: Most leases to take.
        now: Aware UTC; default is the database clock.

    Returns:
        The attempts that are now this worker's until now + lease ttl. Nothing is taken twice: a concurrent
        worker skips locked rows.
    """
    params = {
        "shards": list(shards),
        "pool": pool_id,
        "handlers": list(handlers),
        "worker": worker_id,
        "limit": limit,
        "ttl": conf().lease_ttl_seconds,
        "actor": worker_actor(worker_id),
        "now": now,
    }
    return [Taken(*row) for row in rows(TAKE, params, hot=True)]
