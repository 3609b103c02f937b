"""What a schedule would do, before it is saved: the same `expand` that the scheduler calls, with everything explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from jobs.errors import InvalidField, ValidationFailed
from jobs.policies.cron import CronRule, parse_cron
from jobs.policies.intervals import parse_every
from jobs.policies.recurrence import Firing, Recurrence, expand
from jobs.policies.timing import Timing
from jobs.policies.wording import (
    closed_in_words,
    firing_in_words,
    rule_in_words,
    shift_in_words,
)
from jobs.policies.zones import ZONE_DATA, Shift, parse_zone, shifts, zone
from jobs.states import OnGap, OnHoliday, OnOverlap, Resolution

AHEAD = timedelta(days=549)  # shifts of 18 months are told
AROUND = timedelta(days=1)  # of a shift, for what other policies would do
YEARS = timedelta(days=3653)  # a rule with nothing in ten years is refused
MOST_RUNS = 1_000


@dataclass(frozen=True, slots=True)
class Preview:
    """Shown to people and given to programs.

    Attributes:
        words: The rule.
        runs: Next firings, and slots that a gap skips, in order.
        shifts: Every change of the clock in the next 18 months: at, words, touched policies, and for those what each
            value would do within a day of it.
        cut: There are more runs in the window than are shown.
    """

    words: str
    runs: list[dict[str, Any]]
    shifts: list[dict[str, Any]]
    cut: bool

    def document(self) -> dict[str, Any]:
        """For programs, with the version of the zone data."""
        return {**asdict(self), "zone_data": ZONE_DATA}


def parse_recurrence(fields: Mapping[str, Any]) -> Recurrence:
    """Rule, zone and policies, each fault by its field.

    Args:
        fields: `cron`, or `every` and `anchor`; optionally `timezone`, `on_gap`, `on_overlap`. None counts as not given.

    Raises:
        ValidationFailed: Lists every faulty field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if ("cron" in given) == ("every" in given):
        fault = InvalidField("/cron", "required", "either cron or every is needed, not both")
        raise ValidationFailed([fault])
    faults: list[InvalidField] = []
    found: dict[str, Any] = {}
    if "cron" in given and "anchor" in given:
        faults.append(InvalidField("/anchor", "conflict", "belongs to every"))
    try:
        if "cron" in given:
            found["rule"] = parse_cron(given["cron"])
        else:
            found["rule"] = parse_every(given["every"], given.get("anchor"))
    except InvalidField as fault:
        faults.append(fault)
    for name, parse, default in (
        ("timezone", parse_zone, "UTC"),
        ("on_gap", _policy(OnGap), OnGap.NEXT_VALID.value),
        ("on_overlap", _policy(OnOverlap), OnOverlap.FIRST.value),
    ):
        try:
            found[name] = parse(given.get(name, default), f"/{name}")
        except InvalidField as fault:
            faults.append(fault)
    if faults:
        raise ValidationFailed(faults)
    return Recurrence(found["rule"], found["timezone"], found["on_gap"], found["on_overlap"])


def _policy(kind: type[OnGap] | type[OnOverlap]) -> Any:
    def parse(value: object, pointer: str) -> Any:
        if not isinstance(value, str) or value not in set(kind):
            raise InvalidField(pointer, "bad_policy", f"must be one of {', '.join(kind)}")
        return kind(value)

    return parse


def check_upcoming(schedule: Recurrence, after: datetime) -> None:
    """Refuse a rule of which nothing falls within ten years.

    Raises:
        InvalidField: At /cron; code `no_upcoming_occurrence`.
    """
    if next(expand(schedule, after, after + YEARS), None) is None:
        raise InvalidField(
            "/cron" if isinstance(schedule.rule, CronRule) else "/every",
            "no_upcoming_occurrence",
            "is valid, but nothing falls within ten years",
        )


