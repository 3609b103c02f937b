"""The calendar by brute force: walk every minute of a window, look at the clock, and apply the policy to what was seen.

Written against docs and policy alone. It shares no code with jobs/policies and no way of thinking either: nothing is
calculated about zones, the clock of the standard library is read, minute by minute.
"""

from __future__ import annotations

import calendar
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MARGIN = timedelta(days=3)  # no clock was ever moved by more than one


@dataclass(frozen=True)
class DrawnRule:
    """A cron rule as sets, next to the text that says the same.

    Attributes:
        days: Days of the month, "L" for the last; None when the field is `*`.
        weekdays: Plain numbers, (weekday, n) or (weekday, "L"), 0 is Sunday; None when the field is `*`.
    """

    text: str
    second: int
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[object] | None
    months: frozenset[int]
    weekdays: frozenset[object] | None

    def on(self, day: date) -> bool:
        """Whether it runs on this date."""
        if day.month not in self.months:
            return False
        last = calendar.monthrange(day.year, day.month)[1]
        weekday = (day.weekday() + 1) % 7
        nth = (day.day + 6) // 7
        by_day = self.days is not None and (
            day.day in self.days or ("L" in self.days and day.day == last)
        )
        by_weekday = self.weekdays is not None and bool(
            self.weekdays & {weekday, (weekday, nth)}
            or (day.day + 7 > last and (weekday, "L") in self.weekdays)
        )
        if self.days is None and self.weekdays is None:
            return True
        return by_day or by_weekday

    def at(self, wall: datetime) -> bool:
        """Whether a minute of a local clock holds a slot."""
        return wall.hour in self.hours and wall.minute in self.minutes and self.on(wall.date())


def walk(
    rule: DrawnRule, key: str, on_gap: str, on_overlap: str, after: datetime, until: datetime
) -> list[datetime]:
    """Instants with after < t <= until.

    Args:
        rule: What to look for.
        key: Zone.
        on_gap: next_valid, shift_forward or skip.
        on_overlap: first, second or both.
        after, until: Aware.
    """
    second = timedelta(seconds=rule.second)
    zone = ZoneInfo(key)
    minutes: list[tuple[datetime, datetime]] = []  # instant, what the clock shows
    instant = (after - MARGIN).astimezone(UTC).replace(second=0, microsecond=0)
    while instant <= until + MARGIN:
        minutes.append((instant, instant.astimezone(zone).replace(tzinfo=None)))
        instant += MINUTE
    shown: dict[datetime, list[datetime]] = defaultdict(list)
    for instant, wall in minutes:
        shown[wall].append(instant)
    due: set[datetime] = set()
    every_hour = rule.hours == frozenset(range(24))
    for wall, instants in shown.items():
        if rule.at(wall):
            if every_hour or len(instants) == 1 or on_overlap == "both":
                due.update(instants)
            else:
                due.add(instants[0] if on_overlap == "first" else instants[-1])
    due = {instant + second for instant in due}
    if not every_hour and on_gap != "skip":
        for (_, wall), (instant, next_wall) in pairwise(minutes):
            missing = wall + MINUTE
            while missing < next_wall:
                if rule.at(missing):
                    late = missing + second - (wall + MINUTE)
                    due.add(instant + (late if on_gap == "shift_forward" else timedelta(0)))
                missing += MINUTE
    return sorted(one for one in due if after < one <= until)
