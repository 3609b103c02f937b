"""When a recurring schedule is due: a rule on a local clock, a zone, and what to do where the clock is moved.

Owns rule → instants, purely: nothing here reads a clock. `expand` is the one function that scheduler, preview and checks
call. Inside, instants and local times are whole seconds since 1970 (see zones.py), so that a day is always 86,400 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from jobs.policies.cron import DAY, EPOCH
from jobs.policies.intervals import Every
from jobs.policies.zones import WIDEST_SECONDS, Shift, offset, shifts
from jobs.states import OnGap, OnOverlap, Resolution

FIRST = 0  # 1970-01-01T00:00:00Z
LAST = 4_102_444_799  # 2099-12-31T23:59:59Z
QUIET = 3 * WIDEST_SECONDS
STEP_FIRINGS = 200  # about so many are worked out at a time


class Rule(Protocol):
    """Slots on a local clock, or beats of elapsed time."""

    @property
    def is_interval(self) -> bool:
        """It follows elapsed time: no slot is moved, dropped or chosen between where a clock is moved."""

    @property
    def per_day(self) -> float:
        """About how many slots a day has."""

    def slots(self, begin: int, end: int) -> Iterator[int]:
        """Local times in [begin, end), ascending."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """All that decides when a schedule is due.

    Attributes:
        rule: CronRule, Every or EveryDate.
        zone: Key of the zone data.
        on_gap: For slots that the clock never shows.
        on_overlap: For slots that it shows twice.
    """

    rule: Rule | Every
    zone: str
    on_gap: OnGap = OnGap.NEXT_VALID
    on_overlap: OnOverlap = OnOverlap.FIRST

    @property
    def is_interval(self) -> bool:
        """It follows elapsed time: neither policy counts."""
        return isinstance(self.rule, Every) or self.rule.is_interval


@dataclass(frozen=True, slots=True)
class Firing:
    """One slot and what became of it.

    Attributes:
        fire_at: Aware UTC; None if the slot was in a gap and is skipped.
        slot: Local time it stands for, naive.
        number: 1 for the first time the clock shows the slot, 2 for the second, 0 for never run.
        resolution: How the instant came about.
        known_at: The instant by which its fate is settled: `fire_at`, or the end of the gap.
    """

    fire_at: datetime | None
    slot: datetime
    number: int
    resolution: Resolution
    known_at: datetime


def expand(
    schedule: Recurrence, after: datetime, until: datetime, *, skipped: bool = False
) -> Iterator[Firing]:
    """What is due with after < instant <= until, strictly ascending. Windows compose: two that touch are one.

    Worked out as it is read, so a caller bounds it by count: a rule of every second is as cheap as its first firings.

    Args:
        schedule: Rule, zone, policies.
        after: Aware; excluded.
        until: Aware; included.
        skipped: Give slots that a gap has skipped, too, at the end of their gap.

    >>> from jobs.policies.cron import parse_cron
    >>> daily = Recurrence(parse_cron("30 2 * * *"), "America/New_York")
    >>> window = datetime(2025, 3, 9, 5, tzinfo=UTC), datetime(2025, 3, 10, 12, tzinfo=UTC)
    >>> [(str(one.fire_at), one.resolution.value) for one in expand(daily, *window)]
    [('2025-03-09 07:00:00+00:00', 'after_gap'), ('2025-03-10 06:30:00+00:00', 'plain')]
    """
    low = max(_seconds(after), FIRST - 1)
    high = min(_seconds(until), LAST)
    rule = schedule.rule
    if isinstance(rule, Every):
        low = max(low, rule.anchor - 1)
    per_day = DAY / rule.seconds if isinstance(rule, Every) else rule.per_day
    most = round(min(max(STEP_FIRINGS / per_day, 1 / 1440), 366) * DAY)
    step = max(most // 100, 1)  # many callers want no more than the first one or two
    while low < high:
        end = min(low + step, high)
        found = _step(schedule, low, end)
        if skipped:
            yield from found
        else:
            yield from (one for one in found if one.fire_at is not None)
        low, step = end, min(4 * step, most)
        if not found and not isinstance(rule, Every):
            # A rule of every second of one day in a year must not be looked for second by second.
            low = _quiet_until(rule, schedule.zone, low, high)


def _quiet_until(rule: Rule, key: str, low: int, high: int) -> int:
    """Nothing is due after `low` up to this."""
    ahead = offset(key, low)
    first = next(rule.slots(low + 1 + ahead, high + QUIET), high + QUIET)
    if not shifts(key, low - QUIET, min(first, low + QUIET) + QUIET) and first < low + QUIET:
        return min(first - ahead - 1, high)  # the clock runs on evenly up to that slot
    # Further away than any clock is ahead or is moved; from there on it is looked at again.
    first = next(rule.slots(low - QUIET, high + QUIET), high + QUIET)
    return min(max(low, first - QUIET), high)


def _step(schedule: Recurrence, low: int, high: int) -> list[Firing]:
    """All of (low, high], in order. Each instant is worked out from the schedule alone, never from the window."""
    moves = shifts(schedule.zone, low - 2 * WIDEST_SECONDS, high + WIDEST_SECONDS)
    if isinstance(schedule.rule, Every):
        return _beats(schedule.rule, schedule.zone, moves, low, high)
    found: dict[int, Firing] = {}
    skipped: list[Firing] = []
    rule = schedule.rule
    for begin, end, ahead in _segments(schedule.zone, moves, low, high):
        for slot in rule.slots(begin + ahead, end + ahead):
            number = _pass(slot, slot - ahead, moves)
            if rule.is_interval or _wanted(number, schedule.on_overlap):
                found[slot - ahead] = _shown(slot, slot - ahead, number)
    if not rule.is_interval:
        for move in moves:
            for one in _moved(rule, move, schedule.on_gap, low, high):
                if one.fire_at is None:
                    skipped.append(one)
                else:
                    at = _seconds(one.fire_at)
                    found[at] = _preferred(found.get(at), one)
    return sorted([*found.values(), *skipped], key=lambda one: (one.known_at, one.slot))


def _segments(key: str, moves: list[Shift], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """[begin, end) and offset of the pieces of (low, high] in which the clock runs on evenly."""
    begin, ahead = low + 1, offset(key, low + 1)
    for move in moves:
        if begin < move.at <= high:
            yield begin, move.at, ahead
            begin, ahead = move.at, move.after
    yield begin, high + 1, ahead


def _pass(slot: int, instant: int, moves: list[Shift]) -> int:
    """0 if the clock shows the slot once, 1 or 2 if this instant is the first or second of two."""
    for at, before, after in moves:
        if at + after <= slot < at + before:
            return 1 if instant < at else 2
    return 0


def _wanted(number: int, on_overlap: OnOverlap) -> bool:
    match on_overlap:
        case OnOverlap.FIRST:
            return number != 2
        case OnOverlap.SECOND:
            return number != 1
        case OnOverlap.BOTH:
            return True


def _shown(slot: int, instant: int, number: int) -> Firing:
    resolution = (Resolution.PLAIN, Resolution.FIRST_PASS, Resolution.SECOND_PASS)[number]
    return _firing(slot, instant, number or 1, resolution)


def _moved(rule: Rule, move: Shift, on_gap: OnGap, low: int, high: int) -> Iterator[Firing]:
    """Slots inside this gap, as far as they count in (low, high]."""
    begin, end = move.at + move.before, move.at + move.after
    if end <= begin:
        return
    if on_gap is OnGap.SHIFT_FORWARD:
        for slot in rule.slots(
            max(begin, low + 1 + move.before), min(end, high + 1 + move.before)
        ):
            yield _firing(slot, slot - move.before, 1, Resolution.SHIFTED)
    elif low < move.at <= high:
        for slot in rule.slots(begin, end):
            if (
                on_gap is OnGap.NEXT_VALID
            ):  # all of them land there, and the earliest stands for them
                yield _firing(slot, move.at, 1, Resolution.AFTER_GAP)
                return
            yield Firing(None, _local(slot), 0, Resolution.IN_GAP, _instant(move.at))


def _preferred(known: Firing | None, other: Firing) -> Firing:
    """Of two slots that land on one instant: the plain one, else the earlier."""
    if known is None:
        return other
    if known.resolution is Resolution.PLAIN:
        return known
    return min(known, other, key=lambda one: one.slot)


def _beats(rule: Every, key: str, moves: list[Shift], low: int, high: int) -> list[Firing]:
    first = max(0, -(-(low + 1 - rule.anchor) // rule.seconds))
    beats = range(rule.anchor + first * rule.seconds, high + 1, rule.seconds)
    found = []
    for instant in beats:
        slot = instant + offset(key, instant)
        found.append(_shown(slot, instant, _pass(slot, instant, moves)))
    return found


def _firing(slot: int, instant: int, number: int, resolution: Resolution) -> Firing:
    at = _instant(instant)
    return Firing(at, _local(slot), number, resolution, at)


def _local(slot: int) -> datetime:
    return EPOCH + timedelta(seconds=slot)


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime) -> int:
    """Whole seconds at or before it."""
    return int(moment.timestamp() // 1)
