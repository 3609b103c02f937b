"""Who is alive, and how busy each pool is: the numbers a scheduler publishes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import rows
from jobs.models import Worker


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool with at least one live worker.

    Attributes:
        pool_id: The pool.
        slots: Of its live workers that take work.
        handlers: Names that at least one of them knows.
        published: Leases waiting for a worker.
        running: Leases that a worker holds, live or not.
    """

    pool_id: int
    slots: int
    handlers: frozenset[str]
    published: int
    running: int

    @property
    def free_slots(self) -> int:
        """Slots nobody uses now."""
        return max(0, self.slots - self.running)


LEASES_BY_POOL = """
select pool_id, count(*) filter (where worker is null), count(*) filter (where worker is not null)
from jobs_lease where shard = any(%(shards)s) group by pool_id"""


def worker_timeout() -> timedelta:
    """How long a worker may be silent before it no longer counts as alive."""
    return timedelta(seconds=conf().lease_ttl_seconds + conf().clock_tolerance_seconds)


def pool_loads(*, shards: Sequence[int], now: datetime | None = None) -> list[PoolLoad]:
    """Load of every pool that has a live worker, by pool id.

    Args:
        shards: Whose leases count; name all of them, for other schedulers publish to the same pools.
        now: Aware UTC; default is the database clock.
    """
    counts = {
        pool: (published, running)
        for pool, published, running in rows(LEASES_BY_POOL, {"shards": list(shards)})
    }
    slots: dict[int, int] = {}
    handlers: dict[int, set[str]] = {}
    alive = Worker.objects.seen_within(worker_timeout(), now).filter(state="running")
    for worker in alive.only("pool_id", "slots", "handlers"):
        slots[worker.pool_id] = slots.get(worker.pool_id, 0) + worker.slots
        # A row broken by hand knows nothing; it must not keep the others from being counted.
        known = worker.handlers if isinstance(worker.handlers, list) else []
        names = {name for name in known if isinstance(name, str)}
        handlers.setdefault(worker.pool_id, set()).update(names)
    return [
        PoolLoad(pool, slots[pool], frozenset(handlers[pool]), *counts.get(pool, (0, 0)))
        for pool in sorted(slots)
    ]


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
    return [(lease_id, lapsed) for lease_id, lapsed in rows(LEASE_PAGE, params)]


def expired_leases(*, shards: Sequence[int], lease_ids: Sequence[UUID]) -> list[ExpiredLease]:
    """What the reaper must know of these leases to plan their end; at most one row per id."""
    params = {"shards": list(shards), "leases": list(lease_ids)}
    return [ExpiredLease(*row) for row in rows(EXPIRED, params)]
