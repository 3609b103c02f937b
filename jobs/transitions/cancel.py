"""cancel: ends a job that nobody runs; asks the holder to stop one that somebody does; takes its word for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import atomically, commits, notify, rows
from jobs.errors import AlreadyFinished, JobRunning, NotFound, TransitionRefused
from jobs.models import Job, Lease
from jobs.states import EventKind, JobStatus
from jobs.telemetry import CHANNEL_DUE, CHANNEL_WORKERS
from jobs.transitions.events import insert_event, worker_actor
from jobs.transitions.statements import HELD, LeaseEnd, end_leases

ASKED = f"""cancel_requested_at = coalesce(cancel_requested_at, {NOW_SQL}), cancel_requested_by = %(actor)s,
    cancel_reason = %(reason)s, updated_at = {NOW_SQL}"""
REASON = "jsonb_build_object('reason', %(reason)s::text, 'was', was)"

CANCEL_WAITING = f"""
with gone as (
    delete from jobs_dueentry where shard = %(shard)s and job_id = %(job)s returning job_id, shard, tenant_id
), moved as (
    update jobs_job job set status = 'cancelled', finished_at = {NOW_SQL}, seq = job.seq + 1, {
    ASKED
}
    from gone where job.shard = gone.shard and job.id = gone.job_id and job.status = 'scheduled'
    returning gone.*, job.seq, job.attempt, 'waiting' as was
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.CANCELLED,
        start=JobStatus.SCHEDULED,
        end=JobStatus.CANCELLED,
        detail=REASON,
    )
}
) select job_id from moved"""

CANCEL_PUBLISHED = f"""
with gone as (
    delete from jobs_lease where shard = %(shard)s and job_id = %(job)s and worker is null
    returning id, job_id, shard, tenant_id, token, seq + 1 as seq
), moved as (
    update jobs_job job set status = 'cancelled', finished_at = {NOW_SQL}, seq = gone.seq, {ASKED}
    from gone where job.shard = gone.shard and job.id = gone.job_id and job.status = 'leased'
    returning gone.*, job.attempt, 'published' as was
), told as (
    {
    insert_event(
        source="moved",
        kind=EventKind.CANCELLED,
        start=JobStatus.LEASED,
        end=JobStatus.CANCELLED,
        lease="id",
        token="token",
        detail=REASON,
    )
}
) select job_id from moved"""

REQUEST_CANCEL = f"""
with flagged as (
    update jobs_lease set cancel_requested = true, seq = seq + 1
    where shard = %(shard)s and job_id = %(job)s and worker is not null and not cancel_requested
    returning id, job_id, shard, tenant_id, token, seq, attempt, worker
), noted as (
    update jobs_job job set {
    ASKED
} from flagged where job.shard = flagged.shard and job.id = flagged.job_id
    returning job.id
), told as (
    {
    insert_event(
        source="(select flagged.*, 'running' as was from flagged) asked",
        kind=EventKind.CANCEL_REQUESTED,
        start=JobStatus.LEASED,
        end=JobStatus.LEASED,
        lease="id",
        token="token",
        detail=REASON,
    )
}
) select worker from flagged"""


class CancelOutcome(NamedTuple):
    """What was true when the cancel committed.

    `outcome` is "cancelled" (it never runs again) or "cancel_requested" (a worker has it and was told);
    `already` says that an earlier cancel had done the same.
    """

    outcome: str
    already: bool = False


@atomically
def cancel_job(
    *,
    shard: int,
    job_id: UUID,
    actor: str,
    reason: str,
    if_running: str = "ask",
    now: datetime | None = None,
) -> CancelOutcome:
    """waiting or published → cancelled; running → told to stop. Each try is one guarded write.

    The job may move from one place to the next while this looks for it, so the places are tried in the order
    in which a job passes them, and again if it came round.

    Args:
        shard: Of the job.
        job_id: The job.
        actor: Who asked, for history.
        reason: Why, in words.
        if_running: "ask" the worker to stop, or "refuse".
        now: Aware UTC; default is the database clock.

    Raises:
        AlreadyFinished: It succeeded or died first. Nothing was written.
        JobRunning: A worker has it and `if_running` is "refuse". Nothing was written.
        NotFound: No such job.
        TransitionRefused: It kept moving between places; asking again is safe.
    """
    params = {"shard": shard, "job": job_id, "actor": actor, "reason": reason, "now": now}
    for _ in range(10):
        if rows(CANCEL_WAITING, params):
            return CancelOutcome("cancelled")
        if rows(CANCEL_PUBLISHED, params):
            notify(CHANNEL_DUE, "")  # its place, or its slot of a concurrency key, is free
            return CancelOutcome("cancelled")
        held = Lease.objects.running().filter(shard=shard, job_id=job_id)
        if if_running == "refuse" and held.exists():
            raise JobRunning(current=JobStatus.LEASED)
        if if_running == "ask":
            if asked := rows(REQUEST_CANCEL, params):
                notify(CHANNEL_WORKERS, f"cancel:{asked[0][0]}")
                return CancelOutcome("cancel_requested")
            if held.filter(cancel_requested=True).exists():
                return CancelOutcome("cancel_requested", already=True)
        match Job.objects.filter(shard=shard, pk=job_id).values_list("status", flat=True).first():
            case None:
                raise NotFound
            case JobStatus.CANCELLED:
                return CancelOutcome("cancelled", already=True)
            case JobStatus.SUCCEEDED | JobStatus.DEAD as status:
                raise AlreadyFinished(current=status)
    raise TransitionRefused("The job kept moving while it was being cancelled.", current="moving")


def _acknowledge(guard: str) -> str:
    return LeaseEnd(
        guard=f"{HELD} and {guard}",
        end=JobStatus.CANCELLED,
        kind=EventKind.CANCELLED,
        columns="last_error = coalesce(item -> 'error', job.last_error),",
        detail="item",
    ).sql()


ACKNOWLEDGE = _acknowledge("cancel_requested")
ACKNOWLEDGE_OWN = _acknowledge("true")


@commits
def acknowledge_cancels(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    stopped: Mapping[UUID, Mapping[str, Any]],
    by_handler: bool = False,
    now: datetime | None = None,
) -> set[UUID]:
    """leased → cancelled, for attempts that stopped after a cancel was asked, whatever way they ended.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        stopped: Lease id → {"cancel": "honoured" | "by_handler", "error": … of an attempt that raised}.
        by_handler: Also without a request: the handler itself decided that the job is void.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here.
    """
    return end_leases(
        ACKNOWLEDGE_OWN if by_handler else ACKNOWLEDGE,
        shards=shards,
        items=stopped,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )
