"""How an attempt that its holder reports ends: complete, retry, snooze, dead letter. Batches, one statement each.

Every function: the winner is whoever deletes the lease. The holder presents lease id and worker id; ids that are not
in the answer were lost to an expiry, a cancel or an earlier report of the same attempt, and nothing changed for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import atomically, commits, rows
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import COLUMNS, worker_actor
from jobs.transitions.statements import (
    DIES,
    HELD,
    WAITS_AFTER,
    LeaseEnd,
    end_leases,
    tell_schedulers,
)

COMPLETE = LeaseEnd(
    guard=HELD,
    end=JobStatus.SUCCEEDED,
    kind=EventKind.SUCCEEDED,
    columns="result = item -> 'result',",
    detail="""case when cancel_requested then '{"cancel": "too_late"}'::jsonb end""",
).sql()

RETRY = LeaseEnd(
    guard=f"{HELD} and not cancel_requested",
    end=JobStatus.SCHEDULED,
    kind=EventKind.FAILED,
    waits_until=WAITS_AFTER,
    columns="last_error = item -> 'error',",
    detail="item",
).sql()

DEAD_LETTER = LeaseEnd(
    guard=f"{HELD} and not cancel_requested",
    end=JobStatus.DEAD,
    kind=EventKind.DEAD,
    columns="last_error = item -> 'error',",
    detail="item",
    extra=DIES,
).sql()

SNOOZE = LeaseEnd(
    guard=f"{HELD} and not cancel_requested",
    end=JobStatus.SCHEDULED,
    kind=EventKind.SNOOZED,
    waits_until=WAITS_AFTER,
    columns="attempt_limit = job.attempt_limit + 1,",
    detail="item",
).sql()


@commits
def complete_jobs(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    results: Mapping[UUID, object],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → succeeded, for leases that the worker still holds. A cancel asked meanwhile came too late.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        results: Lease id → cleaned JSON result, or None.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here.

    Source: design, "completion is a separate write".
    """
    items: dict[UUID, dict[str, Any]] = {
        lease: {} if result is None else {"result": result} for lease, result in results.items()
    }
    return end_leases(
        COMPLETE,
        shards=shards,
        items=items,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )


@commits
def retry_jobs(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    failures: Mapping[UUID, Mapping[str, Any]],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → scheduled again after a failed attempt, unless a cancel was asked.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        failures: Lease id → {"delay": seconds from now, "cause": why, "error": {"type", "message", …}}.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here; one with a cancel asked is not among them.
    """
    ended = end_leases(
        RETRY,
        shards=shards,
        items=failures,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )
    tell_schedulers(failures)
    return ended


@commits
def dead_letter_jobs(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    failures: Mapping[UUID, Mapping[str, Any]],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → dead, with an open dead letter, unless a cancel was asked.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        failures: Lease id → {"reason": attempts_exhausted | permanent_error, "cause", "error": {"type", "message",
            "fingerprint", …}}.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here; one with a cancel asked is not among them.
    """
    return end_leases(
        DEAD_LETTER,
        shards=shards,
        items=failures,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )


@commits
def snooze_jobs(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    snoozes: Mapping[UUID, Mapping[str, Any]],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → scheduled later at the handler's wish; the attempt is refunded (numbers only grow).

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        snoozes: Lease id → {"delay": seconds from now, "reason": text}.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here; one with a cancel asked is not among them.
    """
    ended = end_leases(
        SNOOZE,
        shards=shards,
        items=snoozes,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )
    tell_schedulers(snoozes)
    return ended


ENDED_BY_HOLDER = """
select exists(select 1 from jobs_jobevent
    where shard = %(shard)s and job_id = %(job)s and lease = %(lease)s and actor = %(actor)s
        and kind in ('succeeded', 'failed', 'dead', 'snoozed', 'released', 'cancelled'))"""

# The event number is counted where the job is: on its lease while one exists, otherwise on the job.
COUNT_ON_LEASE = """
update jobs_lease set seq = seq + 1 where shard = %(shard)s and job_id = %(job)s
returning seq, token, id, attempt, tenant_id, 'leased'"""
COUNT_ON_JOB = """
update jobs_job set seq = seq + 1 where shard = %(shard)s and id = %(job)s and status <> 'leased'
returning seq, lease_token, null::uuid, attempt, tenant_id, status"""
_REJECTED = EventKind.COMPLETION_REJECTED
REJECTED = f"""
with refused as (select %(shard)s::smallint as shard, %(job)s::uuid as job_id, %(seq)s::int as seq,
    %(tenant)s::int as tenant_id, %(attempt)s::int as attempt)
insert into jobs_jobevent ({COLUMNS})
select uuid_hash_extended(job_id, seq), shard, job_id, seq, tenant_id, {NOW_SQL}, '{_REJECTED}', %(status)s,
    %(status)s, attempt, %(actor)s, %(lease)s, %(token)s, null, %(detail)s::jsonb
from refused returning true"""


@atomically
def reject_completion(
    *,
    shard: int,
    job_id: UUID,
    lease_id: UUID,
    token: int,
    worker_id: UUID,
    reported: str,
    now: datetime | None = None,
) -> bool:
    """Record that a report came too late; the job itself does not change.

    Args:
        shard: Of the job.
        job_id: The job the attempt belonged to.
        lease_id: The lease the worker presented, which is gone.
        token: The fencing token of that attempt.
        worker_id: Who reported.
        reported: What it reported, such as "succeeded".
        now: Aware UTC; default is the database clock.

    Returns:
        True if an event with both tokens was written; False if this very report had already been accepted (a worker
        resends after a dropped connection) or the job no longer exists.
    """
    params: dict[str, Any] = {
        "shard": shard,
        "job": job_id,
        "lease": lease_id,
        "token": token,
        "actor": worker_actor(worker_id),
        "now": now,
    }
    if rows(ENDED_BY_HOLDER, params)[0][0]:
        return False
    # The job may move between the two places while this looks; a few turns settle it.
    for count in (COUNT_ON_LEASE, COUNT_ON_JOB) * 5:
        found = rows(count, params)
        if found:
            seq, current_token, current_lease, attempt, tenant_id, status = found[0]
            break
    else:
        return False
    detail = {
        "reported": reported,
        "current_token": current_token,
        "current_lease": str(current_lease) if current_lease else None,
    }
    return bool(
        rows(
            REJECTED,
            {
                **params,
                "seq": seq,
                "attempt": attempt,
                "tenant": tenant_id,
                "status": status,
                "detail": json.dumps(detail),
            },
        )
    )
