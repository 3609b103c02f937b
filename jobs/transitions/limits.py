"""Limits that hold inside the claim's own transaction: jobs running, starts per second, slots of a concurrency key.

Each is decided under a lock of its scope (the row of the tenant, the row of the bucket), taken in one order by
everybody, so that two schedulers cannot both give away the last place. What is not admitted stays where it is; what waits for its key is parked until a slot is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import rows

PARK_PAGE = 1000


class Rate(NamedTuple):
    """A token bucket: starts per second, and how many may come at once after a quiet time."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that bind in one batch.

    Attributes:
        running: Tenant id → most leases.
        rates: Bucket → its rate; buckets are named "tenant:7" and "handler:mail.send".
        tenants: Job → tenant, for jobs of tenants in `running` and for those in `keyed`.
        buckets: Job → buckets it needs a token of.
        keyed: Jobs with a concurrency key.
    """

    running: dict[int, int] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    tenants: dict[UUID, int] = field(default_factory=dict)
    buckets: dict[UUID, tuple[str, ...]] = field(default_factory=dict)
    keyed: frozenset[UUID] = frozenset()


class Admitted(NamedTuple):
    """Who may go on: ids in the order given, the slot of each keyed one, and (tenant, key) pairs without a free slot."""

    job_ids: list[UUID]
    slots: dict[UUID, int]
    full_keys: set[tuple[int, str]]


def admit(
    job_ids: Sequence[UUID], limits: Limits, *, shards: Sequence[int], now: datetime | None
) -> Admitted:
    """Which of these locked due entries keep within the limits. Inside the claim's transaction only.

    Args:
        job_ids: Locked entries in claim order: the first ones are admitted.
        limits: Limits of their tenants, handlers and keys.
        shards: Shards of the entries.
        now: Aware UTC; default is the database clock.
    """
    if tenants := sorted({limits.tenants[job] for job in job_ids if job in limits.tenants}):
        rows(
            LOCK_TENANTS, {"tenants": tenants}
        )  # until the commit: the next one counts what this one took
    admitted = _within_running(job_ids, limits)
    keyed = [job_id for job_id in admitted if job_id in limits.keyed]
    slots, full = _key_slots(keyed, shards) if keyed else ({}, {})
    if full:
        one_each = {key: job_id for job_id, key in full.items()}
        rows(PARK, {"shards": list(shards), "jobs": list(one_each.values())})
        admitted = [job_id for job_id in admitted if job_id not in full]
    # Last: a token that is taken is spent, and the others can still refuse until then.
    admitted = _within_rates(admitted, limits, now)
    left = set(admitted)
    return Admitted(
        admitted, {job: slot for job, slot in slots.items() if job in left}, set(full.values())
    )


LOCK_TENANTS = """
select id from jobs_tenant where id = any(%(tenants)s) order by id for no key update"""
RUNNING = """
select tenant_id, count(*) from jobs_lease where shard = any(%(everywhere)s) and tenant_id = any(%(tenants)s)
group by tenant_id"""


def _within_running(job_ids: Sequence[UUID], limits: Limits) -> list[UUID]:
    needs = {job: (tenant,) for job, tenant in limits.tenants.items() if tenant in limits.running}
    tenants = sorted({tenant for job in job_ids for tenant in needs.get(job, ())})
    if not tenants:
        return list(job_ids)
    # A statement of its own: it sees what others committed while this one waited for the lock.
    held = dict(rows(RUNNING, {"tenants": tenants, "everywhere": everywhere()}))
    left = {tenant: limits.running[tenant] - held.get(tenant, 0) for tenant in tenants}
    return _first(job_ids, left, needs)


def _first[K](
    job_ids: Sequence[UUID], left: dict[K, int], needs: Mapping[UUID, Iterable[K]]
) -> list[UUID]:
    """The first jobs whose every need is still there; each takes one of it."""
    admitted = []
    for job_id in job_ids:
        needed = tuple(needs.get(job_id, ()))
        if all(left[one] > 0 for one in needed):
            for one in needed:
                left[one] -= 1
            admitted.append(job_id)
    return admitted


KEY_SLOTS = """
select entry.job_id, entry.tenant_id, entry.concurrency_key, coalesce(own.slots, 1),
    array(select concurrency_slot from jobs_lease lease
        where lease.shard = any(%(everywhere)s) and lease.tenant_id = entry.tenant_id
            and lease.concurrency_key = entry.concurrency_key)
