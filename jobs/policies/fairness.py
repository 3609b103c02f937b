"""Who is served next when there is less room than due work: lanes by rank, tenants inside a lane by weight.

Owns the choice alone. What is due, what runs and which limits are left are given; nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

STAND_IN_SLACK = 1.25
type Wall = (
    Hashable  # a limit that several groups stand before: ("tenant", 7), ("handler", "mail.send")
)


@dataclass(slots=True, eq=False)
class Group:
    """Due work of one tenant in one lane that goes the same way, in its order.

    Attributes:
        lane: Lane id.
        tenant: Tenant id, or whatever stands for the work of another scheduler.
        items: (rank in seconds, anything), smallest rank first, as far as they are known.
        more: There may be others behind `items` that are not known yet.
        walls: Limits it counts against.
        rank: Of the next item, or of the last one known.
        stand_in: It stands for work that somebody else will give out.
    """

    lane: int
    tenant: Hashable
    items: deque[tuple[float, Any]]
    more: bool = False
    walls: tuple[Wall, ...] = ()
    rank: float = -math.inf
    stand_in: bool = False

    def settle(self) -> bool:
        """Bring `rank` up to date; False when nothing is left."""
        if self.items:
            self.rank = self.items[0][0]
        return bool(self.items) or self.more


@dataclass(slots=True)
class Turns:
    """Memory of whose turn it is inside one lane of one pool: each start moves a tenant on by 1 / weight.

    Attributes:
        now: Turn of whoever was served last; never goes back.
        next: Tenant → its next turn. One that is ahead of `now` is remembered while it has no work.
        present: Tenants that had work at the last look.

    Source: start-time fair queueing (Goyal, Vin and Cheng, 1997).
    """

    now: float = 0.0
    next: dict[Hashable, float] = field(default_factory=dict)
    present: frozenset[Hashable] = frozenset()

    def join(self, weights: Mapping[Hashable, float]) -> None:
        """Those with due work now, and their weights.

        Who is new, or was away, begins at the present turn: nothing was saved up. Who was held back by its share has
        saved a little, two turns of the lightest tenant at most: more would lock the others out while it catches up.
        """
        now = self.now
        least = now - 2.0 / min(weights.values(), default=1.0)
        for tenant in weights:
            behind = least if tenant in self.present else now
            self.next[tenant] = max(behind, self.next.get(tenant, now))
        self.present = frozenset(weights)
        self.next = {
            one: turn for one, turn in self.next.items() if turn > now or one in self.present
        }

    def serve(self, tenant: Hashable, weight: float, *, stand_in: bool = False) -> None:
        """It has been given one slot. A stand-in's is a guess: it counts until this choice is made."""
        turn = self.next[tenant]
        if not stand_in:
            self.now = max(self.now, turn)
        self.next[tenant] = turn + 1.0 / weight

    def correct(
        self, stand_in: Hashable, weight: float, *, guessed: int = 0, real: int = 0
    ) -> None:
        """Put what a stand-in was really given in the place of what was guessed."""
        if stand_in in self.next:
            self.next[stand_in] += (real - guessed) / weight


class Pick(NamedTuple):
    """One item that was chosen.

    Attributes:
        group: Where it was.
        item: What the caller put there.
        reserved: It fills the reserve of its lane.
        ahead: Seconds by which its own rank is behind the one that its lane was chosen by: what has been chosen must
            be taken in this order, or the oldest tenant's next items would always be taken first.
    """

    group: Group
    item: Any
    reserved: bool
    ahead: float


@dataclass(slots=True)
class Picks:
    """What `pick` chose, and what stood in the way of the rest.

    Attributes:
        chosen: In the order of choice.
        wanting: The group that comes next and whose next item is not known; the choice ends before it.
        full: Something was left for want of room.
        walled: Limits that held something back.
        kept: Lanes held back by the reserves of others.
    """

    chosen: list[Pick] = field(default_factory=list)
    wanting: Group | None = None
    full: bool = False
    walled: set[Wall] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)


