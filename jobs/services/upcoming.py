"""What a stored schedule does next, in the words of a preview: its rule, its calendar, its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time
from itertools import islice
from typing import Any, NamedTuple

from jobs.errors import ValidationFailed
from jobs.policies.recurrence import Firing, expand
from jobs.policies.timing import DAY, SECOND, Timing
from jobs.policies.wording import rule_in_words
from jobs.policies.zones import shifts, zone
from jobs.queries.schedules import StoredSchedule
from jobs.services.preview import YEARS, run_document
from jobs.services.timings import timing_of
from jobs.states import OnHoliday

MOST_LOOKED_AT = 400  # firings or closed days, for the next ones that run


class Upcoming(NamedTuple):
    """The rule in words, and its next firings as `run_document` has them."""

    words: str
    runs: list[dict[str, Any]]


def upcoming(
    stored: StoredSchedule, *, after: datetime, count: int, running: bool = False
) -> Upcoming:
    """The next firings; none while it is paused, or of a row that cannot be read any more.

    Args:
        stored: The schedule.
        after: Aware; excluded.
        count: Most.
        running: Only those that run: no slots of a gap or of a closed day. None if they are too far.
    """
    try:
        timing = timing_of(stored)
    except ValidationFailed:
        return Upcoming("", [])
    words = rule_in_words(timing.recurrence.rule, stored.cron)
    if stored.paused:
        return Upcoming(words, [])
    return Upcoming(words, _runs(stored, timing, after, count, running=running))


def _runs(
    stored: StoredSchedule, timing: Timing, after: datetime, count: int, *, running: bool
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    left = None if timing.max_runs is None else timing.max_runs - stored.runs
    # What fired before this version, or into a pause, is no run of it.
    begin = max(_before_delays(timing, after), stored.since, stored.skip_until or stored.since)
    window = timing.within(min(begin, after), after + YEARS)
    firings = (
        _running(timing, *window) if running else expand(timing.recurrence, *window, skipped=True)
    )
    firings = (one for one in firings if one.known_at > after or _is_to_come(timing, one, after))
    for one in islice(firings, count):
        told = run_document(timing, one)
        if left is not None and told["due_at"] and one.known_at > stored.expanded_until:
            if left <= 0:  # those before have been counted when their jobs were made
                break
            left -= 1
        found.append(told)
    return found


def _before_delays(timing: Timing, after: datetime) -> datetime:
    """From when on firings may have a run that is still to come: jitter delays it, and closed days just before."""
    begin = after - timing.delay
    if timing.holidays is None or timing.on_holiday is not OnHoliday.NEXT_BUSINESS_DAY:
        return begin
    there = zone(timing.recurrence.zone)
    day = begin.astimezone(there).date() - DAY
    last = timing.holidays.open_day(day + DAY, -1) or day
    return min(begin, datetime.combine(last + DAY, time(), there).astimezone(UTC) - SECOND)


def _is_to_come(timing: Timing, firing: Firing, after: datetime) -> bool:
    due_at = timing.due_at(firing)
    return due_at is not None and due_at > after


def _running(timing: Timing, begin: datetime, end: datetime) -> Iterator[Firing]:
    """Firings that run. Of a closed day one is looked at where all share its fate: a rule of seconds has thousands."""
    there = zone(timing.recurrence.zone)
    for _ in range(MOST_LOOKED_AT):
        for looked, one in enumerate(expand(timing.recurrence, begin, end)):
            if timing.due_at(one) is not None:
                yield one
            elif looked >= MOST_LOOKED_AT:
                return
            elif one.fire_at is not None and _shared(timing, one.fire_at.astimezone(there)):
                tomorrow = one.fire_at.astimezone(there).date() + DAY
                midnight = datetime.combine(tomorrow, time(), there)
                begin = max(one.fire_at, midnight.astimezone(UTC) - SECOND)
                break
        else:
            return


def _shared(timing: Timing, local: datetime) -> bool:
    """Whether the other firings of this closed day do not run either: no clock is moved up to the day they would go to."""
    if timing.holidays is None:
        return False
    if timing.on_holiday is OnHoliday.SKIP:
        return True
    step = 1 if timing.on_holiday is OnHoliday.NEXT_BUSINESS_DAY else -1
    target = timing.holidays.open_day(local.date(), step) or local.date()
    first, last = sorted((local.date(), target))
    days = (datetime.combine(day, time(), UTC) for day in (first - DAY, last + 2 * DAY))
    return not shifts(timing.recurrence.zone, *(round(day.timestamp()) for day in days))
