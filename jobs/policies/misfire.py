"""What becomes of each firing when a schedule is expanded: run, skipped with a reason, or dropped. Also those missed.

Owns the plan of one schedule for one round. Pure: the clock is an argument, and nothing is stored here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from jobs.policies.recurrence import Firing, Recurrence, expand
from jobs.policies.timing import Timing
from jobs.states import Misfire, OnHoliday, Verdict

FAR = timedelta(days=400)  # how far the next firing of a sparse rule is looked for
FIRST_SPAN = timedelta(minutes=1)
HALF_DAY = timedelta(hours=12)
LAST_YEAR = 2099


@dataclass(frozen=True, slots=True)
class Decision:
    """One firing and what becomes of it; `due_at` is None for one that gets no job."""

    firing: Firing
    verdict: Verdict
    due_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round of one schedule.

    Attributes:
        decisions: Ascending.
        expanded_until: Up to here, included, everything has its verdict.
        look_at: When the next round is needed; None when nothing comes any more.
    """

    decisions: list[Decision]
    expanded_until: datetime
    look_at: datetime | None


def plan(
    timing: Timing,
    *,
    expanded_until: datetime,
    now: datetime,
    ahead_seconds: float,
    most: int,
    runs: int = 0,
    paused: bool = False,
    skip_until: datetime | None = None,
    skip_reason: str = "paused",
) -> Plan:
    """Decide on what fires after `expanded_until`, up to a little after now.

    Args:
        timing: The schedule.
        expanded_until: Aware; what fires up to here was decided before.
        now: Aware; the database's clock.
        ahead_seconds: How far ahead jobs are made.
        most: Firings of one round, about: those of one instant are never torn apart.
        runs: Jobs that were made before, for `max_runs`.
        paused: Nothing runs: what fires meanwhile is skipped, and what is still to come is left open.
        skip_until: Aware; what fired up to then never runs: a pause that is over lasted until then, for one.
        skip_reason: Why not.

    >>> from datetime import UTC, datetime
    >>> from jobs.policies.cron import parse_cron
    >>> timing = Timing(recurrence=Recurrence(parse_cron("@hourly"), "UTC"))
    >>> began, noon = datetime(2026, 5, 1, 8, 30, tzinfo=UTC), datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    >>> made = plan(timing, expanded_until=began, now=noon, ahead_seconds=3600, most=100)
    >>> [(one.firing.slot.hour, one.verdict.value, one.reason) for one in made.decisions]
    [(9, 'skipped', 'misfire'), (10, 'skipped', 'misfire'), (11, 'skipped', 'misfire'), (12, 'pending', ''), (13, 'pending', '')]
    """
    ahead = timedelta(seconds=ahead_seconds)
    until = now if paused else timing.reach(now + ahead)
    begin, end = timing.within(expanded_until, until)
    found, rest = _round(timing.recurrence, begin, end, most)
    if paused:
        skip_until, skip_reason = until, "paused"
    split = sum(skip_until is not None and one.known_at <= skip_until for one in found)
    decisions = [Decision(one, Verdict.SKIPPED, reason=skip_reason) for one in found[:split]]
    decisions += _decide(timing, found[split:], rest, now, expanded_until)
    if timing.max_runs is not None:
        decisions, over = _at_most(decisions, timing.max_runs - runs)
        if over:
            last = decisions[-1].firing.known_at if decisions else expanded_until
            return Plan(decisions, max(last, expanded_until), None)
    if rest is not None:
        done = max(expanded_until, found[-1].known_at)
        return Plan(decisions, done, max(now, done - ahead / 2))
    done = max(expanded_until, until)
    if timing.ends_at is not None and timing.ends_at <= done:
        return Plan(decisions, done, None)
    look_at = _next_look(timing, done, timedelta(0) if paused else ahead)
    if look_at and timing.holidays and timing.on_holiday is OnHoliday.PREVIOUS_BUSINESS_DAY:
        look_at = min(look_at, now + HALF_DAY)  # closed days come into reach a day before
    return Plan(decisions, done, look_at)


def first_runs(whole: Plan, most: int, again: datetime) -> Plan:
    """The beginning of a plan with at most so many runs, to be gone on with at `again`.

    Firings of one instant stay together, as what was decided is remembered by its instant.
    """
    cut = 0
    for place, one in enumerate(whole.decisions):
        most -= one.verdict is Verdict.PENDING
        if most < 0:
            break
        following = whole.decisions[place + 1 :]
        if not following or following[0].firing.known_at > one.firing.known_at:
            cut = place + 1
    if not cut:
        return Plan([], whole.expanded_until, again)
    kept = whole.decisions[:cut]
    return Plan(kept, kept[-1].firing.known_at, again)