def pick(
    groups: Iterable[Group],
    *,
    room: int,
    turns: dict[int, Turns],
    weights: Mapping[Any, float] | None = None,
    held: Mapping[tuple[int, Any], int] | None = None,
    reserves: Mapping[int, int] | None = None,
    walls: dict[Wall, float] | None = None,
) -> Picks:
    """Choose up to `room` items of one pool, one by one, and take them out of their groups.

    The lane whose next item has the smallest rank; in it the tenant whose turn it is; of its items the one with the
    smallest rank. Ageing needs no term of its own: a rank is a fixed moment, and all work waits past it at one pace.

    - A tenant that holds its share of the lane's slots waits while one below its share wants a slot. If nobody else
      wants any it gets all: no slot stays empty while there is work.
    - A lane below its reserve goes first, and room that the reserves of others may need is not given away.
    - A group before a limit that is used up is passed over; its lane and its tenant go on with others.

    Args:
        groups: Due work that may run in this pool.
        room: Most items; with `reserves` at most the free slots.
        turns: Lane → whose turn it is; changed, and made where missing.
        weights: Tenant → weight; 1 where missing.
        held: (lane, tenant) → slots of this pool held now.
        reserves: Lane → slots of this pool that only it may fill.
        walls: Limit → how many items may still pass; changed. A limit that is missing does not bind.

    >>> urgent = Group(1, "a", deque([(5.0, "u")]))
    >>> normal = Group(3, "a", deque([(2.0, "n1"), (9.0, "n2")]))
    >>> [one.item for one in pick([urgent, normal], room=2, turns={}).chosen]
    ['n1', 'u']
    """
    picks, walls, held = Picks(), {} if walls is None else walls, held or {}
    lanes: dict[int, _Lane] = {}
    for number, heads in _heads(groups).items():
        lanes[number] = _Lane(heads, turns.setdefault(number, Turns()), walls, picks)
        lanes[number].open(number, room, weights or {}, held)
    unfilled = _unfilled(reserves or {}, held)
    kept, left = sum(unfilled.values()), room
    ranks = {number: rank for number, lane in lanes.items() if (rank := lane.rank()) is not None}
    while ranks and left > 0:
        number = _next_lane(ranks, unfilled)
        mine = unfilled.get(number, 0)
        if not mine and left <= kept:
            picks.kept.add(number)
            del ranks[number]
            continue
        # Another lane may meanwhile have used up a limit that this one stands before too.
        group = lanes[number].next()
        if group is None:
            del ranks[number]
            continue
        if not group.items:
            picks.wanting = group
            return picks
        rank, item = group.items.popleft()
        picks.chosen.append(Pick(group, item, mine > 0, max(0.0, rank - ranks[number])))
        left -= 1
        if mine:
            unfilled[number] -= 1
            kept -= 1
        for wall in group.walls:
            if wall in walls:
                walls[wall] -= 1
        if (next_rank := lanes[number].serve()) is None:
            del ranks[number]
        else:
            ranks[number] = next_rank
    picks.full = any(lanes[number].rank() is not None for number in ranks)
    return picks


def _heads(groups: Iterable[Group]) -> dict[int, dict[Hashable, list[_Head]]]:
    """Lane → tenant → its groups that have anything left. Runs once for every group: nothing is called here."""
    heads: dict[int, dict[Hashable, list[_Head]]] = {}
    for order, group in enumerate(groups):
        if group.items:
            group.rank = group.items[0][0]
        elif not group.more:
            continue
        lane = heads.get(group.lane)
        if lane is None:
            lane = heads[group.lane] = {}
        known = lane.get(group.tenant)
        if known is None:
            lane[group.tenant] = [(group.rank, order, group)]
        else:
            known.append((group.rank, order, group))
    return heads


def _unfilled(
    reserves: Mapping[int, int], held: Mapping[tuple[int, Hashable], int]
) -> dict[int, int]:
    filled: dict[int, int] = {}
    for (lane, _), count in held.items():
        filled[lane] = filled.get(lane, 0) + count
    return {lane: max(0, slots - filled.get(lane, 0)) for lane, slots in reserves.items()}


def _next_lane(ranks: dict[int, float], unfilled: Mapping[int, int]) -> int:
    """The lane with the smallest rank, those below their reserve first. There are few lanes."""
    if len(ranks) == 1:
        return next(iter(ranks))
    if (
        unfilled
        and any(unfilled.values())
        and (below := [number for number in ranks if unfilled.get(number)])
    ):
        return min(below, key=ranks.__getitem__)
    return min(ranks, key=ranks.__getitem__)


type _Head = tuple[float, int, Group]  # rank, order of arrival (decides between equals), group


