"""claim + publish: scheduled → leased, for due entries that this scheduler locked first."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple
from uuid import UUID

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, notify, rows
from jobs.models import DueEntry, Pool
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import insert_event

log = logging.getLogger(__name__)
NOBODY = UUID(int=0)

_TOLD = insert_event(
    source="moved left join lanes using (lane_id)",
    kind=EventKind.LEASED,
    start=JobStatus.SCHEDULED,
    end=JobStatus.LEASED,
    lease="lease_id",
    token="token",
    due_at="due_at",
    detail="coalesce(told, jsonb_build_object('pool', %(pool_name)s::text))",
)
# Moves exactly the locked ids. The lane only adds to the row: a job whose lane was deleted must not end up leased
# without a lease. Lease keys are random per claim: a hash of the job and a nonce drawn for this batch, several times
# cheaper than asking the server for randomness once per row. The commit need not wait for the disk: a take, whose commit
# does, comes after it in the same log, and a claim that a crash has undone was nobody's.
PUBLISH = f"""
with lanes as materialized (
    select id as lane_id, head_start_seconds, jsonb_build_object('pool', %(pool_name)s::text, 'lane', name) as told
    from jobs_lane
), taken as (
    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
    returning job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
), moved as (
    update jobs_job job set status = 'leased', attempt = job.attempt + 1, seq = job.seq + 1,
        lease_token = job.lease_token + 1, updated_at = {NOW_SQL}
    from taken
    where job.shard = taken.shard and job.id = taken.job_id and job.status = 'scheduled'
    returning taken.*, job.attempt, job.seq, job.lease_token as token,
        md5(%(nonce)s || job.id::text)::uuid as lease_id
), published as (
    insert into jobs_lease (id, job_id, token, attempt, seq, shard, route_id, pool_id, lane_id, priority, rank,
        due_at, tenant_id, published_at, expires_at, concurrency_key)
    select lease_id, job_id, token, attempt, seq, shard, route_id, %(pool)s, lane_id, priority,
        due_at - (coalesce(head_start_seconds, 0) + priority) * interval '1 second',
        due_at, tenant_id, {NOW_SQL}, {NOW_SQL} + %(ttl)s * interval '1 second', concurrency_key
    from moved left join lanes using (lane_id)
), told as (
    {_TOLD}
)
select count(*), set_config('synchronous_commit', 'off', true) from moved"""


class Claimed(NamedTuple):
    """How many jobs one batch published, and how many of its candidates went to somebody else."""

    published: int
    lost: int


@atomically
def claim_batch(
    *,
    shards: Sequence[int],
    job_ids: Sequence[UUID],
    pool: Pool,
    actor: str,
    now: datetime | None = None,
) -> Claimed:
    """scheduled → leased, for candidates that are still due and that nobody else holds.

    The winner is whoever locks the due entry; a loser skips the row and writes nothing.

    Args:
        shards: Shards of this scheduler.
        job_ids: Candidates, at most one batch; a row outside `shards` or not yet due is left alone.
        pool: Where the leases are published; the caller checked labels.
        actor: The scheduler, for history.
        now: Aware UTC; default is the database clock.

    Returns:
        Counts; losing a race is normal here and no error.
    """
    locked = _lock(shards, job_ids, now)
    if not locked:
        return Claimed(0, len(job_ids))
    params = {
        "shards": list(shards),
        "jobs": locked,
        "nonce": secrets.token_hex(16),
        "pool": pool.pk,
        "pool_name": pool.name,
        "ttl": conf().publish_ttl_seconds,
        "actor": actor,
        "now": now,
    }
    ((published, _),) = rows(PUBLISH, params, hot=True)
    if published < len(locked):
        # Entries of jobs that are gone or do not wait were taken out of the calendar, where they would come up for ever.
        log.error(telemetry.CLAIM_MISMATCH, extra={"locked": len(locked), "published": published})
    if published:
        notify(telemetry.CHANNEL_WORKERS, f"pool:{pool.pk}")
    return Claimed(published, len(job_ids) - published)


def _lock(shards: Sequence[int], job_ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    """Due entries that are ours from here to the commit.

    A step of its own: a limited sub-select inside the move can change more rows than it chose.
    """
    given = [] if now is None else [now]
    params = [list(shards), *given, list(job_ids)]
    return [job_id for (job_id,) in rows(_lock_sql(given_time=now is not None), params, hot=True)]


@cache
def _lock_sql(*, given_time: bool) -> str:
    """The lock with placeholders for shards, time if one is given, and ids: making it takes the ORM milliseconds."""
    entries = DueEntry.objects.in_shards([0]).due(datetime.now(UTC) if given_time else None)
    locked = entries.filter(pk__any=[NOBODY]).select_for_update(skip_locked=True, of=("self",))
    sql, _ = locked.order_by("job_id").values_list("job_id").query.sql_with_params()
    return str(sql)
