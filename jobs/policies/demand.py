"""How several schedulers split one pool: each says what waits in its shards, and leaves the others their part."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

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


def to_json(demand: Demand) -> dict[str, dict[str, list[float]]]:
    """The stored form: pool → lane → [due, weight, rank]."""
    return {
        str(pool): {str(lane): [one.due, one.weight, one.rank] for lane, one in lanes.items()}
        for pool, lanes in demand.items()
        if lanes
    }


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
        Group(lane, others_in(lane), deque([(one.rank, None)] * min(one.due, 1000)))
        for lane, one in lanes.items()
    ]
    return groups, {others_in(lane): one.weight for lane, one in lanes.items()}


def _readable(stored: object, pool: int) -> Iterable[tuple[int, int, float, float]]:
    lanes = stored.get(str(pool)) if isinstance(stored, dict) else None
    for lane, values in lanes.items() if isinstance(lanes, dict) else ():
        try:
            due, weight, rank = values
            number = int(lane), int(due), float(weight), float(rank)
        except (TypeError, ValueError, OverflowError):
            continue
        if number[1] > 0 and number[2] > 0:
            yield number