@dataclass(slots=True, eq=False)
class _Tenant:
    """Groups of one tenant in one lane, a heap by the rank of their next item."""

    key: Hashable
    order: int  # of arrival: decides between equals
    heads: list[_Head]
    weight: float = 1.0
    held: int = 0
    share: float = math.inf

    def rank(self, walls: dict[Wall, float], picks: Picks) -> float | None:
        """Rank of its next item; what stands before a used-up limit is dropped on the way."""
        heads = self.heads
        while heads:
            listed, order, group = heads[0]
            if group.walls and (
                closed := [wall for wall in group.walls if walls.get(wall, 1) < 1]
            ):
                picks.walled.update(closed)
                heappop(heads)
            elif not group.settle():
                heappop(heads)
            elif group.rank == listed:
                return listed
            else:
                heapreplace(heads, (group.rank, order, group))
        return None


class _Lane:
    """One lane's due work. Two heaps of tenants, by rank and by turn; old entries are dropped when they come up."""

    def __init__(
        self,
        heads: Mapping[Hashable, list[_Head]],
        turns: Turns,
        walls: dict[Wall, float],
        picks: Picks,
    ) -> None:
        self._turns, self._walls, self._picks = turns, walls, picks
        self._tenants = [_Tenant(key, n, heads[key]) for n, key in enumerate(heads)]
        self._by_rank: list[tuple[float, int, _Tenant]] = []
        self._by_turn: list[tuple[bool, float, float, int, _Tenant]] = []
        self._chosen = _Tenant(None, 0, [])
        self._chosen_group = Group(0, None, deque())

    def open(
        self,
        number: int,
        room: int,
        weights: Mapping[Hashable, float],
        held: Mapping[tuple[int, Hashable], int],
    ) -> None:
        """Work out shares, and put everybody in line."""
        turns, able = self._turns, []
        for tenant in self._tenants:
            if len(tenant.heads) > 1:
                heapify(tenant.heads)
            if (rank := tenant.rank(self._walls, self._picks)) is not None:
                tenant.weight = weights.get(tenant.key, 1.0)
                tenant.held = held.get((number, tenant.key), 0)
                able.append(tenant)
                self._by_rank.append((rank, tenant.order, tenant))
        turns.join({tenant.key: tenant.weight for tenant in able})
        if len(able) > 1:
            slots = room + sum(tenant.held for tenant in able)
            whole = sum(tenant.weight for tenant in able)
            # Beside the work of other schedulers turns are what is exact: what those hold is seen late.
            stood_in = any(head[2].stand_in for tenant in able for head in tenant.heads)
            slack = STAND_IN_SLACK if stood_in else 1.0
            for tenant in able:
                share = slack * slots * tenant.weight / whole
                tenant.share = max(1, math.ceil(share - 1e-9))
        for rank, _, tenant in self._by_rank:
            self._by_turn.append(self._turn(tenant, rank))
        heapify(self._by_rank)
        heapify(self._by_turn)

    def rank(self) -> float | None:
        """The smallest rank of what can go, None when nothing can."""
        while self._by_rank:
            listed, order, tenant = self._by_rank[0]
            rank = tenant.rank(self._walls, self._picks)
            if rank == listed:
                return rank
            if rank is None:
                heappop(self._by_rank)
            else:
                heapreplace(self._by_rank, (rank, order, tenant))
        return None

    def next(self) -> Group | None:
        """The group whose turn it is, None when nothing can go."""
        while self._by_turn:
            entry = self._by_turn[0]
            tenant = entry[-1]
            rank = tenant.rank(self._walls, self._picks)
            if rank is None:
                heappop(self._by_turn)
            elif (now := self._turn(tenant, rank)) != entry:
                heapreplace(self._by_turn, now)
            else:
                self._chosen, self._chosen_group = tenant, tenant.heads[0][2]
                return self._chosen_group
        return None

    def serve(self) -> float | None:
        """Count the item just taken from the group of `next`; gives the lane's rank now."""
        tenant = self._chosen
        tenant.held += 1
        self._turns.serve(tenant.key, tenant.weight, stand_in=self._chosen_group.stand_in)
        return self.rank()

    def _turn(self, tenant: _Tenant, rank: float) -> tuple[bool, float, float, int, _Tenant]:
        return (
            tenant.held >= tenant.share,
            self._turns.next[tenant.key],
            rank,
            tenant.order,
            tenant,
        )
