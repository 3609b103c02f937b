"""Whole histories in pages, for the checker: each job's rows and all its events, from one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.database import rows
from jobs.policies.history import Event, Facts, LeaseFacts
from jobs.queries.history import is_remark, stored_json
from jobs.queries.lists import plain_time

# Names of what a page tells of each job, in this order, after its id.
OF_JOB = (
    *("status", "attempt", "attempt_limit", "max_attempts", "lease_token", "seq", "retry"),
    *("cancel_requested", "due_at", "has_due_entry", "open_dead_letters"),
)
OF_LEASE = ("id", "token", "attempt", "worker", "started_at", "expires_at", "cancel_requested")
PAGE = f"""
select job.id, job.status, job.attempt, job.attempt_limit, job.max_attempts, job.lease_token,
    coalesce(lease.seq, job.seq), job.retry::text, job.cancel_requested_at is not null,
    {plain_time("entry.due_at")}, entry.job_id is not null,
    (select count(*) from jobs_deadletter letter
     where letter.shard = job.shard and letter.job_id = job.id and letter.resolution = 'open'),
    lease.id::text, lease.token, lease.attempt, lease.worker::text, {plain_time("lease.started_at")},
    {plain_time("lease.expires_at")}, lease.cancel_requested
from jobs_job job
    left join jobs_dueentry entry on entry.shard = job.shard and entry.job_id = job.id
    left join jobs_lease lease on lease.shard = job.shard and lease.job_id = job.id
where job.shard = any(%(shards)s) and job.id > %(after)s
    and (%(tenant)s::int is null or job.tenant_id = %(tenant)s)
    and (%(handler)s::text is null or job.handler = %(handler)s)
    and (%(since)s::timestamptz is null or job.created_at >= %(since)s)
    and (%(until)s::timestamptz is null or job.created_at < %(until)s)
order by job.id limit %(limit)s"""

EVENTS = f"""
select job_id, seq, {plain_time("at")}, kind, from_status, to_status, attempt, actor, lease::text, token,
    {plain_time("due_at")}, detail::text
from jobs_jobevent where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[]) order by job_id, seq"""

# Rows that refer to a job which does not exist: nothing else would ever look at them.
ORPHANS = """
select 'due entry', entry.job_id from jobs_dueentry entry
    left join jobs_job job on job.shard = entry.shard and job.id = entry.job_id
    where entry.shard = any(%(shards)s) and job.id is null
union all select 'lease', lease.job_id from jobs_lease lease
    left join jobs_job job on job.shard = lease.shard and job.id = lease.job_id
    where lease.shard = any(%(shards)s) and job.id is null
union all select 'dead letter', letter.job_id from jobs_deadletter letter
    left join jobs_job job on job.shard = letter.shard and job.id = letter.job_id
    where letter.shard = any(%(shards)s) and job.id is null
limit 1000"""


class History(NamedTuple):
    """One job as the checker wants it."""

    job_id: UUID
    facts: Facts
    events: list[Event]


def histories(
    *,
    shards: Sequence[int],
    tenant_id: int | None = None,
    handler: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    job_id: UUID | None = None,
    page: int = 1000,
) -> Iterator[History]:
    """Jobs by id, each with its rows and events; call it inside a repeatable-read transaction.

    Args:
        shards: Which shards to read.
        tenant_id: Only this tenant's jobs.
        handler: Only jobs of this handler.
        since: Only jobs created then or later, aware.
        until: Only jobs created before, aware.
        job_id: Only this job.
        page: Jobs per statement.
    """
    after = UUID(int=job_id.int - 1) if job_id else UUID(int=0)
    params = {
        "shards": list(shards),
        "tenant": tenant_id,
        "handler": handler,
        "since": since,
        "until": until,
        "limit": 1 if job_id else page,
    }
    while found := rows(PAGE, {**params, "after": after}):
        after = found[-1][0]
        events = _events(shards, [row[0] for row in found])
        for row in found:
            if job_id in (None, row[0]):
                yield History(row[0], _facts(row[1:]), events.get(row[0], []))
        if job_id or len(found) < page:
            return


def orphans(*, shards: Sequence[int]) -> list[tuple[str, UUID]]:
    """Kind of row and job id of rows whose job is gone, at most 1,000."""
    return [(kind, job_id) for kind, job_id in rows(ORPHANS, {"shards": list(shards)})]


def _events(shards: Sequence[int], job_ids: list[UUID]) -> dict[UUID, list[Event]]:
    found: dict[UUID, list[Event]] = {}
    for row in rows(EVENTS, {"shards": list(shards), "jobs": job_ids}):
        detail = {} if row[11] is None else stored_json(row[11])
        readable = isinstance(detail, dict) and not is_remark(detail)
        found.setdefault(row[0], []).append(
            Event(
                seq=row[1],
                at=row[2],
                kind=row[3],
                from_status=row[4],
                to_status=row[5],
                attempt=row[6],
                actor=row[7],
                lease=row[8],
                token=row[9],
                due_at=row[10],
                detail=detail if readable else {},
                detail_lost=not readable,
            )
        )
    return found


def _facts(values: Sequence[Any]) -> Facts:
    job = dict(zip(OF_JOB, values, strict=False))
    lease = dict(zip(OF_LEASE, values[len(OF_JOB) :], strict=True))
    return Facts(
        **{**job, "retry": stored_json(job["retry"])},
        lease=None if lease["id"] is None else LeaseFacts(**lease),
    )
