"""Intervals: elapsed ones (every 90 minutes) and civil ones (every 3 days at 09:00). Owns their text and their beats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.errors import InvalidField
from jobs.policies.cron import DAY, EPOCH
from jobs.policies.times import parse_time

_EVERY = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d|w|mo)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_DAYS = {"d": 1, "w": 7}
_LOCAL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
LONGEST_DAYS = 3653
LONGEST_ANCHOR = 32  # as long as an instant with microseconds and offset


@dataclass(frozen=True, slots=True)
class Every:
    """Beats of elapsed time: the anchor and every so many seconds after it, whatever the clock shows.

    Attributes:
        anchor: Seconds since 1970; the first beat.
        seconds: From beat to beat.
    """

    anchor: int
    seconds: int


@dataclass(frozen=True, slots=True)
class EveryDate:
    """Every so many days or months at a wall time, counted from a first date.

    Attributes:
        first: The first slot, local seconds. Its time of day is that of all.
        days: Days from one to the next; 0 for a rule by months.
        months: Months from one to the next. A month without such a day has no slot.
    """

    first: int
    days: int = 0
    months: int = 0

    @property
    def is_interval(self) -> bool:
        """It keeps to the wall clock."""
        return False

    @property
    def per_day(self) -> float:
        """At most one."""
        return 1 / (self.days or 30 * self.months)

    def slots(self, begin: int, end: int) -> Iterator[int]:
        """Local times in [begin, end), ascending."""
        begin = max(begin, self.first)
        if self.days:
            step = self.days * DAY
            yield from range(self.first + -(-(begin - self.first) // step) * step, end, step)
            return
        start = EPOCH + timedelta(seconds=self.first)
        ahead = (begin - self.first) // (31 * DAY * self.months)  # never past the first one wanted
        while True:
            months = start.year * 12 + start.month - 1 + ahead * self.months
            ahead += 1
            if (months // 12 - 1970) * 365 * DAY >= end:
                return
            try:
                slot = start.replace(year=months // 12, month=months % 12 + 1)
            except ValueError:
                continue  # there is no 31st in this month
            local = (slot - EPOCH) // timedelta(seconds=1)
            if local >= end:
                return
            if local >= begin:
                yield local


def parse_every(
    every: object, anchor: object, pointer: str = "/every", anchor_pointer: str = "/anchor"
) -> Every | EveryDate:
    """The rule of a length such as 45s, 90m, 36h (elapsed time) or 3d, 2w, 1mo (dates, by the clock on the wall).

    Args:
        every: Number and unit.
        anchor: Where it begins: for elapsed time an instant with offset, for dates a local time without one.
        pointer: Of `every`.
        anchor_pointer: Of `anchor`.

    Raises:
        InvalidField: Code `bad_syntax`, `out_of_range`, or those of a time.

    >>> parse_every("90m", "2026-03-01T09:00:00Z")
    Every(anchor=1772355600, seconds=5400)
    >>> parse_every("2w", "2026-03-01T09:00:00").days
    14
    """
    found = _EVERY.fullmatch(every) if isinstance(every, str) else None
    if found is None:
        raise InvalidField(
            pointer, "bad_syntax", "must be a number with s, m, h, d, w or mo, such as 90m"
        )
    if isinstance(anchor, str) and len(anchor) > LONGEST_ANCHOR:
        reason = f"must have at most {LONGEST_ANCHOR} characters"
        raise InvalidField(anchor_pointer, "too_long", reason)
    count, unit = int(found[1]), found[2]
    if count * _SECONDS.get(unit, DAY * _DAYS.get(unit, 31)) > LONGEST_DAYS * DAY:
        raise InvalidField(pointer, "out_of_range", "must be at most ten years")
    if unit in _SECONDS:
        start = parse_time(anchor, anchor_pointer)
        return Every(int(start.timestamp() // 1), count * _SECONDS[unit])
    first = _local(anchor, anchor_pointer)
    return EveryDate(first, days=count * _DAYS.get(unit, 0), months=count if unit == "mo" else 0)


def _local(value: object, pointer: str) -> int:
    try:
        if not isinstance(value, str) or not _LOCAL.fullmatch(value):
            raise ValueError
        moment = datetime.fromisoformat(value).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidField(
            pointer, "invalid_time", "must be a local time such as 2026-03-01T09:00:00"
        ) from None
    if not 1970 <= moment.year <= 2099:
        raise InvalidField(pointer, "out_of_range", "must lie in the years 1970 to 2099")
    return round(moment.timestamp())