def preview(
    timing: Timing,
    *,
    text: str,
    after: datetime,
    until: datetime | None = None,
    count: int = 10,
) -> Preview:
    """Next firings and coming changes of the clock.

    Args:
        timing: Rule, zone, policies, calendar.
        text: The expression, for its words.
        after: Aware; excluded.
        until: Aware; included. None: ten years on.
        count: Most runs; at most 1,000.
    """
    schedule = timing.recurrence
    window = timing.within(after, until or after + YEARS)
    found = list(islice(expand(schedule, *window, skipped=True), min(count, MOST_RUNS) + 1))
    shown = found[:count]
    return Preview(
        words=rule_in_words(schedule.rule, text),
        runs=[run_document(timing, one) for one in shown],
        shifts=[shift_document(schedule, one) for one in coming_shifts(schedule.zone, after)],
        cut=len(found) > len(shown),
    )


def run_document(timing: Timing, firing: Firing) -> dict[str, Any]:
    """One firing: its instant, what the clock shows, the slot it stands for, how it came about, when its job is due."""
    key = timing.recurrence.zone
    local = firing.fire_at.astimezone(zone(key)) if firing.fire_at else None
    due_at = timing.due_at(firing)
    said = [firing_in_words(firing, key, clock(local) if local else ""), _closed(timing, firing)]
    return {
        "fire_at": firing.fire_at and instant(firing.fire_at),
        "due_at": due_at and instant(due_at),
        "local": local and local.isoformat(),
        "slot": firing.slot.isoformat(),
        "pass": firing.number,
        "resolution": firing.resolution.value,
        "words": "; ".join(filter(None, said)),
    }


def _closed(timing: Timing, firing: Firing) -> str:
    """Words for a firing on a closed day; "" for any other."""
    if firing.fire_at is None or timing.holidays is None:
        return ""
    due_at = timing.due_at(firing)
    runs_at = None if due_at is None else due_at - timing.delay
    if runs_at == firing.fire_at:
        return ""
    there = zone(timing.recurrence.zone)
    local = firing.fire_at.astimezone(there)
    if runs_at is not None:
        return closed_in_words(local, runs_at.astimezone(there))
    step = -1 if timing.on_holiday is OnHoliday.PREVIOUS_BUSINESS_DAY else 1
    moves = timing.on_holiday is not OnHoliday.SKIP
    opens = timing.holidays.open_day(local.date(), step) is not None
    return closed_in_words(local, None, merged=moves and opens)


def instant(moment: datetime) -> str:
    """RFC 3339 in whole seconds of UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def clock(local: datetime) -> str:
    """What a clock shows, without seconds that are none."""
    return f"{local:%H:%M:%S}".removesuffix(":00")


def coming_shifts(key: str, after: datetime, until: datetime | None = None) -> list[Shift]:
    """When the clocks of a zone are moved; within 18 months unless said otherwise."""
    return shifts(key, round(after.timestamp()), round((until or after + AHEAD).timestamp()))


def shift_document(schedule: Recurrence, shift: Shift) -> dict[str, Any]:
    """One change of the clock, and what each policy would do to the slots it touches."""
    at = datetime.fromtimestamp(shift.at, UTC)
    before, after = (clock(at + timedelta(seconds=o)) for o in (shift.before, shift.after))
    gap = shift.after > shift.before
    name = "on_gap" if gap else "on_overlap"
    others = (
        {str(value): replace(schedule, on_gap=value) for value in OnGap}
        if gap
        else {str(value): replace(schedule, on_overlap=value) for value in OnOverlap}
    )
    around = at - AROUND, at + AROUND
    would: dict[str, list[str]] = {}
    if not schedule.is_interval:
        # Only what the policy can decide: a rule of seconds would fill the page with plain ones.
        would = {
            value: [
                instant(one.fire_at)
                for one in islice(expand(other, *around), MOST_RUNS)
                if one.fire_at is not None and one.resolution is not Resolution.PLAIN
            ]
            for value, other in others.items()
        }
    touched = any(would.values())
    means = f"{name} decides" if touched else "touches no slot of this rule"
    return {
        "at": instant(at),
        "kind": "gap" if gap else "overlap",
        "words": f"{shift_in_words(shift, before, after)}; {means}",
        "would_run": would if touched else {},
    }


def expected_instants(
    rule: Recurrence, *, after: datetime, until: datetime, count: int | None
) -> Iterator[str]:
    """Only the instants."""
    for one in islice(expand(rule, after, until), count):
        if one.fire_at is not None:
            yield instant(one.fire_at)
