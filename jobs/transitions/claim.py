"""claim + publish: scheduled → leased, for due entries that this scheduler locked first."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, notify, rows
from jobs.models import DueEntry, Pool
from jobs.states import EventKind, JobStatus
from jobs.transitions.events import insert_event
from jobs.transitions.limits import Admitted, Limits, admit

log = logging.getLogger(__name__)
NOBODY = UUID(int=0)

_TOLD = insert_event(
    source="moved left join lanes using (lane_id)",
    kind=EventKind.LEASED,
    start=JobStatus.SCHEDULED,
    end=JobStatus.LEASED,
    lease="lease_id",
    token="token",
    due_at="due_at",
    detail="coalesce(told, jsonb_build_object('pool', %(pool_name)s::text)) || coalesce(item -> 'told', '{}')",
)
# Moves exactly the locked ids. The lane only adds to the row: a job whose lane was deleted must not end up leased
# without a lease. Lease keys are random per claim: a hash of the job and a nonce drawn for this batch, several times
# cheaper than asking the server for randomness once per row. The commit need not wait for the disk: a take, whose commit
# does, comes after it in the same log, and a claim that a crash has undone was nobody's.
PUBLISH = f"""
with lanes as materialized (
    select id as lane_id, head_start_seconds, jsonb_build_object('pool', %(pool_name)s::text, 'lane', name) as told
    from jobs_lane
), taken as (
    delete from jobs_dueentry where shard = any(%(shards)s) and job_id = any(%(jobs)s::uuid[])
    returning job_id, shard, route_id, lane_id, priority, tenant_id, due_at, concurrency_key
), moved as (
    update jobs_job job set status = 'leased', attempt = job.attempt + 1, seq = job.seq + 1,
        lease_token = job.lease_token + 1, updated_at = {NOW_SQL}
    from taken
    where job.shard = taken.shard and job.id = taken.job_id and job.status = 'scheduled'
    returning taken.*, job.attempt, job.seq, job.lease_token as token,
        md5(%(nonce)s || job.id::text)::uuid as lease_id, %(items)s::jsonb -> job.id::text as item
), published as (
    insert into jobs_lease (id, job_id, token, attempt, seq, shard, route_id, pool_id, lane_id, priority, rank,
        due_at, tenant_id, published_at, expires_at, concurrency_key, concurrency_slot)
    select lease_id, job_id, token, attempt, seq, shard, route_id, %(pool)s, lane_id, priority,
        due_at - (coalesce(head_start_seconds, 0) + priority + coalesce((item ->> 'ahead')::float8, 0)) * interval '1 second',
        due_at, tenant_id, {NOW_SQL}, {NOW_SQL} + %(ttl)s * interval '1 second', concurrency_key,
        case when concurrency_key is not null then (item ->> 'slot')::smallint end
    from moved left join lanes using (lane_id)
), told as (
    {_TOLD}
)
select count(*), set_config('synchronous_commit', 'off', true) from moved"""


class Claimed(NamedTuple):
    """How many jobs one batch published, and how many of its candidates went to somebody else.

    `refused` were within nobody's limits any more, `full_keys` are the (tenant, concurrency key) pairs among them.
    """

    published: int
    lost: int
    refused: int = 0
    full_keys: frozenset[tuple[int, str]] = frozenset()


@atomically
def claim_batch(
    *,
    shards: Sequence[int],
    job_ids: Sequence[UUID],
    pool: Pool,
    actor: str,
    items: Mapping[UUID, Mapping[str, Any]] | None = None,
    limits: Limits | None = None,
    now: datetime | None = None,
) -> Claimed:
    """scheduled → leased, for candidates that are still due, that nobody else holds, and that keep within the limits.

    The winner is whoever locks the due entry; a loser skips the row and writes nothing.

    Args:
        shards: Shards of this scheduler.
        job_ids: Candidates in claim order, at most one batch; a row outside `shards` or not yet due is left alone.
        pool: Where the leases are published; the caller checked labels.
        actor: The scheduler, for history.
        items: Job → {"told": further detail of its event, "ahead": seconds by which its lease is taken earlier}.
        limits: Those that bind here.
        now: Aware UTC; default is the database clock.

    Returns:
        Counts; losing a race is normal here and no error.
    """
    locked = _lock(shards, job_ids, now)
    if not locked:
        return Claimed(0, len(job_ids))
    lost = len(job_ids) - len(locked)
    admitted = Admitted(locked, {}, set())
    if limits is not None:
        order = {job_id: place for place, job_id in enumerate(job_ids)}
        locked.sort(key=order.__getitem__)
        admitted = admit(locked, limits, shards=shards, now=now)
    refused, full_keys = len(locked) - len(admitted.job_ids), frozenset(admitted.full_keys)
    if not admitted.job_ids:
        return Claimed(0, lost, refused, full_keys)
    params = {
        "shards": list(shards),
        "jobs": admitted.job_ids,
        "items": _items(items or {}, admitted.slots),
        "nonce": secrets.token_hex(16),
        "pool": pool.pk,
        "pool_name": pool.name,
        "ttl": conf().publish_ttl_seconds,
        "actor": actor,
        "now": now,
    }
    ((published, _),) = rows(PUBLISH, params, hot=True)
    if published < len(admitted.job_ids):
        # Entries of jobs that are gone or do not wait were taken out of the calendar, where they would come up for ever.
        log.error(
            telemetry.CLAIM_MISMATCH,
            extra={"locked": len(admitted.job_ids), "published": published},
        )
    if published:
        notify(telemetry.CHANNEL_WORKERS, f"pool:{pool.pk}")
    return Claimed(published, lost + len(admitted.job_ids) - published, refused, full_keys)


def _items(items: Mapping[UUID, Mapping[str, Any]], slots: Mapping[UUID, int]) -> str:
    if not items and not slots:
        return "{}"
    both: dict[str, dict[str, Any]] = {str(job_id): dict(item) for job_id, item in items.items()}
    for job_id, slot in slots.items():
        both.setdefault(str(job_id), {})["slot"] = slot
    return json.dumps(both)


def _lock(shards: Sequence[int], job_ids: Sequence[UUID], now: datetime | None) -> list[UUID]:
    """Due entries that are ours from here to the commit.

    A step of its own: a limited sub-select inside the move can change more rows than it chose.
    """
    given = [] if now is None else [now, now]
    params = [list(shards), *given, list(job_ids)]
    return [job_id for (job_id,) in rows(_lock_sql(given_time=now is not None), params, hot=True)]


@cache
def _lock_sql(*, given_time: bool) -> str:
    """The lock with placeholders for shards, time if one is given, and ids: making it takes the ORM milliseconds."""
    entries = DueEntry.objects.in_shards([0]).claimable(datetime.now(UTC) if given_time else None)
    locked = entries.filter(pk__any=[NOBODY]).select_for_update(skip_locked=True, of=("self",))
    sql, _ = locked.order_by("job_id").values_list("job_id").query.sql_with_params()
    return str(sql)
