"""The scheduler's choices on a fake clock: the same policies, jobs that only take time. For tuning before saving.

Owns no policy of its own. What it leaves out: the time of claims and takes (given as one number), retries, several
schedulers, and work published ahead of free slots.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from jobs.policies.fairness import Group, Turns, Wall, pick


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of an arrival file.

    Attributes:
        at: Due, in seconds from the beginning.
        lane: Lane id.
        tenant: Tenant.
        seconds: How long its handler takes.
        priority: -100 to 100.
        pools: Ids of the pools that may run it, its home first.
    """

    at: float
    lane: int
    tenant: str
    seconds: float
    priority: int = 0
    pools: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is tried out.

    Attributes:
        head_starts: Lane id → seconds.
        slots: Pool id → slots.
        weights: Tenant → weight; 1 where missing.
        reserves: Pool id → lane id → slots.
        max_running: Tenant → most jobs at once.
        overhead_seconds: From a free slot to the next start: claim, publish, take.
    """

    head_starts: Mapping[int, float]
    slots: Mapping[int, int]
    weights: Mapping[str, float] = field(default_factory=dict)
    reserves: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    max_running: Mapping[str, int] = field(default_factory=dict)
    overhead_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """When and where one arrival began."""

    arrival: Arrival
    at: float
    pool: int

    @property
    def wait(self) -> float:
        """Seconds between due and begun."""
        return self.at - self.arrival.at


def simulate(arrivals: Iterable[Arrival], settings: Settings) -> list[Start]:
    """Run every arrival to its end and tell when each began, in order of their starts.

    Arrivals without a pool never start and are left out.

    >>> urgent, normal = Arrival(1.0, 1, "a", 5.0), Arrival(0.5, 3, "a", 5.0)
    >>> first = Arrival(0.0, 3, "a", 5.0)
    >>> settings = Settings(head_starts={1: 60.0, 3: 0.0}, slots={0: 1})
    >>> [(start.arrival.lane, start.at) for start in simulate([first, normal, urgent], settings)]
    [(3, 0.0), (1, 5.0), (3, 10.0)]
    """
    return _Run(settings).all(sorted(arrivals, key=lambda one: one.at))


class _Run:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = dict(settings.slots)
        self._groups: dict[tuple[Hashable, ...], Group] = {}
        self._turns: dict[int, dict[int, Turns]] = {pool: {} for pool in settings.slots}
        self._held: dict[int, Counter[tuple[int, Hashable]]] = {
            pool: Counter() for pool in settings.slots
        }
        self._running: Counter[Hashable] = Counter()
        self._ends: list[tuple[float, int, int, Arrival]] = []
        self._starts: list[Start] = []

    def all(self, arrivals: Sequence[Arrival]) -> list[Start]:
        coming = deque(arrivals)
        while coming or self._ends:
            now = min(
                coming[0].at if coming else float("inf"),
                self._ends[0][0] if self._ends else float("inf"),
            )
            while self._ends and self._ends[0][0] <= now:
                _, _, pool, done = heappop(self._ends)
                self._free[pool] += 1
                self._held[pool][done.lane, done.tenant] -= 1
                self._running[done.tenant] -= 1
            while coming and coming[0].at <= now:
                self._wait(coming.popleft())
            self._dispatch(now)
        return self._starts

    def _wait(self, one: Arrival) -> None:
        head_start = self._settings.head_starts.get(one.lane, 0.0)
        key = one.lane, one.tenant, one.priority, one.pools
        if key not in self._groups:
            walls: tuple[Wall, ...] = (one.tenant,)
            self._groups[key] = Group(one.lane, one.tenant, deque(), walls=walls)
        self._groups[key].items.append((one.at - head_start - one.priority, one))

    def _dispatch(self, now: float) -> None:
        """Every pool its own work first, then its free slots to work whose home is full; as the scheduler does."""
        waiting: dict[Hashable, list[Group]] = {key[-1]: [] for key in self._groups}
        for key, group in self._groups.items():
            if group.items:
                waiting[key[-1]].append(group)
        for lends in (False, True):
            for pool in self._free:
                groups = [
                    group
                    for pools, some in waiting.items()
                    for group in some
                    if _goes(pools, pool, self._free, lends=lends)  # type: ignore[arg-type]
                ]
                if groups and self._free[pool] > 0:
                    self._fill(pool, groups, now)

    def _fill(self, pool: int, groups: list[Group], now: float) -> None:
        limits = self._settings.max_running
        walls: dict[Wall, float] = {
            tenant: limit - self._running[tenant] for tenant, limit in limits.items()
        }
        picks = pick(
            groups,
            room=self._free[pool],
            turns=self._turns[pool],
            weights=self._settings.weights,
            held=self._held[pool],
            reserves=self._settings.reserves.get(pool),
            walls=walls,
        )
        for one in [chosen.item for chosen in picks.chosen]:
            begins = now + self._settings.overhead_seconds
            self._free[pool] -= 1
            self._held[pool][one.lane, one.tenant] += 1
            self._running[one.tenant] += 1
            self._starts.append(Start(one, begins, pool))
            heappush(self._ends, (begins + one.seconds, len(self._starts), pool, one))


def _goes(pools: tuple[int, ...], pool: int, free: Mapping[int, int], *, lends: bool) -> bool:
    """Whether work that may run in `pools` is looked at for `pool`: at home, or where it is a guest."""
    if not pools:
        return False
    if not lends:
        return pools[0] == pool
    return pool in pools[1:] and free.get(pools[0], 0) <= 0
