"""What a stored schedule does next, in the words of a preview: its rule, its calendar, its bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from jobs.errors import ValidationFailed
from jobs.policies.recurrence import expand
from jobs.policies.timing import Timing
from jobs.policies.wording import rule_in_words
from jobs.queries.schedules import StoredSchedule
from jobs.services.preview import YEARS, run_document
from jobs.services.timings import timing_of

MOST_LOOKED_AT = 1_000  # firings, for the next ones that run


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
        running: Only those that run, of the next 1,000: no slots of a gap or of a closed day.
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
    window = timing.within(after, after + YEARS)
    for looked, one in enumerate(expand(timing.recurrence, *window, skipped=not running)):
        if len(found) >= count or looked >= MOST_LOOKED_AT:
            break
        told = run_document(timing, one)
        if running and told["due_at"] is None:
            continue
        if left is not None and told["due_at"] and one.known_at > stored.expanded_until:
            if left <= 0:  # those before have been counted when their jobs were made
                break
            left -= 1
        found.append(told)
    return found
