"""The calendar a second time, by brute force, to hold the ledger against: look at a zone's clock and see what it shows.

Owns what should have fired. It shares no way of thinking with recurrence.py: there the moments at which a clock is moved
are searched for and windows are cut at them; here the clock is read every quarter of an hour (every second where it is
moved), day by day, and each slot of a date is looked for on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from jobs.policies.plain_rules import BeatRule, WallRule, read_rule
from jobs.policies.zones import zone, zone_keys

DAY = 86_400
QUARTER = 900
EPOCH = date(1970, 1, 1)
LAST = 4_102_444_799  # 2099-12-31T23:59:59Z
AROUND = 2  # days before and after a date that may show any of it
GAPS, OVERLAPS = {"next_valid", "shift_forward", "skip"}, {"first", "second", "both"}


@dataclass(frozen=True, slots=True)
class Calendar:
    """Rule, zone and what is done where its clock is moved; all of it can be read."""

    rule: WallRule | BeatRule
    zone: str
    on_gap: str
    on_overlap: str


class Due(NamedTuple):
    """One firing, or a slot that a gap skips.

    Attributes:
        known_at: Aware UTC; `fire_at`, or the end of the gap.
        fire_at: None if it is skipped.
        slot: Local time as text.
        number: 1 or 2: the first or second time the clock shows it; 0: never.
    """

    known_at: datetime
    fire_at: datetime | None
    slot: str
    number: int


class _Found(NamedTuple):
    instant: int
    slot: int
    number: int
    plain: bool


class _Stretch(NamedTuple):
    """[begin, end) in UTC, in which the clock is `ahead` seconds ahead of it."""

    begin: int
    end: int
    ahead: int


def read_calendar(
    *, cron: str, every: str, anchor: str, zone: str, on_gap: str, on_overlap: str
) -> Calendar:
    """From the columns of a version.

    Raises:
        ValueError: One of them is not understood.
    """
    if zone not in zone_keys() or on_gap not in GAPS or on_overlap not in OVERLAPS:
        raise ValueError(zone)
    return Calendar(read_rule(cron, every, anchor), zone, on_gap, on_overlap)


def walk(calendar: Calendar, after: datetime, until: datetime) -> Iterator[Due]:
    """All that is known with after < instant <= until, ascending, and by slot where a gap skips several.

    >>> daily = read_calendar(cron="30 2 * * *", every="", anchor="", zone="America/New_York",
    ...     on_gap="next_valid", on_overlap="first")
    >>> window = datetime(2025, 3, 9, 5, tzinfo=UTC), datetime(2025, 3, 10, 12, tzinfo=UTC)
    >>> [(one.slot, one.fire_at.hour) for one in walk(daily, *window)]
    [('2025-03-09T02:30:00', 7), ('2025-03-10T02:30:00', 6)]
    """
    low = max(int(after.timestamp() // 1), -1)
    high = min(int(until.timestamp() // 1), LAST)
    if low >= high:
        return
    if isinstance(calendar.rule, BeatRule):
        found = _beats(calendar.rule, calendar.zone, low, high)
    else:
        found = _walls(calendar, calendar.rule, low, high)
    for one in found:
        known_at = _at(one.instant)
        slot = _at(one.slot).replace(tzinfo=None).isoformat()
        yield Due(known_at, known_at if one.number else None, slot, one.number)


def among(calendar: Calendar, moments: Set[datetime]) -> set[Due]:
    """What is known at these moments."""
    days = {int(moment.timestamp() // DAY) for moment in moments}
    return {
        due
        for day in days
        for due in walk(calendar, _at(day * DAY - 1), _at(day * DAY + DAY - 1))
        if due.known_at in moments
    }


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _walls(calendar: Calendar, rule: WallRule, low: int, high: int) -> Iterator[_Found]:
    held: dict[tuple[int, int], _Found] = {}
    for day in range(low // DAY - AROUND, high // DAY + AROUND + 1):
        if rule.on(EPOCH + timedelta(days=day)):
            for one in _of_date(calendar, rule, day):
                if low < one.instant <= high:
                    # Skipped slots stand for themselves; of those that run at one instant, one does.
                    key = one.instant, one.slot if one.number == 0 else -1
                    held[key] = min(held.get(key, one), one, key=_rank)
        # No zone is a whole day ahead: what later dates hold comes later.
        settled = [key for key in held if key[0] <= day * DAY]
        yield from sorted(held.pop(key) for key in settled)
    yield from sorted(held.values())


def _rank(one: _Found) -> tuple[bool, int]:
    """A slot that the clock shows once goes first, then the earlier one."""
    return not one.plain, one.slot


def _of_date(calendar: Calendar, rule: WallRule, day: int) -> Iterator[_Found]:
    stretches = _around(calendar.zone, day)
    for time in rule.times:
        slot = day * DAY + time
        shown = [slot - ahead for begin, end, ahead in stretches if begin <= slot - ahead < end]
        if not shown:
            if not rule.every_hour:
                yield _never_shown(calendar.on_gap, stretches, slot)
        elif len(shown) == 1:
            yield _Found(shown[0], slot, 1, plain=True)
        else:
            for number, instant in enumerate(shown, start=1):
                wanted = {"first": number == 1, "second": number == len(shown), "both": True}
                if rule.every_hour or wanted[calendar.on_overlap]:
                    yield _Found(instant, slot, number, plain=False)


def _never_shown(on_gap: str, stretches: tuple[_Stretch, ...], slot: int) -> _Found:
    before = max(
        (one for one in stretches if one.end + one.ahead <= slot), key=lambda one: one.end
    )
    if on_gap == "shift_forward":
        return _Found(slot - before.ahead, slot, 1, plain=False)
    return _Found(before.end, slot, 1 if on_gap == "next_valid" else 0, plain=False)


def _beats(rule: BeatRule, key: str, low: int, high: int) -> Iterator[_Found]:
    passed = max(0, (low - rule.anchor) // rule.seconds)
    for instant in range(rule.anchor + passed * rule.seconds, high + 1, rule.seconds):
        if instant > low:
            slot = instant + _ahead(key, instant)
            shown = [
                slot - one.ahead
                for one in _around(key, slot // DAY)
                if one.begin <= slot - one.ahead < one.end
            ]
            yield _Found(instant, slot, shown.index(instant) + 1, plain=len(shown) == 1)


@lru_cache(maxsize=4096)
def _around(key: str, day: int) -> tuple[_Stretch, ...]:
    """What the clock does on the days around a date."""
    found: list[_Stretch] = []
    for near in range(day - AROUND, day + AROUND + 1):
        for one in _of_day(key, near):
            if found and found[-1].ahead == one.ahead:
                found[-1] = found[-1]._replace(end=one.end)
            else:
                found.append(one)
    return tuple(found)


@lru_cache(maxsize=16_384)
def _of_day(key: str, day: int) -> tuple[_Stretch, ...]:
    found: list[_Stretch] = []
    begin, ahead = day * DAY, _ahead(key, day * DAY)
    for quarter in range(day * DAY, day * DAY + DAY, QUARTER):
        if _ahead(key, quarter) == ahead == _ahead(key, quarter + QUARTER - 1):
            continue
        for second in range(quarter, quarter + QUARTER):
            if (moved := _ahead(key, second)) != ahead:
                found.append(_Stretch(begin, second, ahead))
                begin, ahead = second, moved
    found.append(_Stretch(begin, day * DAY + DAY, ahead))
    return tuple(one for one in found if one.begin < one.end)


def _ahead(key: str, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone(key)).utcoffset()
    assert offset is not None, "a zone has an offset"  # noqa: S101
    return offset // timedelta(seconds=1)
