"""What a person does with a dead letter: send the job back, or close the matter."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import atomically, notify, rows
from jobs.errors import NotDead, NotFound
from jobs.models import DeadLetter
from jobs.states import EventKind, JobStatus
from jobs.telemetry import CHANNEL_DUE
from jobs.transitions.events import insert_event

RESOLVE = f"""
    update jobs_deadletter set resolution = %(resolution)s, resolved_at = {NOW_SQL}, resolved_by = %(actor)s,
        note = %(note)s
    where shard = %(shard)s and id = %(letter)s and resolution = 'open'
    returning job_id, shard, tenant_id"""
NOTE = "jsonb_build_object('note', %(note)s::text, 'dead_letter', %(letter)s::uuid)"

# The budget grows by what was asked at creation; attempt numbers and the lease counter go on, so that an old report
# can never look current.
REQUEUE = f"""
with letter as ({RESOLVE}
), moved as (
    update jobs_job job set status = 'scheduled', finished_at = null, seq = job.seq + 1,
        attempt_limit = job.attempt + job.max_attempts, updated_at = {NOW_SQL}
    from letter where job.shard = letter.shard and job.id = letter.job_id and job.status = 'dead'
    returning letter.*, job.seq, job.attempt, job.route_id, job.lane_id, job.priority, job.concurrency_key
), calendar as (
    insert into jobs_dueentry (job_id, due_at, shard, route_id, lane_id, priority, tenant_id, concurrency_key)
    select job_id, {
    NOW_SQL
} + %(delay)s * interval '1 second', shard, route_id, lane_id, priority, tenant_id,
        concurrency_key
    from moved
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.REQUEUED,
        start=JobStatus.DEAD,
        end=JobStatus.SCHEDULED,
        due_at=f"{NOW_SQL} + %(delay)s * interval '1 second'",
        detail=NOTE,
    )
}
) select job_id from moved"""

DISCARD = f"""
with letter as ({RESOLVE}
), moved as (
    update jobs_job job set seq = job.seq + 1, updated_at = {NOW_SQL}
    from letter where job.shard = letter.shard and job.id = letter.job_id and job.status = 'dead'
    returning letter.*, job.seq, job.attempt
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.DISCARDED,
        start=JobStatus.DEAD,
        end=JobStatus.DEAD,
        detail=NOTE,
    )
}
) select job_id from moved"""


@atomically
def requeue_dead_letter(
    *,
    shard: int,
    dead_letter_id: UUID,
    actor: str,
    note: str,
    delay_seconds: float = 0.0,
    now: datetime | None = None,
) -> UUID:
    """dead → scheduled with a fresh budget, if the dead letter is still open; the first of two callers wins.

    Job id, request key and idempotency token stay, so a receiver still recognises the work.

    Args:
        shard: Of the dead letter.
        dead_letter_id: Which death.
        actor: Who decided.
        note: Why, in words.
        delay_seconds: From now until it is due.
        now: Aware UTC; default is the database clock.

    Returns:
        The job's id.

    Raises:
        NotDead: Requeued or discarded before. Nothing was written.
        NotFound: No such dead letter.
    """
    job_id = _resolve(
        REQUEUE,
        shard,
        dead_letter_id,
        actor,
        note,
        resolution="requeued",
        delay=delay_seconds,
        now=now,
    )
    notify(CHANNEL_DUE, "")
    return job_id


@atomically
def discard_dead_letter(
    *, shard: int, dead_letter_id: UUID, actor: str, note: str, now: datetime | None = None
) -> UUID:
    """dead stays dead, and its dead letter is closed with a note. The first of two callers wins.

    Args:
        shard: Of the dead letter.
        dead_letter_id: Which death.
        actor: Who decided.
        note: Why, in words.
        now: Aware UTC; default is the database clock.

    Returns:
        The job's id.

    Raises:
        NotDead: Requeued or discarded before. Nothing was written.
        NotFound: No such dead letter.
    """
    return _resolve(DISCARD, shard, dead_letter_id, actor, note, resolution="discarded", now=now)


def _resolve(
    sql: str, shard: int, dead_letter_id: UUID, actor: str, note: str, **params: object
) -> UUID:
    bound = {"shard": shard, "letter": dead_letter_id, "actor": actor, "note": note, **params}
    if moved := rows(sql, bound):
        job_id: UUID = moved[0][0]
        return job_id
    letter = DeadLetter.objects.filter(shard=shard, pk=dead_letter_id).first()
    if letter is None:
        raise NotFound
    raise NotDead(current=letter.resolution)
