"""Which schedules a coming change of their clock touches, and what their policy makes of it.

Rules that follow elapsed time are never touched. Of each other one only the hours around the change are worked out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from jobs.errors import ValidationFailed
from jobs.models import Schedule
from jobs.policies.intervals import Every
from jobs.policies.recurrence import Firing, Recurrence, expand
from jobs.policies.timing import Timing
from jobs.policies.wording import rule_in_words, shift_in_words
from jobs.policies.zones import Shift
from jobs.queries.schedules import StoredSchedule
from jobs.services.preview import clock, coming_shifts, instant, run_document
from jobs.services.timings import timing_of

MOST_RUNS = 20  # of one schedule at one change that are told
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  a local clock has no zone


@dataclass(slots=True)
class Touched:
    """Changes of clocks with the schedules that they touch.

    Attributes:
        transitions: By time, then zone: at, zone, kind, words, and of each schedule its policy and its runs.
        unreadable: Schedules whose stored rule cannot be read.
    """

    transitions: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[UUID] = field(default_factory=list)


def touched(
    schedules: Iterable[tuple[Schedule, StoredSchedule]], *, after: datetime, until: datetime
) -> Touched:
    """What the changes of the clock in (after, until] do to these schedules.

    Args:
        schedules: Each as it is listed and as it is expanded.
        after: Aware.
        until: Aware.
    """
    found = Touched()
    moves: dict[str, list[Shift]] = {}
    told: dict[tuple[int, str], dict[str, Any]] = {}
    for schedule, stored in schedules:
        try:
            timing = timing_of(stored)
        except ValidationFailed:
            found.unreadable.append(schedule.pk)
            continue
        key = timing.recurrence.zone
        if key not in moves:
            moves[key] = coming_shifts(key, after, until)
        for shift in moves[key]:
            if runs := _at(timing, shift):
                place = told.setdefault(
                    (shift.at, key), {**_document(shift, key), "schedules": []}
                )
                place["schedules"].append(_line(schedule, stored, timing, shift, runs))
    found.transitions = [told[one] for one in sorted(told)]
    return found


def _at(timing: Timing, shift: Shift) -> list[Firing]:
    """Firings of slots inside this gap or overlap, and what lands on the end of the gap; [] if it touches none."""
    rule = timing.recurrence.rule
    if isinstance(rule, Every) or rule.is_interval:
        return []
    low, high = sorted((shift.at + shift.before, shift.at + shift.after))
    if next(iter(rule.slots(low, high)), None) is None:
        return []
    first, last = EPOCH + timedelta(seconds=low), EPOCH + timedelta(seconds=high)
    at, length = datetime.fromtimestamp(shift.at, UTC), timedelta(seconds=high - low)
    begin, end = timing.within(at - length - timedelta(seconds=1), at + length)
    gap = shift.after > shift.before

    def concerns(one: Firing) -> bool:
        return first <= one.slot < last or (gap and one.fire_at == at)

    around: Iterator[Firing] = (
        one for one in expand(timing.recurrence, begin, end, skipped=True) if concerns(one)
    )
    return list(islice(around, MOST_RUNS + 1))


def _document(shift: Shift, key: str) -> dict[str, Any]:
    at = datetime.fromtimestamp(shift.at, UTC)
    before, after = (clock(at + timedelta(seconds=o)) for o in (shift.before, shift.after))
    return {
        "at": instant(at),
        "zone": key,
        "kind": "gap" if shift.after > shift.before else "overlap",
        "words": shift_in_words(shift, before, after),
    }


def _line(
    schedule: Schedule, stored: StoredSchedule, timing: Timing, shift: Shift, runs: list[Firing]
) -> dict[str, Any]:
    rule: Recurrence = timing.recurrence
    gap = shift.after > shift.before
    policy = {"on_gap": rule.on_gap.value} if gap else {"on_overlap": rule.on_overlap.value}
    return {
        "id": str(schedule.pk),
        "name": schedule.name,
        "words": rule_in_words(rule.rule, stored.cron),
        "paused": stored.paused,
        "policy": policy,
        "runs": [run_document(timing, one) for one in runs[:MOST_RUNS]],
        "cut": len(runs) > MOST_RUNS,
    }
