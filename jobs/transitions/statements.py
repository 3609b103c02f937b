"""SQL of every transition that ends a lease: one shape, so that each function states only what is its own.

DELETE Lease under guard → UPDATE Job → DueEntry | DeadLetter | nothing → JobEvent, in one statement. The guard is one
probe of one unique key; everything else is joined from what the DELETE returned. (A generic plan guesses ten rows for
any array, and a second `id = ANY(…)` beside a join turns quadratic.) Details of single rows travel in one JSON object
keyed by lease id, for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import notify, rows
from jobs.states import EventKind, JobStatus
from jobs.telemetry import CHANNEL_DUE
from jobs.transitions.events import insert_event

HELD = (
    "worker = %(worker)s"  # the holder's guard: lease id and worker id, random per process start
)
LAPSED = f"expires_at + %(tolerance)s * interval '1 second' < {NOW_SQL}"

WAITS_AFTER = f"{NOW_SQL} + (item ->> 'delay')::float8 * interval '1 second'"
WAITS_NOW = NOW_SQL

DIES = f""", buried as (
    insert into jobs_deadletter (id, job_id, shard, tenant_id, handler, due_at, reason, error_type, fingerprint,
        message, attempts, died_at)
    select gen_random_uuid(), job_id, shard, tenant_id, handler, due_at, item ->> 'reason',
        left(item -> 'error' ->> 'type', 200), item -> 'error' ->> 'fingerprint', item -> 'error' ->> 'message',
        attempt, {NOW_SQL}
    from moved
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnd:
    """One way a lease ends.

    Attributes:
        guard: SQL condition on jobs_lease, beside its id.
        end: Status of the job afterwards.
        kind: The event.
        waits_until: SQL for the due time of a new due entry, or "" when the job does not wait again.
        columns: Further SQL assignments on the job.
        detail: SQL giving the event's jsonb.
        extra: One more CTE, beginning with a comma.
    """

    guard: str
    end: JobStatus
    kind: EventKind
    waits_until: str = ""
    columns: str = ""
    detail: str = "null::jsonb"
    extra: str = ""

    def sql(self) -> str:
        """The statement; it returns the lease ids that it ended."""
        finished = f"finished_at = {NOW_SQL}," if not self.waits_until else ""
        calendar = ""
        if self.waits_until:
            calendar = f""", calendar as (
    insert into jobs_dueentry (job_id, due_at, shard, route_id, lane_id, priority, tenant_id, concurrency_key)
    select job_id, {self.waits_until}, shard, route_id, lane_id, priority, tenant_id, concurrency_key from moved
)"""
        event = insert_event(
            source="moved",
            kind=self.kind,
            start=JobStatus.LEASED,
            end=self.end,
            lease="lease_id",
            token="token",
            due_at=self.waits_until or "null::timestamptz",
            detail=self.detail,
        )
        return f"""
with ended as (
    delete from jobs_lease
    where shard = any(%(shards)s) and id = any(%(leases)s::uuid[]) and {self.guard}
    returning id as lease_id, job_id, shard, route_id, lane_id, priority, tenant_id, concurrency_key, attempt, token,
        seq + 1 as seq, due_at, worker, expires_at, heartbeat_at, cancel_requested,
        %(items)s::jsonb -> id::text as item
), moved as (
    update jobs_job job set status = '{self.end}', {finished} {self.columns} seq = ended.seq, updated_at = {NOW_SQL}
    from ended
    where job.shard = ended.shard and job.id = ended.job_id and job.status = 'leased'
    returning ended.*, job.handler, job.cancel_reason, job.cancel_requested_by
){calendar}{self.extra}, told as (
    {event}
)
select lease_id, concurrency_key is not null from moved"""


def end_leases(
    sql: str,
    *,
    shards: Sequence[int],
    items: Mapping[UUID, Mapping[str, Any]],
    actor: str,
    now: datetime | None,
    **params: object,
) -> set[UUID]:
    """Run one statement of LeaseEnd over the leases named by `items` and return those that it ended."""
    bound = {
        "shards": list(shards),
        "leases": list(items),
        "items": json.dumps({str(lease): item for lease, item in items.items() if item}),
        "actor": actor,
        "now": now,
        **params,
    }
    ended = rows(sql, bound, hot=True)
    if any(keyed for _, keyed in ended):
        notify(
            CHANNEL_DUE, ""
        )  # a slot of a concurrency key is free: what is parked behind it can go
    return {lease_id for lease_id, _ in ended}


def tell_schedulers(items: Mapping[UUID, Mapping[str, Any]]) -> None:
    """Hint that work comes back before a scheduler would look again by itself; once per batch."""
    if any(item.get("delay", 0.0) < 2.0 for item in items.values()):
        notify(CHANNEL_DUE, "")
