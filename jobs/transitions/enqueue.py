"""create: nothing → scheduled, one or many, in one statement. The request key decides "same job"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from string import Template
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import commits, notify, rows
from jobs.states import EventKind, JobStatus
from jobs.telemetry import CHANNEL_DUE
from jobs.transitions.events import insert_event


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A validated request with every default resolved. `due_at` or `delay_seconds`; neither means now."""

    id: UUID
    shard: int
    tenant_id: int
    handler: str
    route_id: int
    lane_id: int
    priority: int = 0
    payload: Any = None
    payload_ref: str | None = None
    due_at: datetime | None = None
    delay_seconds: float = 0.0
    max_attempts: int
    retry: dict[str, Any]
    timeout_seconds: float
    request_key: str | None = None
    request_hash: bytes | None = None
    reference: str = ""
    tags: tuple[str, ...] = ()
    concurrency_key: str | None = None
    schedule_id: UUID | None = None
    fire_at: datetime | None = None
    misfire_at: datetime | None = None
    created_by: str = ""


# One JSON parameter carries the whole batch. Rows go in by request key, so that two clients creating the same
# keys in opposite order wait for each other instead of deadlocking. Only jobs of schedules can miss their time; the
# others pay nothing for it.
_CREATE = Template(
    f"""
with wanted as (
    select * from jsonb_to_recordset(%(jobs)s::jsonb) as wanted(
        id uuid, shard smallint, tenant_id int, handler text, route_id int, lane_id smallint, priority smallint,
        payload jsonb, payload_ref text, due_at timestamptz, delay_seconds float8, max_attempts smallint,
        retry jsonb, timeout_seconds float8, request_key text, request_hash text, reference text, tags jsonb,
        concurrency_key text, schedule_id uuid, fire_at timestamptz, misfire_at timestamptz, created_by text)
), made as (
    insert into jobs_job (id, shard, tenant_id, handler, route_id, lane_id, priority, payload, payload_ref,
        due_at, max_attempts, attempt_limit, retry, timeout_seconds, request_key, request_hash,
        reference, tags, concurrency_key, schedule_id, fire_at, created_by, created_at, updated_at)
    select id, shard, tenant_id, handler, route_id, lane_id, priority, payload, payload_ref,
        coalesce(due_at, {NOW_SQL} + delay_seconds * interval '1 second'), max_attempts, max_attempts, retry,
        timeout_seconds, request_key, decode(request_hash, 'hex'), reference, tags, concurrency_key, schedule_id,
        fire_at, created_by, {NOW_SQL}, {NOW_SQL}
    from wanted order by tenant_id, request_key, id
    on conflict (shard, tenant_id, request_key) where request_key is not null do nothing
    returning id as job_id, shard, tenant_id, route_id, lane_id, priority, due_at, concurrency_key, attempt, seq
), calendar as (
    insert into jobs_dueentry (job_id, due_at, shard, route_id, lane_id, priority, tenant_id, concurrency_key$column)
    select job_id, made.due_at, made.shard, made.route_id, made.lane_id, made.priority, made.tenant_id,
        made.concurrency_key$column
    from $source
), told as (
    {insert_event(source="made", kind=EventKind.CREATED, start=None, end=JobStatus.SCHEDULED, due_at="due_at")}
)
select job_id, due_at <= {NOW_SQL} + interval '2 seconds' from made"""
)
CREATE = _CREATE.substitute(column="", source="made")
CREATE_OF_SCHEDULES = _CREATE.substitute(
    column=", misfire_at", source="made join wanted on wanted.id = job_id"
)


@commits
def create_jobs(jobs: Sequence[NewJob], *, actor: str, now: datetime | None = None) -> set[UUID]:
    """nothing → scheduled for every job whose request key is unused.

    Joins the caller's transaction, so a job exists exactly if the caller's own writes do.
    A key that another transaction is just inserting makes this one wait for its commit.

    Args:
        jobs: The batch; ids are made by the caller and carry the shard.
        actor: Who asked, for history.
        now: Aware UTC; default is the database clock. `delay_seconds` counts from it.

    Returns:
        Ids that were created. A missing id lost to an earlier job with its request key; nothing was written for it.

    Source: design, "no lost work": Job, DueEntry and the event commit together.
    """
    create = CREATE_OF_SCHEDULES if any(job.misfire_at for job in jobs) else CREATE
    created = rows(create, {"jobs": _recordset(jobs), "actor": actor, "now": now}, hot=True)
    if any(soon for _, soon in created):
        notify(CHANNEL_DUE, "")
    return {job_id for job_id, _ in created}


def _recordset(jobs: Sequence[NewJob]) -> str:
    def plain(value: object) -> str:
        return value.hex() if isinstance(value, bytes) else str(value)

    # asdict would copy payloads deeply; they are only read here.
    return json.dumps(
        [{name: getattr(job, name) for name in NewJob.__slots__} for job in jobs],
        default=plain,
        ensure_ascii=False,
        allow_nan=False,
    )
