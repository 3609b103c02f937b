"""Rules, and what became of a slot, in words. Owns sentences about calendars; decides nothing.

cron-descriptor words the times. Dates are worded here: it loses the n of "first and third Monday".
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable
from datetime import datetime

from cron_descriptor import Options, get_description

from jobs.policies.cron import CronRule
from jobs.policies.intervals import Every, EveryDate
from jobs.policies.recurrence import Firing, Rule
from jobs.policies.zones import Shift
from jobs.states import Resolution, Verdict

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_UNITS = ((7 * 86_400, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def rule_in_words(rule: Rule | Every, text: str = "") -> str:
    """One sentence.

    Args:
        rule: What the text stands for.
        text: The cron expression; of its own form only the times are read here.

    >>> from jobs.policies.cron import parse_cron
    >>> rule_in_words(parse_cron("0 0 13 * 1#1,1#3"), "0 0 13 * 1#1,1#3")
    'At 00:00, on day 13 of the month or on the first Monday or the third Monday of the month'
    >>> rule_in_words(Every(0, 5400))
    'Every 90 minutes, whatever the clock shows'
    """
    match rule:
        case CronRule():
            return ", ".join(filter(None, [_times(rule, text), _dates(rule), _months(rule)]))
        case Every():
            return f"Every {_span(rule.seconds)}, whatever the clock shows"
        case EveryDate(days=0):
            return f"Every {_counted(rule.months, 'month')} on the same day, at the same time"
        case EveryDate():
            return f"Every {_span(rule.days * 86_400)} at the same time"
    raise TypeError(type(rule))


def _times(rule: CronRule, text: str) -> str:
    parts = text.split()
    times = " ".join(parts[:-3]) if len(parts) in (5, 6) else ""
    if not times:  # an alias
        times = ",".join(map(str, rule.minutes)) + " "
        times += "*" if rule.is_interval else ",".join(map(str, rule.hours))
    options = Options()
    options.use_24hour_time_format = True
    return str(get_description(f"{times} * * *", options))


def _dates(rule: CronRule) -> str:
    days = [f"day {day}" for day in rule.days or ()] + ["the last day"] * rule.last_day
    found = [f"on {_or(days)} of the month"] if days else []
    if rule.weekdays is not None:
        found.append(f"on {_or(_WEEKDAYS[day] for day in rule.weekdays)}")
    special = [f"the {_ORDINALS[n - 1]} {_WEEKDAYS[day]}" for day, n in rule.nth]
    special += [f"the last {_WEEKDAYS[day]}" for day in rule.last]
    if special:
        found.append(f"on {_or(special)} of the month")
    return " or ".join(found)


def _months(rule: CronRule) -> str:
    if len(rule.months) == 12:
        return ""
    return f"in {_or(calendar.month_name[month] for month in rule.months)}"


def _or(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last


def _span(seconds: int) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return _counted(seconds // size, unit)


def _counted(count: int, unit: str) -> str:
    return unit if count == 1 else f"{count} {unit}s"


def firing_in_words(firing: Firing, zone: str, local: str = "") -> str:
    """What became of a slot that was not plain; "" for a plain one.

    Args:
        firing: The slot and its instant.
        zone: Key of the zone.
        local: What the clock shows when it runs ("03:00").

    >>> from datetime import datetime
    >>> slot, gone = datetime(2027, 3, 28, 2, 30), datetime(2027, 3, 28, 1)
    >>> firing_in_words(Firing(gone, slot, 1, Resolution.AFTER_GAP, gone), "Europe/Berlin", "03:00")
    '02:30 does not exist on 28 March 2027 in Europe/Berlin; runs at 03:00'
    """
    time = f"{firing.slot:%H:%M:%S}".removesuffix(":00")
    day = f"{firing.slot.day} {firing.slot:%B %Y} in {zone}"
    match firing.resolution:
        case Resolution.PLAIN:
            return ""
        case Resolution.AFTER_GAP | Resolution.SHIFTED:
            return f"{time} does not exist on {day}; runs at {local}"
        case Resolution.IN_GAP:
            return f"{time} does not exist on {day}; does not run"
        case Resolution.FIRST_PASS | Resolution.SECOND_PASS:
            which = "first" if firing.resolution is Resolution.FIRST_PASS else "second"
            return f"{time} comes twice on {day}; this is the {which} time"


def closed_in_words(local: datetime, runs_at: datetime | None, *, merged: bool = False) -> str:
    """What a closed day does to a firing.

    Args:
        local: What the clock shows when it fires.
        runs_at: What it shows when it runs; None if it does not run.
        merged: It does not, because another run takes its place.

    >>> from datetime import datetime
    >>> closed_in_words(datetime(2027, 12, 25, 9), datetime(2027, 12, 27, 9))
    'Saturday 25 December 2027 is closed; runs on Monday 27 December 2027 at 09:00'
    """
    closed = f"{_day(local)} is closed"
    if runs_at is not None:
        time = f"{runs_at:%H:%M:%S}".removesuffix(":00")
        return f"{closed}; runs on {_day(runs_at)} at {time}"
    return f"{closed}; {'another run takes its place' if merged else 'does not run'}"


_DID = {Verdict.PENDING: "due at", Verdict.RAN: "ran at", Verdict.LATE: "ran late, due at"}


def occurrence_in_words(
    firing: Firing, zone: str, verdict: str, *, closed: bool, fired: str, ran: str
) -> str:
    """What became of a firing of the ledger that was not plain; "" for a plain one.

    Args:
        firing: The slot and its instant.
        zone: Key of the zone.
        verdict: Of the ledger.
        closed: A closed day has moved or dropped it.
        fired: What the clock showed at its instant ("03:00").
        ran: And at the time to which a closed day moved it ("Monday 27 December 2027 at 09:00"); "" if it dropped it.

    >>> from datetime import datetime
    >>> slot, at = datetime(2025, 3, 9, 2, 30), datetime(2025, 3, 9, 7)
    >>> told = {"closed": False, "fired": "03:00", "ran": ""}
    >>> occurrence_in_words(Firing(at, slot, 1, Resolution.AFTER_GAP, at), "America/New_York", "ran", **told)
    '02:30 did not exist on 9 March 2025 in America/New_York; ran at 03:00'
    """
    time = f"{firing.slot:%H:%M:%S}".removesuffix(":00")
    day = f"{firing.slot.day} {firing.slot:%B %Y} in {zone}"
    did = _DID.get(Verdict(verdict)) if verdict in set(Verdict) else None
    if closed:
        if not ran:
            return f"{_day(firing.slot)} was closed; did not run"
        return f"{_day(firing.slot)} was closed; {did or 'did not run, was due at'} {ran}"
    match firing.resolution:
        case Resolution.AFTER_GAP | Resolution.SHIFTED:
            return f"{time} did not exist on {day}; {did or 'did not run, was due at'} {fired}"
        case Resolution.IN_GAP:
            return f"{time} did not exist on {day}; did not run"
        case Resolution.FIRST_PASS | Resolution.SECOND_PASS:
            which = "first" if firing.resolution is Resolution.FIRST_PASS else "second"
            return f"{time} came twice on {day}; this was the {which} time"
    return ""


def _day(local: datetime) -> str:
    return f"{local:%A} {local.day} {local:%B %Y}"


def shift_in_words(shift: Shift, local_before: str, local_after: str) -> str:
    """How a clock is moved.

    >>> shift_in_words(Shift(0, 3600, 7200), "02:00", "03:00")
    'the clock goes from 02:00 ahead to 03:00'
    """
    way = "ahead" if shift.after > shift.before else "back"
    return f"the clock goes from {local_before} {way} to {local_after}"
