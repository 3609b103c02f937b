"""withdraw: the schedule of a waiting job takes it back, because it was missed, edited, paused or deleted. Or lets it run late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import commits, rows
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import insert_event

WITHDRAW = f"""
with gone as (
    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
        and misfire_at is not null
    returning job_id, shard, tenant_id
), moved as (
    update jobs_job job set status = 'cancelled', finished_at = {
    NOW_SQL
}, seq = job.seq + 1, updated_at = {NOW_SQL},
        cancel_requested_at = {
    NOW_SQL
}, cancel_requested_by = %(actor)s, cancel_reason = %(reason)s
    from gone
    where job.shard = gone.shard and job.id = gone.job_id and job.status = 'scheduled'
    returning gone.*, job.seq, job.attempt
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.CANCELLED,
        start=JobStatus.SCHEDULED,
        end=JobStatus.CANCELLED,
        detail="jsonb_build_object('reason', %(reason)s::text, 'was', 'waiting')",
    )
}
) select job_id from moved"""


LET_LATE = """
update jobs_dueentry due set misfire_at = late.until
from unnest(%(jobs)s::uuid[], %(untils)s::timestamptz[]) as late(job_id, until)
where due.shard = any(%(shards)s) and due.job_id = late.job_id and due.misfire_at is not null
returning due.job_id"""


@commits
def withdraw_jobs(
    *,
    shards: Sequence[int],
    job_ids: Sequence[UUID],
    reason: str,
    actor: str,
    now: datetime | None = None,
) -> set[UUID]:
    """waiting → cancelled, for jobs that nobody has ever claimed: only those have a time to miss.

    The winner is whoever takes the due entry.

    Args:
        shards: Of the jobs.
        job_ids: Jobs of schedules.
        reason: Code of why: misfire, running, paused, edited, deleted, policy, calendar, zone_data.
        actor: Who decided.
        now: Aware UTC; default is the database clock.

    Returns:
        Ids that were withdrawn; the others were claimed first and stay as they are.
    """
    if not job_ids:
        return set()
    params = {
        "shards": sorted(set(shards)),
        "jobs": list(job_ids),
        "reason": reason,
        "actor": actor,
        "now": now,
    }
    return {job_id for (job_id,) in rows(WITHDRAW, params)}


@commits
def let_late_jobs(
    *,
    shards: Sequence[int],
    until: Mapping[UUID, datetime | None],
    now: datetime | None = None,
) -> set[UUID]:
    """waiting stays waiting: a job that was missed may be claimed all the same.

    Args:
        shards: Of the jobs.
        until: Job of a schedule → when it is judged again; None: never.
        now: Unused; every transition takes it.

    Returns:
        Ids of those that were still waiting for this.
    """
    if not until:
        return set()
    params = {
        "shards": sorted(set(shards)),
        "jobs": list(until),
        "untils": list(until.values()),
    }
    return {job_id for (job_id,) in rows(LET_LATE, params)}
