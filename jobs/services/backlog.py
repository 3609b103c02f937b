"""What waits in the shards of one scheduler, as it last saw it: due entries by group, read no oftener than they are worth.

A shard with few due entries is read as a whole at every look. A deep one is read by groups: the first entry of each, and
more of a group only when its turn comes. Everything here is a hint, and may be stale: the claim is the guard.

A look begins at the beginning of the calendar, and so finds rows that were committed late or with an old due time. Where
that has become dear, because an old snapshot keeps the entries of finished work, most looks begin where the last of these
sweeps has found the first entry.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jobs.conf import conf
from jobs.policies.fairness import Group
from jobs.queries.candidates import DueRow, GroupKey, due_groups, due_rows, group_rows

SHALLOW_ROWS = 64  # so many due entries make a shard deep
DEEP_SECONDS = 2.0  # how long a deep shard counts as deep before it is tried as a whole again
CHEAP_SECONDS = 0.005  # a look that costs less is made at every turn
SWEEP_SECONDS = 0.001  # a sweep that costs less is made at every look
DEAR_SWEEPS = 3  # in a row: one may have met a slow moment
LATE_SECONDS = 1.0  # a commit that comes no later than this after its due time needs no sweep
LOOK_SHARE = (
    0.1  # so much of the time may go into dearer looks, but one a tick is made in any case
)


@dataclass(slots=True)
class Backlog:
    """Groups with due work. `look` first; then groups may be consumed until the next look."""

    groups: dict[GroupKey, Group] = field(default_factory=dict)
    _deep_until: dict[int, float] = field(default_factory=dict)
    _seen: tuple[object, ...] = ()
    _look_at: float = 0.0
    floors: dict[int, float] = field(default_factory=dict)
    _sweep_at: float = 0.0
    _dear_sweeps: int = 0

    def look(
        self,
        *,
        shards: Sequence[int],
        head_starts: Mapping[int, float],
        at: float = 0.0,
        now: datetime | None,
    ) -> None:
        """Bring the groups up to date, unless the last look was dear and is recent.

        Args:
            shards: Shards of this scheduler.
            head_starts: Lane → seconds.
            at: A moment before this look, in seconds since 1970 by the database; 0 if it is not known.
            now: Aware UTC; default is the database clock.
        """
        began = time.monotonic()
        seen = tuple(shards), tuple(sorted(head_starts.items()))
        if seen != self._seen:
            self.groups, self._seen = {}, seen  # ranks have changed, or what is ours has
            self._sweep_at = 0.0
        elif self.groups and began < self._look_at and now is None:
            return
        deep = {shard for shard in shards if self._deep_until.get(shard, 0.0) > began}
        flat = [shard for shard in shards if shard not in deep]
        sweeps = began >= self._sweep_at or now is not None
        floors = {} if sweeps else self.floors
        rows = due_rows(shards=flat, limit=SHALLOW_ROWS, floors=floors, now=now) if flat else []
        counts = Counter(row.key.shard for row in rows)
        for shard, count in counts.items():
            if count >= SHALLOW_ROWS:
                deep.add(shard)
                self._deep_until[shard] = began + DEEP_SECONDS
        heads = due_groups(shards=sorted(deep), floors=floors, now=now) if deep else []
        if sweeps:
            self._swept([*rows, *heads], shards, at=at, began=began)
        self.groups = self._merged(
            [row for row in rows if row.key.shard not in deep], heads, head_starts
        )
        ended = time.monotonic()
        cost = ended - began
        pause = 0.0 if cost < CHEAP_SECONDS else cost / LOOK_SHARE
        self._look_at = ended + min(pause, conf().tick_seconds)

    def fetch(
        self,
        limits: Mapping[GroupKey, int],
        *,
        head_starts: Mapping[int, float],
        now: datetime | None,
    ) -> None:
        """Read the first entries of these groups anew, at most so many of each."""
        if not limits:
            return
        found: dict[GroupKey, list[DueRow]] = {key: [] for key in limits}
        for row in group_rows(limits=limits, floors=self.floors, now=now):
            found[row.key].append(row)
        for key, rows in found.items():
            group = self.groups[key]
            group.items = _items(sorted(rows, key=_place), head_starts)
            group.more = len(rows) >= limits[key]

    def _swept(
        self, found: Iterable[DueRow], shards: Sequence[int], *, at: float, began: float
    ) -> None:
        """Begin the next looks at the first entries found, or now; and put the next sweep off if this was dear again."""
        self.floors = dict.fromkeys(shards, at - LATE_SECONDS)
        for row in found:
            floor = row.due - LATE_SECONDS
            self.floors[row.key.shard] = min(self.floors[row.key.shard], floor)
        ended = time.monotonic()
        cost = ended - began
        self._dear_sweeps = self._dear_sweeps + 1 if cost >= SWEEP_SECONDS else 0
        if self._dear_sweeps >= DEAR_SWEEPS:
            self._sweep_at = ended + min(cost / LOOK_SHARE, conf().tick_seconds)

    def drop_empty(self) -> None:
        """Forget groups of which everything is gone."""
        self.groups = {
            key: group for key, group in self.groups.items() if group.items or group.more
        }

    def _merged(
        self, rows: Iterable[DueRow], heads: Iterable[DueRow], head_starts: Mapping[int, float]
    ) -> dict[GroupKey, Group]:
        by_key: dict[GroupKey, list[DueRow]] = {}
        for row in rows:
            by_key.setdefault(row.key, []).append(row)
        merged = {
            key: Group(key.lane, key.tenant, _items(sorted(found, key=_place), head_starts))
            for key, found in by_key.items()
        }
        for head in heads:
            known = self.groups.get(head.key)
            # Of several with one due time any may be read as the head: what is known of them is as good.
            if known is None or not known.items or known.items[0][1].due != head.due:
                items = _items([head], head_starts)
                known = Group(head.key.lane, head.key.tenant, items, more=True)
            known.more = True  # read as a whole before the shard was deep, it may have grown since
            merged[head.key] = known
        return merged


def _items(
    rows: Iterable[DueRow], head_starts: Mapping[int, float]
) -> deque[tuple[float, DueRow]]:
    # The rank of policies.priority in seconds; the lease gets the same from the claim's SQL.
    return deque(
        (row.due - head_starts.get(row.key.lane, 0.0) - row.key.priority, row) for row in rows
    )


def _place(row: DueRow) -> tuple[float, int]:
    return row.due, row.job_id.int  # at one moment the older job first
