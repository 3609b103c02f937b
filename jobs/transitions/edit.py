"""edit: due time, lane and tags of a job that waits. A published or running job is out of reach."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import atomically, notify, rows
from jobs.errors import NotFound, NotWaiting
from jobs.models import Job
from jobs.states import EventKind, JobStatus
from jobs.telemetry import CHANNEL_DUE
from jobs.transitions.events import insert_event

EDIT = f"""
with old as (
    select job_id, shard, tenant_id, due_at, lane_id from jobs_dueentry
    where shard = %(shard)s and job_id = %(job)s for update
), entry as (
    update jobs_dueentry entry set due_at = coalesce(%(due_at)s::timestamptz, entry.due_at),
        lane_id = coalesce(%(lane)s::smallint, entry.lane_id)
    from old where entry.shard = old.shard and entry.job_id = old.job_id
    returning entry.job_id, entry.shard, entry.tenant_id, entry.due_at, entry.lane_id, old.due_at as old_due_at,
        old.lane_id as old_lane_id
), moved as (
    update jobs_job job set due_at = coalesce(%(due_at)s::timestamptz, job.due_at), lane_id = entry.lane_id,
        tags = coalesce(%(tags)s::jsonb, job.tags), seq = job.seq + 1, updated_at = {NOW_SQL}
    from entry where job.shard = entry.shard and job.id = entry.job_id and job.status = 'scheduled'
    returning entry.*, job.seq, job.attempt
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.EDITED,
        start=JobStatus.SCHEDULED,
        end=JobStatus.SCHEDULED,
        due_at="due_at",
        detail="jsonb_build_object('old_due_at', old_due_at, 'lane', lane_id,"
        " 'old_lane', old_lane_id, 'tags', %(tags)s::jsonb)",
    )
}
) select job_id from moved"""


@atomically
def edit_job(
    *,
    shard: int,
    job_id: UUID,
    actor: str,
    due_at: datetime | None = None,
    lane_id: int | None = None,
    tags: Sequence[str] | None = None,
    now: datetime | None = None,
) -> None:
    """scheduled stays scheduled with another due time, lane or tags, if the job still waits.

    Args:
        shard: Of the job.
        job_id: The job.
        actor: Who decided.
        due_at: New aware due time; None keeps the old one. A past time means now.
        lane_id: New lane; None keeps the old one.
        tags: New tags, replacing all; None keeps the old ones.
        now: Aware UTC; default is the database clock.

    Raises:
        NotWaiting: It was claimed, or finished, first. Nothing was written.
        NotFound: No such job.
    """
    params = {
        "shard": shard,
        "job": job_id,
        "actor": actor,
        "due_at": due_at,
        "lane": lane_id,
        "tags": None if tags is None else json.dumps(list(tags)),
        "now": now,
    }
    if rows(EDIT, params):
        notify(CHANNEL_DUE, "")
        return
    status = Job.objects.filter(shard=shard, pk=job_id).values_list("status", flat=True).first()
    if status is None:
        raise NotFound
    raise NotWaiting(current=status)
