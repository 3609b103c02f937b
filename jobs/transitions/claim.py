"""claim + publish: scheduled → leased, for due entries that this scheduler locked first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
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

# Moves exactly the locked ids. The lease key is drawn once, in the row that both the lease and the event read. The lane
# only adds to the row: a job whose lane was deleted must not end up leased without a lease.
PUBLISH = f"""
with taken as (
    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
    returning job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
), moved as (
    update jobs_job job set status = '{
    JobStatus.LEASED
}', attempt = job.attempt + 1, seq = job.seq + 1,
        lease_token = job.lease_token + 1, updated_at = {NOW_SQL}
    from taken
    where job.shard = taken.shard and job.id = taken.job_id and job.status = '{
    JobStatus.SCHEDULED
}'
    returning taken.*, job.attempt, job.seq, job.lease_token as token, gen_random_uuid() as lease_id
), published as (
    insert into jobs_lease (id, job_id, token, attempt, seq, shard, route_id, pool_id, lane_id, priority, rank,
        due_at, tenant_id, published_at, expires_at, concurrency_key)
    select lease_id, job_id, token, attempt, seq, moved.shard, route_id, %(pool)s, lane_id, priority,
        due_at - (coalesce(lane.head_start_seconds, 0) + priority) * interval '1 second',
        due_at, tenant_id, {NOW_SQL}, {NOW_SQL} + %(ttl)s * interval '1 second', concurrency_key
    from moved left join jobs_lane lane on lane.id = moved.lane_id
), told as (
    {
    insert_event(
        source="moved left join jobs_lane lane on lane.id = moved.lane_id",
        kind=EventKind.LEASED,
        start=JobStatus.SCHEDULED,
        end=JobStatus.LEASED,
        lease="lease_id",
        token="token",
        detail="jsonb_build_object('pool', %(pool_name)s::text, 'lane', lane.name, 'due_at', due_at)",
    )
}
)
select count(*) from moved"""


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
    entries = DueEntry.objects.in_shards(shards).due(now).filter(pk__any=list(job_ids))
    locked = list(  # list() runs the lock here: a sliced sub-select inside an UPDATE can change more than the slice
        entries.order_by("job_id")
        .select_for_update(skip_locked=True, of=("self",))
        .values_list("job_id", flat=True)
    )
    if not locked:
        return Claimed(0, len(job_ids))
    params = {
        "shards": list(shards),
        "jobs": locked,
        "pool": pool.pk,
        "pool_name": pool.name,
        "ttl": conf().publish_ttl_seconds,
        "actor": actor,
        "now": now,
    }
    ((published,),) = rows(PUBLISH, params)
    if published < len(locked):
        # Entries of jobs that are gone or do not wait were taken out of the calendar, where they would come up for ever.
        log.error(telemetry.CLAIM_MISMATCH, extra={"locked": len(locked), "published": published})
    if published:
        notify(telemetry.CHANNEL_WORKERS, f"pool:{pool.pk}")
    return Claimed(published, len(job_ids) - published)
