"""Keeping, giving back and losing a lease: extend, release, expire."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import commits, rows
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import worker_actor
from jobs.transitions.statements import (
    DIES,
    HELD,
    LAPSED,
    WAITS_AFTER,
    WAITS_NOW,
    LeaseEnd,
    end_leases,
    tell_schedulers,
)

# Only unindexed columns change, so a heartbeat is a HOT update.
EXTEND = f"""
update jobs_lease set heartbeat_at = {NOW_SQL}, expires_at = {NOW_SQL} + %(ttl)s * interval '1 second',
    progress = coalesce(%(progress)s::jsonb -> id::text, progress)
where shard = any(%(shards)s) and id = any(%(leases)s::uuid[]) and worker = %(worker)s
returning id, cancel_requested"""

RELEASE = LeaseEnd(
    guard=f"{HELD} and not cancel_requested",
    end=JobStatus.SCHEDULED,
    kind=EventKind.RELEASED,
    waits_until=WAITS_NOW,
    columns="attempt_limit = job.attempt_limit + 1,",
    detail="item",
).sql()

EXPIRE_PUBLISHED = LeaseEnd(
    guard=f"worker is null and {LAPSED}",
    end=JobStatus.SCHEDULED,
    kind=EventKind.PUBLISH_EXPIRED,
    waits_until=WAITS_NOW,
    columns="attempt_limit = job.attempt_limit + 1,",
    detail="jsonb_build_object('expires_at', expires_at)",
).sql()

# What a lost worker leaves behind for the reader: when it was last heard, and which process it was.
LOST = """item || jsonb_build_object('worker', worker, 'expires_at', expires_at, 'heartbeat_at', heartbeat_at)"""

EXPIRE_TO_RETRY = LeaseEnd(
    guard=f"worker is not null and not cancel_requested and {LAPSED}",
    end=JobStatus.SCHEDULED,
    kind=EventKind.FAILED,
    waits_until=WAITS_AFTER,
    columns="last_error = item -> 'error',",
    detail=LOST,
).sql()

EXPIRE_TO_DEAD = LeaseEnd(
    guard=f"worker is not null and not cancel_requested and {LAPSED}",
    end=JobStatus.DEAD,
    kind=EventKind.DEAD,
    columns="last_error = item -> 'error',",
    detail=LOST,
    extra=DIES,
).sql()

EXPIRE_TO_CANCELLED = LeaseEnd(
    guard=f"worker is not null and cancel_requested and {LAPSED}",
    end=JobStatus.CANCELLED,
    kind=EventKind.CANCELLED,
    columns="last_error = item -> 'error',",
    detail=f"""{LOST} || '{{"cancel": "lease_lost"}}'::jsonb""",
).sql()


@commits
def extend_leases(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    lease_ids: Sequence[UUID],
    progress: Mapping[UUID, object] | None = None,
    now: datetime | None = None,
) -> dict[UUID, bool]:
    """leased stays leased until now + ttl, for leases that the worker still holds. One statement per heartbeat.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        lease_ids: What it believes to hold.
        progress: Lease id → last progress to store; others keep theirs.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease id → whether a cancel was asked. A lease that is missing is lost: the worker stops that attempt.
    """
    stored = {str(lease): value for lease, value in (progress or {}).items()}
    params = {
        "shards": list(shards),
        "worker": worker_id,
        "leases": list(lease_ids),
        "progress": json.dumps(stored),
        "ttl": conf().lease_ttl_seconds,
        "now": now,
    }
    return dict(rows(EXTEND, params, hot=True))


@commits
def release_jobs(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    reasons: Mapping[UUID, Mapping[str, Any]],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → scheduled now, given back unfinished; the attempt is refunded.

    Only for a handler that has not begun, or has provably ended.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        reasons: Lease id → {"reason": text}.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here; one with a cancel asked is not among them.
    """
    ended = end_leases(
        RELEASE,
        shards=shards,
        items=reasons,
        actor=worker_actor(worker_id),
        now=now,
        worker=worker_id,
    )
    tell_schedulers(reasons)
    return ended


@commits
def expire_published(
    *,
    shards: Sequence[int],
    lease_ids: Sequence[UUID],
    actor: str,
    now: datetime | None = None,
) -> set[UUID]:
    """leased → scheduled now, for published work that no worker took in time. The attempt is refunded.

    Args:
        shards: Shards of the leases.
        lease_ids: Candidates; the guard decides with the database clock and the tolerance.
        actor: The scheduler.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here.
    """
    return end_leases(
        EXPIRE_PUBLISHED,
        shards=shards,
        items={lease_id: {} for lease_id in lease_ids},
        actor=actor,
        now=now,
        tolerance=conf().clock_tolerance_seconds,
    )


@commits
def expire_started(
    *,
    shards: Sequence[int],
    actor: str,
    retries: Mapping[UUID, Mapping[str, Any]],
    deaths: Mapping[UUID, Mapping[str, Any]],
    now: datetime | None = None,
) -> set[UUID]:
    """leased → scheduled, dead or (a cancel was asked) cancelled, for leases whose worker went silent.

    Counts as a failed attempt: the handler may have done its work. A cancel that was asked wins over both plans.

    Args:
        shards: Shards of the leases.
        actor: The scheduler.
        retries: Lease id → {"delay", "cause", "error"} where budget is left.
        deaths: Lease id → {"reason", "cause", "error"} where it is spent.
        now: Aware UTC; default is the database clock.

    Returns:
        Lease ids that ended here. A heartbeat or report that committed first keeps its lease.
    """
    ended: set[UUID] = set()
    plans = (
        (EXPIRE_TO_RETRY, retries),
        (EXPIRE_TO_DEAD, deaths),
        (EXPIRE_TO_CANCELLED, {**retries, **deaths}),
    )
    for sql, items in plans:
        if items:
            ended |= end_leases(
                sql,
                shards=shards,
                items=items,
                actor=actor,
                now=now,
                tolerance=conf().clock_tolerance_seconds,
            )
    return ended
