"""Who is alive, and how busy each pool is: the numbers a scheduler publishes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import rows
from jobs.queries.history import stored_json


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool with at least one live worker that takes work.

    Attributes:
        pool_id: The pool.
        free_slots: Of those workers. What a dead or draining worker still holds takes none of them, nor does what one
            holds beyond its own slots.
        handlers: Names that at least one of them knows.
        published: Leases waiting for a worker.
        slots: Of those workers, all of them.
        read_at: Seconds since 1970 by the database, when this was read.
    """

    pool_id: int
    free_slots: int
    handlers: frozenset[str]
    published: int
    slots: int = 0
    read_at: float = 0.0


# One round trip, for it stands before every claim.
LOADS = f"""
with held as (
    select pool_id, worker, count(*) from jobs_lease where shard = any(%(shards)s) group by pool_id, worker
)
select alive.pool_id, greatest(0, alive.slots - coalesce(own.count, 0)), alive.handlers::text,
    coalesce(published.count, 0), alive.slots, extract(epoch from {NOW_SQL})::float8
from jobs_worker alive
    left join held own on own.worker = alive.id
    left join held published on published.pool_id = alive.pool_id and published.worker is null
where alive.state = 'running' and alive.last_seen_at >= {NOW_SQL} - %(timeout)s * interval '1 second'
order by alive.pool_id"""


def worker_timeout_seconds() -> float:
    """How long a worker may be silent before it no longer counts as alive."""
    return conf().lease_ttl_seconds + conf().clock_tolerance_seconds


def pool_loads(*, shards: Sequence[int], now: datetime | None = None) -> list[PoolLoad]:
    """Load of every pool that has a live worker, by pool id.

    Args:
        shards: Whose leases count; name all of them, for other schedulers publish to the same pools.
        now: Aware UTC; default is the database clock.
    """
    params = {
        "shards": list(shards),
        "timeout": worker_timeout_seconds(),
        "now": now,
    }
    loads: list[PoolLoad] = []
    for pool_id, workers in groupby(rows(LOADS, params, hot=True), itemgetter(0)):
        _, free, handlers, published, slots, read_at = zip(*workers, strict=True)
        known = frozenset[str]().union(*map(_names, handlers))
        loads.append(PoolLoad(pool_id, sum(free), known, published[0], sum(slots), read_at[0]))
    return loads


@lru_cache(maxsize=1024)
def _names(handlers: str) -> frozenset[str]:
    """What a worker knows. A row broken by hand knows nothing; it must not keep the others from being counted."""
    known = stored_json(handlers)
    names = known if isinstance(known, list) else []
    return frozenset(name for name in names if isinstance(name, str))


HELD = """
select pool_id, lane_id, tenant_id, shard = any(%(mine)s), count(*) from jobs_lease where shard = any(%(shards)s)
group by 1, 2, 3, 4"""


class Held(NamedTuple):
    """Leases, published and running, of one tenant in one lane of one pool.

    `mine`: in shards of the scheduler that asks.
    """

    pool_id: int
    lane_id: int
    tenant_id: int
    mine: bool
    leases: int


def held_leases(*, shards: Sequence[int], mine: Sequence[int]) -> list[Held]:
    """Who holds how much now.

    Args:
        shards: Whose leases count; name all of them.
        mine: Shards of this scheduler.
    """
    params = {"shards": list(shards), "mine": list(mine)}
    return [Held(*row) for row in rows(HELD, params, hot=True)]


DEMANDS = f"""
select id, demand::text from jobs_schedulernode where id <> %(me)s and demand is not null and expires_at > {NOW_SQL}"""


def demands_of_others(*, me: UUID, now: datetime | None = None) -> dict[UUID, object]:
    """Other live scheduler → what it says of its shards and its work, as it wrote it.

    Args:
        me: The scheduler that asks.
        now: Aware UTC; default is the database clock.
    """
    found = rows(DEMANDS, {"me": me, "now": now}, hot=True)
    return {scheduler: stored_json(text) for scheduler, text in found}


TOKENS = f"""
select scope, tokens, greatest(0, extract(epoch from {NOW_SQL} - filled_at))::float8
from jobs_startbucket where scope = any(%(scopes)s::text[])"""


def start_tokens(
    rates: Mapping[str, tuple[float, int]], *, now: datetime | None = None
) -> dict[str, int]:
    """Bucket → whole tokens in it now; a hint, for the claim spends them.

    Args:
        rates: Bucket → (starts per second, burst).
        now: Aware UTC; default is the database clock.
    """
    found = {
        scope: min(float(rates[scope][1]), tokens + rates[scope][0] * age)
        for scope, tokens, age in rows(TOKENS, {"scopes": list(rates), "now": now})
    }
    return {scope: int(found.get(scope, burst)) for scope, (_, burst) in rates.items()}


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A lease that may have to be taken back; the guard of the transition decides.

    Attributes:
        lease_id: Its key.
        started: A worker had taken it.
        attempt: Number of the attempt.
        attempt_limit: Budget in force.
        handler: Name, for the fingerprint of a dead letter.
        retry: JSON text of the policy.
    """

    lease_id: UUID
    started: bool
    attempt: int
    attempt_limit: int
    handler: str
    retry: str


# The page is cut by key before anything is filtered, so that a page of live leases still moves the sweep on.
LEASE_PAGE = f"""
select id, expires_at + %(tolerance)s * interval '1 second' < {NOW_SQL}
from jobs_lease where shard = any(%(shards)s) and id > %(after)s order by id limit %(limit)s"""

# A lease whose job is gone cannot be planned for; the left join keeps it from hiding.
EXPIRED = """
select lease.id, lease.worker is not null, lease.attempt, coalesce(job.attempt_limit, 0),
    coalesce(job.handler, ''), coalesce(job.retry::text, 'null')
from jobs_lease lease left join jobs_job job on job.shard = lease.shard and job.id = lease.job_id
where lease.shard = any(%(shards)s) and lease.id = any(%(leases)s::uuid[])"""


def lease_page(
    *, shards: Sequence[int], after: UUID, limit: int, now: datetime | None = None
) -> list[tuple[UUID, bool]]:
    """The next `limit` leases by key, each with whether it has lapsed. Fewer than `limit`: the sweep is through.

    Args:
        shards: Shards to sweep.
        after: Last key of the page before; the nil UUID to begin.
        limit: Page size.
        now: Aware UTC; default is the database clock.
    """
    params = {
        "shards": list(shards),
        "after": after,
        "limit": limit,
        "tolerance": conf().clock_tolerance_seconds,
        "now": now,
    }
    return [(lease_id, lapsed) for lease_id, lapsed in rows(LEASE_PAGE, params, hot=True)]


def expired_leases(*, shards: Sequence[int], lease_ids: Sequence[UUID]) -> list[ExpiredLease]:
    """What the reaper must know of these leases to plan their end; at most one row per id."""
    params = {"shards": list(shards), "leases": list(lease_ids)}
    return [ExpiredLease(*row) for row in rows(EXPIRED, params)]


FORSAKEN = f"""
select number from jobs_shard where expires_at + %(seconds)s * interval '1 second' < {NOW_SQL} order by number"""


def forsaken_shards(*, seconds: float, now: datetime | None = None) -> list[int]:
    """Shards whose owner fell silent, and that nobody took over for so long after its shard lease had ended.

    Args:
        seconds: How long a live scheduler may take to notice.
        now: Aware UTC; default is the database clock.
    """
    return [number for (number,) in rows(FORSAKEN, {"seconds": seconds, "now": now})]
