"""Why a job waits: the reasons that follow from what is known of it and of the fleet, in order of effect.

Owns the decisions and the sentences. Sentences and evidence may be shown to the job's tenant: of others they tell counts
only. What names people, hosts or processes is in `internal`, for those who run the system.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.policies.routing import can_run, canonical_labels, missing_labels


class Klass(StrEnum):
    """What a reason stops: the job itself, its turn, or nothing any more."""

    INELIGIBLE = "ineligible"  # it may not be claimed
    ELIGIBLE = "eligible"  # it may, and waits for its turn
    LEASED = "leased"
    SYSTEM = "system"
    PAST = "past"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Reason:
    """One answer. `evidence` holds JSON values; units are in the names."""

    code: str
    klass: Klass
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    internal: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One stored pool and its workers now.

    Attributes:
        alive: Workers that live and take work.
        knowing: Those of them that know the job's handler.
        draining: Workers that live and take none.
        slots, busy, published: Of those alive; leases that wait for one of them.
        last_seen_seconds: Since any worker of it was last heard of; None: never.
        reserves: Lane → slots that only it may fill.
        held: (lane, tenant) → leases.
    """

    id: int
    name: str
    labels: dict[str, str]
    exclusive: dict[str, str]
    paused: bool = False
    alive: int = 0
    knowing: int = 0
    draining: int = 0
    slots: int = 0
    busy: int = 0
    published: int = 0
    last_seen_seconds: float | None = None
    reserves: Mapping[int, int] = field(default_factory=dict)
    held: Mapping[tuple[int, Hashable], int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Slots for which nothing is published yet."""
        return max(0, self.slots - self.busy - self.published)


def fitting_pools(needed: Mapping[str, str], pools: Sequence[PoolState]) -> list[PoolState]:
    """Pools whose labels allow the job, the one it belongs to first."""
    fits = [
        pool
        for pool in pools
        if can_run(needed=needed, offered=pool.labels, exclusive=pool.exclusive)
    ]
    return sorted(fits, key=lambda pool: (len(pool.labels), pool.id))


def usable_pools(fits: Sequence[PoolState]) -> list[PoolState]:
    """Those of the fitting pools to which a scheduler may publish it now."""
    return [pool for pool in fits if pool.knowing and not pool.paused]


def nowhere(needed: Mapping[str, str], handler: str, pools: Sequence[PoolState]) -> list[Reason]:
    """Why no pool may run it now; empty when one may.

    >>> mars = PoolState(id=1, name="mars", labels={"region": "mars"}, exclusive={})
    >>> [reason.sentence for reason in nowhere({"region": "mars"}, "mail.send", [mars])]
    ['blocked: no worker advertises region=mars']
    """
    fits = fitting_pools(needed, pools)
    if not fits:
        return [_no_pool(needed, pools)]
    if usable_pools(fits):
        return []
    reasons = [
        Reason(
            "pool_paused",
            Klass.INELIGIBLE,
            f"blocked: pool {pool.name} is paused",
            {"pool": pool.name},
        )
        for pool in fits
        if pool.paused
    ]
    if open_pools := [pool for pool in fits if not pool.paused]:
        reasons.append(_no_worker(needed, handler, open_pools, pools))
    return reasons


def _no_pool(needed: Mapping[str, str], pools: Sequence[PoolState]) -> Reason:
    if not pools:
        return Reason("no_pool", Klass.INELIGIBLE, "blocked: no pool is stored")
    nearest = min(pools, key=lambda pool: (len(missing_labels(needed, pool.labels)), pool.id))
    lacks = missing_labels(needed, nearest.labels)
    if lacks:
        words = canonical_labels(lacks)
        sentence = f"blocked: no pool offers {words}; the nearest, {nearest.name}, lacks it"
        evidence = {"needs": dict(needed), "nearest": nearest.name, "lacks": lacks}
        return Reason("no_pool", Klass.INELIGIBLE, sentence, evidence)
    asked = {name: text for name, text in nearest.exclusive.items() if needed.get(name) != text}
    sentence = (
        f"blocked: pool {nearest.name} runs only jobs that ask for {canonical_labels(asked)}"
    )
    evidence = {"needs": dict(needed), "nearest": nearest.name, "must_ask_for": asked}
    return Reason("pool_exclusive", Klass.INELIGIBLE, sentence, evidence)


def _no_worker(
    needed: Mapping[str, str],
    handler: str,
    fits: Sequence[PoolState],
    pools: Sequence[PoolState],
) -> Reason:
    names = ", ".join(pool.name for pool in fits)
    seen = min(
        (pool.last_seen_seconds for pool in fits if pool.last_seen_seconds is not None),
        default=None,
    )
    evidence: dict[str, Any] = {
        "pools": [pool.name for pool in fits],
        "last_seen_seconds": seen and round(seen, 1),
    }
    if any(pool.alive for pool in fits):
        evidence |= {"handler": handler, "workers": sum(pool.alive for pool in fits)}
        sentence = f"blocked: no live worker of {names} knows the handler {handler}"
        return Reason("handler_unknown", Klass.INELIGIBLE, sentence, evidence)
    if draining := sum(pool.draining for pool in fits):
        evidence["draining"] = draining
        sentence = f"blocked: all workers of {names} are draining"
        return Reason("pool_draining", Klass.INELIGIBLE, sentence, evidence)
    live = [pool for pool in pools if pool.alive]
    lacks = min((missing_labels(needed, pool.labels) for pool in live), key=len, default=needed)
    if lacks:
        sentence = f"blocked: no worker advertises {canonical_labels(lacks)}"
    else:
        sentence = f"blocked: no worker of {names} is alive"
    return Reason(
        "no_live_worker", Klass.INELIGIBLE, sentence, {"needs": dict(needed), **evidence}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Due work of one tenant in one lane that may go to the pool of the job.

    Attributes:
        ahead: Of smaller rank than the job.
        overtaking: Those of them that came due after it.
        due: All.
    """

    lane: int
    tenant: Hashable
    ahead: int
    overtaking: int
    due: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A due job among its competitors.

    Attributes:
        ahead: What else is due for its home pool.
        capped: There is more than was counted.
        weights: Tenant → weight, 1 where missing.
        head_start_seconds, priority: Of the job.
        lane_names: Lane → name.
    """

    lane: int
    tenant: Hashable
    head_start_seconds: float
    priority: int
    ahead: Sequence[Ahead]
    capped: bool
    weights: Mapping[Hashable, float]
    lane_names: Mapping[int, str]


def no_turn_yet(pools: Sequence[PoolState], turn: Turn) -> list[Reason]:
    """Why a job that some pools may run is not published to any of them; empty when one has room.

    Args:
        pools: Pools that may run it now, its home first.
        turn: The job and what else is due.
    """
    kept = {pool.id: _kept_for_others(pool, turn.lane) for pool in pools}
    if any(pool.free > kept[pool.id] for pool in pools):
        return []
    reasons = [*_lower_rank(turn), *_fair_share(pools[0], turn)]
    for pool in pools:
        if pool.free:
            lanes = sorted(
                turn.lane_names.get(lane, str(lane)) for lane in _unfilled(pool, turn.lane)
            )
            sentence = f"waiting: the {pool.free} free slots of {pool.name} are reserved for {', '.join(lanes)}"
            evidence = {"pool": pool.name, "free": pool.free, "lanes": lanes}
            reasons.append(Reason("reserved_for_others", Klass.ELIGIBLE, sentence, evidence))
    if full := [pool for pool in pools if not pool.free]:
        reasons.append(_saturated(full[0], turn))
    return reasons


def _unfilled(pool: PoolState, mine: int) -> dict[int, int]:
    left = {
        lane: slots - sum(held for (of, _), held in pool.held.items() if of == lane)
        for lane, slots in pool.reserves.items()
        if lane != mine
    }
    return {lane: slots for lane, slots in left.items() if slots > 0}


def _kept_for_others(pool: PoolState, mine: int) -> int:
    own = sum(held for (lane, _), held in pool.held.items() if lane == mine)
    if own < pool.reserves.get(mine, 0):
        return 0  # it fills its own reserve
    return sum(_unfilled(pool, mine).values())


def _saturated(pool: PoolState, turn: Turn) -> Reason:
    position = sum(one.ahead for one in turn.ahead) + 1
    about = "at least" if turn.capped else "about"
    evidence = {
        "pool": pool.name,
        "busy": min(pool.slots, pool.busy + pool.published),
        "slots": pool.slots,
        "position": position,
        "position_is_at_least": turn.capped,
    }
    sentence = f"waiting: all {pool.slots} slots of pool {pool.name} are taken; {about} number {position} in line"
    return Reason("pool_saturated", Klass.ELIGIBLE, sentence, evidence)


def _lower_rank(turn: Turn) -> list[Reason]:
    overtaking = sum(one.overtaking for one in turn.ahead)
    if not overtaking:
        return []  # those ahead came first
    by_lane: dict[str, int] = {}
    for one in turn.ahead:
        if one.overtaking:
            name = turn.lane_names.get(one.lane, str(one.lane))
            by_lane[name] = by_lane.get(name, 0) + one.overtaking
    lanes = ", ".join(f"{name} {count}" for name, count in sorted(by_lane.items()))
    own = turn.lane_names.get(turn.lane, str(turn.lane))
    evidence = {
        "ahead": sum(one.ahead for one in turn.ahead),
        "overtaking_by_lane": by_lane,
        "lane": own,
        "priority": turn.priority,
        "head_start_seconds": turn.head_start_seconds,
        "ahead_is_at_least": turn.capped,
    }
    sentence = (
        f"waiting: by priority, {overtaking} jobs that came due later go first ({lanes});"
        f" this one is in lane {own} with priority {turn.priority}"
    )
    return [Reason("lower_rank", Klass.ELIGIBLE, sentence, evidence)]


def _fair_share(pool: PoolState, turn: Turn) -> list[Reason]:
    wanting = {one.tenant for one in turn.ahead if one.lane == turn.lane} | {turn.tenant}
    if len(wanting) == 1:
        return []
    held = {tenant: pool.held.get((turn.lane, tenant), 0) for tenant in wanting}
    slots = pool.free + sum(held.values())
    whole = sum(turn.weights.get(tenant, 1.0) for tenant in wanting)

    def share(tenant: Hashable) -> int:
        return max(1, math.ceil(slots * turn.weights.get(tenant, 1.0) / whole - 1e-9))

    own = share(turn.tenant)
    below = sum(1 for one in wanting - {turn.tenant} if held[one] < share(one))
    if held[turn.tenant] < own or not below:
        return []
    evidence = {
        "held": held[turn.tenant],
        "share": own,
        "weight": turn.weights.get(turn.tenant, 1.0),
        "tenants_waiting": len(wanting) - 1,
        "tenants_below_their_share": below,
    }
    sentence = (
        f"waiting: this tenant holds {held[turn.tenant]} slots of pool {pool.name}, its share is {own};"
        f" {below} others are below theirs"
    )
    return [Reason("fair_share", Klass.ELIGIBLE, sentence, evidence)]


def span(seconds: float) -> str:
    """A duration for people, in its two largest units.

    >>> span(11_529), span(0.25), span(61)
    ('3 h 12 min', '0.2 s', '1 min 1 s')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
