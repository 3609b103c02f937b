"""dispatch: one scheduler turn. Which due jobs go to which pool, and how many, then claim and publish them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.conf import conf
from jobs.models import Pause
from jobs.policies.demand import Demand, demand_of
from jobs.policies.fairness import Group
from jobs.policies.routing import PoolOffer, able_pools
from jobs.queries.candidates import GroupKey
from jobs.queries.catalog import Catalog, catalog
from jobs.queries.fleet import PoolLoad, demands_of_others, pool_loads
from jobs.services.memory import Memory
from jobs.services.publishing import Publisher, Publishing
from jobs.services.terms import Pauses, Terms
from jobs.transitions.events import scheduler_actor

TURN_SECONDS = 0.05  # of choosing and claiming; then no further batch is begun


@dataclass(slots=True)
class Dispatched(Publishing):
    """What one turn did; see Publishing.

    Attributes:
        wake_seconds: When a limit lifts by itself, at the soonest.
        demand: What is left, for the other schedulers; empty when there are none.
    """

    wake_seconds: float | None = None
    demand: Demand = field(default_factory=dict)


def dispatch(
    *,
    shards: Sequence[int],
    memory: Memory,
    scheduler_id: UUID,
    fresh: bool = False,
    now: datetime | None = None,
) -> Dispatched:
    """scheduled → leased for the due jobs of these shards whose turn it is, pool by pool, as far as each has room.

    A full pool never stands in front of an idle one: work is looked at by the pool it belongs to. What its own pool has
    no room for goes to another pool that may run it and has free slots left. Each batch is a transaction of its own.

    Args:
        shards: Shards this scheduler owns.
        memory: Of this process.
        scheduler_id: This process.
        fresh: Read the configuration anew: due work was left over, perhaps of a route that is not known here yet.
        now: Aware UTC; default is the database clock.
    """
    if not shards:
        return Dispatched()
    found = catalog(max_age_seconds=0.0) if fresh else catalog()
    loads = {
        load.pool_id: load
        for load in pool_loads(shards=range(conf().shards), now=now)
        if load.pool_id in found.pools
    }
    alone = len(shards) >= conf().shards
    others = {} if alone else demands_of_others(me=scheduler_id, now=now)
    actor = scheduler_actor(scheduler_id)
    turn = _Turn(found, loads, others, shards=shards, memory=memory, actor=actor, now=now)
    try:
        return turn.run()
    except BaseException:
        memory.backlog.groups = {}  # what was taken out of it may still wait
        raise


class _Turn:
    """One call of `dispatch`, with everything that it reads once."""

    def __init__(
        self,
        found: Catalog,
        loads: Mapping[int, PoolLoad],
        others: Mapping[UUID, object],
        *,
        shards: Sequence[int],
        memory: Memory,
        actor: str,
        now: datetime | None,
    ) -> None:
        self._found, self._loads, self._others = found, loads, list(others.values())
        self._by_others = memory.published_by_others(others)
        self._shards, self._memory, self._actor, self._now = shards, memory, actor, now
        self._done = Dispatched()
        self._until = time.monotonic() + TURN_SECONDS
        self._at = max((load.read_at for load in loads.values()), default=0.0)
        self._room: dict[int, int] = {}  # pool → what it may still be given
        self._free: dict[int, int] = {}  # the part of it that is free slots
        for pool_id, load in loads.items():
            if found.is_paused(Pause.Kind.POOL, found.pools[pool_id].name):
                self._saw([("pool_paused", pool_id)])
                continue
            theirs = sum(n for (pool, _), n in self._by_others.items() if pool == pool_id)
            window = memory.observed(load, by_others=theirs)
            self._free[pool_id] = max(0, load.free_slots - load.published)
            # Work published ahead is taken whatever its lane: with reserves, only into slots that are free.
            self._room[pool_id] = (
                self._free[pool_id]
                if pool_id in found.reserves
                else window.room(free_slots=load.free_slots, published=load.published)
            )

    def run(self) -> Dispatched:
        """Look, share out, claim."""
        alone = len(self._shards) >= conf().shards
        if alone and not any(self._room.values()):
            # Perhaps something waits: asking costs a scan, looking again soon does not.
            self._done.blocked = bool(self._room)
            self._saw(("pool_saturated", pool_id) for pool_id in self._room)
            return self._done
        head_starts = {lane.pk: lane.head_start_seconds for lane in self._found.lanes}
        self._memory.backlog.look(
            shards=self._shards, head_starts=head_starts, at=self._at, now=self._now
        )
        ways, groups = self._routed()
        if groups:
            terms = Terms(self._found, groups, shards=self._shards, now=self._now)
            for key, group in groups.items():
                group.walls = terms.walls_of(key)
            publisher = Publisher(
                self._found,
                terms,
                self._memory,
                self._others,
                self._by_others,
                shards=self._shards,
                actor=self._actor,
                at=self._at,
                now=self._now,
                done=self._done,
                until=self._until,
            )
            self._publish(publisher, ways, groups)
            self._done.wake_seconds = terms.wake_seconds
            if not alone:
                demands = {
                    pool_id: demand_of(
                        _home_to(pool_id, ways, groups).values(), terms.weights, terms.walls
                    )
                    for pool_id in self._room
                }
                self._done.demand = {pool: lanes for pool, lanes in demands.items() if lanes}
            self._memory.backlog.drop_empty()
        return self._done

    def _routed(self) -> tuple[dict[int, list[int]], dict[GroupKey, Group]]:
        """Route → pools that may run it, its home first; and the groups that may go somewhere now."""
        offers = [
            PoolOffer(
                id=pool_id,
                labels=self._found.pools[pool_id].labels,
                exclusive=self._found.pools[pool_id].exclusive_labels,
                handlers=self._loads[pool_id].handlers,
            )
            for pool_id in self._loads
        ]
        pauses = Pauses(self._found)
        ways: dict[int, list[int]] = {}
        groups: dict[GroupKey, Group] = {}
        for key, group in self._memory.backlog.groups.items():
            if key.route not in ways:
                route = self._found.routes.get(key.route)
                able = able_pools(route.labels, route.handler, offers) if route else []
                ways[key.route] = [pool_id for pool_id in able if pool_id in self._room]
                if not able:
                    self._saw([("no_live_worker", key.route)])
            if (reason := pauses.of(key)) is not None:
                self._saw([reason])
            elif ways[key.route]:
                groups[key] = group
        return ways, groups

    def _publish(
        self, publisher: Publisher, ways: dict[int, list[int]], groups: dict[GroupKey, Group]
    ) -> None:
        """Every pool its own work first; then free slots that are left go to work whose home has no room.

        A round that takes too long goes on in the next turn, with the pool that it has come to: leases and shards want
        care. It ends with the lending; a pool whose own work has not been looked at in this turn lends nothing.
        """
        pools = sorted(self._room)
        rest = [pool_id for pool_id in pools if pool_id >= self._memory.next_pool] or pools
        self._memory.next_pool = 0
        lenders = set(rest)
        for pool_id in rest:
            if pool_id != rest[0] and time.monotonic() > self._until:
                self._memory.next_pool, self._done.more = pool_id, True
                return
            given = publisher.fill(
                pool_id, _home_to(pool_id, ways, groups), room=self._room[pool_id]
            )
            self._room[pool_id] -= given
            self._free[pool_id] -= given
        lenders.update(set(pools) - {ways[key.route][0] for key in groups})
        self._done.more |= len(rest) < len(pools)  # the next round begins at once
        for pool_id, free in self._free.items():
            if pool_id not in lenders:
                continue
            guests = {
                key: group
                for key, group in groups.items()
                if pool_id in ways[key.route][1:]
                and self._room[ways[key.route][0]] <= 0
                and group.settle()
            }
            if guests and free > 0:
                homes = {key.route: self._found.pools[ways[key.route][0]].name for key in guests}
                publisher.fill(pool_id, guests, room=min(free, self._room[pool_id]), homes=homes)

    def _saw(self, reasons: Iterable[Any]) -> None:
        for reason in reasons:
            self._memory.delays.saw(reason, self._at)


def _home_to(
    pool_id: int, ways: dict[int, list[int]], groups: dict[GroupKey, Group]
) -> dict[GroupKey, Group]:
    return {key: group for key, group in groups.items() if ways[key.route][0] == pool_id}