def _round(
    recurrence: Recurrence, begin: datetime, end: datetime, most: int
) -> tuple[list[Firing], Firing | None]:
    """The firings of one round, and the first one that is left for the next."""
    found: list[Firing] = []
    for one in expand(recurrence, begin, end, skipped=True):
        if len(found) >= most and one.known_at > found[-1].known_at:
            return found, one
        found.append(one)
    return found, None


def judge_missed(
    timing: Timing,
    fire_at: datetime,
    due_at: datetime,
    now: datetime,
    *,
    followed: bool | None = None,
) -> tuple[Verdict, str]:
    """What becomes of a firing that had its job in time and was not begun within its grace.

    Args:
        timing: The schedule.
        fire_at: Aware.
        due_at: Aware; of its job.
        now: Aware.
        followed: Whether a later one is due as well, where that is known; else the rule says so.

    Returns:
        `pending` (it runs, late), or `skipped` or `dropped` with the reason.
    """
    window = timing.within(fire_at, now)
    dues = (timing.due_at(one) for one in expand(timing.recurrence, *window))
    overtaken = followed
    if overtaken is None:
        overtaken = any(due is not None and due <= now for due in dues)
    return _fate(timing, due_at, _start_of_catching_up(timing, now), overtaken=overtaken)


def _decide(
    timing: Timing,
    found: list[Firing],
    rest: Firing | None,
    now: datetime,
    expanded_until: datetime,
) -> list[Decision]:
    in_time = now - timedelta(seconds=timing.grace_seconds)
    caught_up_from = _start_of_catching_up(timing, now)
    dues = [timing.due_at(one) for one in found]
    after = None if rest is None else timing.due_at(rest)
    overtaken = after is not None and after <= now
    decisions = []
    for one, due_at in zip(reversed(found), reversed(dues), strict=True):
        # Moved to a day before the schedule, or this version of it, was there.
        too_early = due_at is not None and due_at < one.known_at and due_at <= expanded_until
        if one.fire_at is None or due_at is None or too_early:
            reason = "gap" if one.fire_at is None else "calendar"
            decisions.append(Decision(one, Verdict.SKIPPED, reason=reason))
            continue
        verdict = Verdict.PENDING
        reason = "" if due_at == one.fire_at + timing.delay else "calendar"
        if due_at <= in_time:
            verdict, why = _fate(timing, due_at, caught_up_from, overtaken=overtaken)
            reason = reason if verdict is Verdict.PENDING else why
        overtaken = overtaken or due_at <= now
        due = due_at if verdict is Verdict.PENDING else None
        decisions.append(Decision(one, verdict, due, reason))
    return decisions[::-1]


def _fate(
    timing: Timing, due_at: datetime, caught_up_from: Callable[[], datetime], *, overtaken: bool
) -> tuple[Verdict, str]:
    """Of a missed firing; `overtaken` by a later one whose time has come as well."""
    match timing.misfire:
        case Misfire.LATEST if not overtaken:
            return Verdict.PENDING, ""
        case Misfire.ALL if due_at - timing.delay >= caught_up_from():
            return Verdict.PENDING, ""
        case Misfire.ALL:
            return Verdict.DROPPED, "past_window"
    return Verdict.SKIPPED, "misfire"


def _start_of_catching_up(timing: Timing, now: datetime) -> Callable[[], datetime]:
    """The oldest missed firing that still runs with `all`; worked out when it is asked for."""

    @cache
    def start() -> datetime:
        end = now - timing.delay - timedelta(seconds=timing.grace_seconds)
        oldest = now - timing.delay - timedelta(seconds=timing.catch_up_seconds)
        return _last_firings(timing.recurrence, oldest, end, timing.catch_up_most)

    return start


def _last_firings(recurrence: Recurrence, oldest: datetime, end: datetime, most: int) -> datetime:
    """Of the last `most` firings up to `end` the first, or `oldest` if there are fewer since then."""
    span = FIRST_SPAN
    while True:
        begin = max(oldest, end - span)
        last = deque((one.fire_at for one in expand(recurrence, begin, end)), maxlen=most)
        if len(last) == most and last[0] is not None:
            return last[0]
        if begin == oldest:
            return oldest
        span *= 4


def _at_most(decisions: list[Decision], left: int) -> tuple[list[Decision], bool]:
    """As far as so many runs go, and whether that is the end."""
    for place, one in enumerate(decisions):
        if one.verdict is Verdict.PENDING:
            if left <= 0:
                return decisions[:place], True
            left -= 1
    return decisions, left <= 0


def _next_look(timing: Timing, done: datetime, ahead: timedelta) -> datetime | None:
    begin, end = timing.within(done, done + FAR)
    first = next(expand(timing.recurrence, begin, end, skipped=True), None)
    if first is not None:
        return max(done - ahead / 2, first.known_at - ahead)
    if end < done + FAR or done.year >= LAST_YEAR:
        return None
    return done + FAR / 2
