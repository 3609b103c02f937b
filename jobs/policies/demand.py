"""How several schedulers split one pool: each says what waits in its shards, and leaves the others their part."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.policies.fairness import Group, Wall


@dataclass(slots=True)
class LaneDemand:
    """Due work of one scheduler in one lane of one pool.

    Attributes:
        due: Entries, at least.
        weight: Of the tenants that have some, together.
        rank: Smallest, in seconds.
    """

    due: int
    weight: float
    rank: float


type Demand = dict[int, dict[int, LaneDemand]]  # pool → lane


def demand_of(
    groups: Iterable[Group], weights: Mapping[Hashable, float], walls: Mapping[Wall, float]
) -> dict[int, LaneDemand]:
    """Lane → what is left in these groups of one pool and could go if there were room.

    >>> waiting = Group(3, "acme", deque([(5.0, "job"), (7.0, "job")]))
    >>> demand_of([waiting], {"acme": 2.0}, {})
    {3: LaneDemand(due=2, weight=2.0, rank=5.0)}

    Args:
        groups: What waits.
        weights: Tenant → weight; 1 where missing.
        walls: Limit → how many may still pass it.
    """
    demand: dict[int, LaneDemand] = {}
    tenants: set[tuple[int, Hashable]] = set()
    for group in groups:
        if not group.settle() or any(walls.get(wall, 1) < 1 for wall in group.walls):
            continue
        # An unknown number behind the known ones counts as plenty: it is asked again before it is needed.
        due = len(group.items) + (1000 if group.more else 0)
        lane = demand.setdefault(group.lane, LaneDemand(0, 0.0, group.rank))
        lane.due += due
        lane.rank = min(lane.rank, group.rank)
        if (group.lane, group.tenant) not in tenants:
            tenants.add((group.lane, group.tenant))
            lane.weight += weights.get(group.tenant, 1.0)
    return demand


type Place = tuple[int, int]  # pool, lane
type Stored = dict[str, dict[str, Any]]


def to_json(demand: Demand, published: Mapping[Place, int]) -> Stored:
    """The stored form: pool → lane → [due, weight, rank]; and "pool/lane" → jobs published since this process began.

    >>> to_json({1: {3: LaneDemand(2, 2.0, 5.0)}, 2: {}}, {(1, 3): 70})
    {'due': {'1': {'3': [2, 2.0, 5.0]}}, 'published': {'1/3': 70}}
    """
    due = {
        str(pool): {str(lane): [one.due, one.weight, one.rank] for lane, one in lanes.items()}
        for pool, lanes in demand.items()
        if lanes
    }
    counts = {f"{pool}/{lane}": count for (pool, lane), count in published.items()}
    return {"due": due, "published": counts}


def published_by(stored: object) -> dict[Place, int]:
    """(pool, lane) → jobs published by the scheduler that wrote this; what cannot be read counts as nothing.

    >>> published_by({"published": {"1/3": 70, "x": 1, "2/3": None}})
    {(1, 3): 70}
    """
    counts = stored.get("published") if isinstance(stored, dict) else None
    found: dict[Place, int] = {}
    for name, count in counts.items() if isinstance(counts, dict) else ():
        pool, _, lane = str(name).partition("/")
        if pool.isdecimal() and lane.isdecimal() and isinstance(count, int):
            found[int(pool), int(lane)] = count
    return found


def others_in(lane: int) -> Hashable:
    """What stands where a tenant stands: the work of all other schedulers in one lane."""
    return "others", lane


def groups_of_others(
    stored: Iterable[object], pool: int
) -> tuple[list[Group], dict[Hashable, float]]:
    """Stand-ins for the due work of other schedulers in one pool, and their weights. Their items are None.

    What cannot be read counts as nothing waiting: that scheduler takes its part all the same.

    Args:
        stored: What `to_json` made, of each other scheduler.
        pool: Pool id.
    """
    lanes: dict[int, LaneDemand] = {}
    for one in stored:
        for lane, due, weight, rank in _readable(one, pool):
            known = lanes.setdefault(lane, LaneDemand(0, 0.0, rank))
            known.due += due
            known.weight += weight
            known.rank = min(known.rank, rank)
    groups = [
        Group(lane, others_in(lane), deque([(one.rank, None)] * min(one.due, 1000)), stand_in=True)
        for lane, one in lanes.items()
    ]
    return groups, {others_in(lane): one.weight for lane, one in lanes.items()}


def _readable(stored: object, pool: int) -> Iterable[tuple[int, int, float, float]]:
    pools = stored.get("due") if isinstance(stored, dict) else None
    lanes = pools.get(str(pool)) if isinstance(pools, dict) else None
    for lane, values in lanes.items() if isinstance(lanes, dict) else ():
        try:
            due, weight, rank = values
            number = int(lane), int(due), float(weight), float(rank)
        except (TypeError, ValueError, OverflowError):
            continue
        if number[1] > 0 and number[2] > 0:
            yield number