from jobs_dueentry entry left join jobs_concurrencylimit own
    on own.tenant_id = entry.tenant_id and own.key = entry.concurrency_key
where entry.shard = any(%(shards)s) and entry.job_id = any(%(jobs)s::uuid[]) and entry.concurrency_key is not null"""
# With each of them a page of what waits behind it in its group: one by one they would fill batch after batch.
PARK = f"""
with waiting as (
    select behind.shard, behind.job_id from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
        select route_id, lane_id, priority, tenant_id, concurrency_key from jobs_dueentry entry
        where entry.shard = mine.shard and entry.job_id = any(%(jobs)s::uuid[])) first cross join lateral (
        select shard, job_id from jobs_dueentry other
        where other.shard = mine.shard and other.route_id = first.route_id and other.lane_id = first.lane_id
            and other.priority = first.priority and other.tenant_id = first.tenant_id and not other.parked
            and other.concurrency_key = first.concurrency_key
        order by other.due_at limit {PARK_PAGE} for update skip locked) behind
)
update jobs_dueentry entry set parked = true from waiting
where entry.shard = waiting.shard and entry.job_id = waiting.job_id returning entry.job_id"""


def _key_slots(
    job_ids: Sequence[UUID], shards: Sequence[int]
) -> tuple[dict[UUID, int], dict[UUID, tuple[int, str]]]:
    """Slots for those that find one, and the keys of those that do not."""
    params = {"shards": list(shards), "jobs": list(job_ids)}
    held = rows(KEY_SLOTS, {**params, "everywhere": everywhere()})
    found = {row[0]: row[1:] for row in held}
    free: dict[tuple[int, str], list[int]] = {}
    slots: dict[UUID, int] = {}
    full: dict[UUID, tuple[int, str]] = {}
    for job_id in job_ids:
        if job_id not in found:
            continue
        tenant_id, text, limit, taken = found[job_id]
        key = tenant_id, text
        if key not in free:
            free[key] = sorted(set(range(limit)) - set(taken), reverse=True)
        if free[key]:
            slots[job_id] = free[key].pop()
        else:
            full[job_id] = key
    return slots, full


# A bucket that is missing begins full. Held until the commit: the next one sees what is left.
FILL = f"""
insert into jobs_startbucket as bucket (scope, tokens, filled_at)
select scope, burst, {NOW_SQL}
from unnest(%(scopes)s::text[], %(rates)s::float8[], %(bursts)s::float8[]) as own(scope, rate, burst)
order by scope
on conflict (scope) do update set filled_at = greatest(bucket.filled_at, excluded.filled_at),
    tokens = least(excluded.tokens, bucket.tokens + greatest(0, extract(epoch from excluded.filled_at - bucket.filled_at))
        * (select rate from unnest(%(scopes)s::text[], %(rates)s::float8[]) as own(name, rate)
            where name = bucket.scope))
returning scope, tokens"""
SPEND = """
update jobs_startbucket bucket set tokens = bucket.tokens - spent
from unnest(%(scopes)s::text[], %(spent)s::float8[]) as own(name, spent) where bucket.scope = name returning scope"""


def _within_rates(job_ids: Sequence[UUID], limits: Limits, now: datetime | None) -> list[UUID]:
    scopes = sorted({scope for job in job_ids for scope in limits.buckets.get(job, ())})
    if not scopes:
        return list(job_ids)
    rates = [limits.rates[scope] for scope in scopes]
    filled = rows(
        FILL,
        {
            "scopes": scopes,
            "rates": [float(rate.per_second) for rate in rates],
            "bursts": [float(rate.burst) for rate in rates],
            "now": now,
        },
    )
    before = {scope: int(tokens) for scope, tokens in filled}
    left = dict(before)
    admitted = _first(job_ids, left, limits.buckets)
    spent = [float(before[scope] - left[scope]) for scope in scopes]
    rows(SPEND, {"scopes": scopes, "spent": spent})
    return admitted


def everywhere() -> list[int]:
    """All shards: a tenant that is spread has leases in several, of several schedulers."""
    return list(range(conf().shards))
