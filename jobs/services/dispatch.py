"""dispatch: one scheduler turn. Which due jobs go to which pool, and how many, then claim and publish them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jobs.conf import conf
from jobs.policies.routing import PoolOffer, home_pool
from jobs.policies.window import PublishWindow
from jobs.queries.candidates import due_candidates
from jobs.queries.catalog import Catalog, catalog
from jobs.queries.fleet import PoolLoad, pool_loads
from jobs.transitions.claim import claim_batch


@dataclass(slots=True)
class Dispatched:
    """What one turn did.

    Attributes:
        published: Jobs claimed and published.
        lost: Candidates that went to another scheduler, or were cancelled meanwhile.
        blocked: A pool had no room for (possibly) waiting work. Look again soon.
        more: As many candidates as were asked for: there may be others. Look again at once.
    """

    published: int = 0
    lost: int = 0
    blocked: bool = False
    more: bool = False


@dataclass(slots=True)
class Windows:
    """The publish windows of one scheduler process, by pool."""

    by_pool: dict[int, PublishWindow] = field(default_factory=dict)

    def observed(self, load: PoolLoad) -> PublishWindow:
        """The pool's window after it has seen this load."""
        window = self.by_pool.setdefault(load.pool_id, PublishWindow(conf().publish_ahead_seconds))
        window.observe(published=load.published, at=time.monotonic())
        return window


def dispatch(
    *,
    shards: Sequence[int],
    windows: Windows,
    actor: str,
    fresh: bool = False,
    now: datetime | None = None,
) -> Dispatched:
    """scheduled → leased for the best due jobs of these shards, pool by pool, as far as each pool has room.

    Work whose pool is full is not read at all, so it never stands in front of work for an idle pool. Each batch is a
    transaction of its own.

    Args:
        shards: Shards this scheduler owns.
        windows: Its memory of how fast each pool starts work.
        actor: The scheduler, for history.
        fresh: Read the configuration anew: due work was left over, perhaps of a route that is not known here yet.
        now: Aware UTC; default is the database clock.
    """
    done = Dispatched()
    if not shards:
        return done
    found = catalog(max_age_seconds=0.0) if fresh else catalog()
    loads = {
        load.pool_id: load
        for load in pool_loads(shards=range(conf().shards), now=now)
        if load.pool_id in found.pools
    }
    for pool_id, route_ids in _home_routes(found, loads).items():
        load, window = loads[pool_id], windows.observed(loads[pool_id])
        room = window.room(free_slots=load.free_slots, published=load.published)
        if room == 0:
            done.blocked = True  # perhaps; asking costs a scan, looking again soon does not
            continue
        limit = min(room, conf().claim_batch)
        job_ids = due_candidates(shards=shards, route_ids=route_ids, limit=limit, now=now)
        if not job_ids:
            continue
        done.more = done.more or len(job_ids) == limit
        claimed = claim_batch(
            shards=shards, job_ids=job_ids, pool=found.pools[pool_id], actor=actor, now=now
        )
        window.publish(claimed.published)
        done.published += claimed.published
        done.lost += claimed.lost
    return done


def _home_routes(found: Catalog, loads: dict[int, PoolLoad]) -> dict[int, list[int]]:
    """Pool → routes whose tightest match it is, among pools with a live worker that knows the handler."""
    offers = [
        PoolOffer(
            id=pool_id,
            labels=found.pools[pool_id].labels,
            exclusive=found.pools[pool_id].exclusive_labels,
            handlers=load.handlers,
        )
        for pool_id, load in loads.items()
    ]
    homes: dict[int, list[int]] = {}
    for route in found.routes.values():
        if (home := home_pool(route.labels, route.handler, offers)) is not None:
            homes.setdefault(home, []).append(route.pk)
    return homes
