"""Business days: which dates a calendar closes, and where a firing on such a date goes.

Owns dates → closed or open, and the reading of a calendar file. Pure: nothing here knows today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, cast

from dateutil.rrule import rrule, rruleset, rrulestr
from icalendar import Calendar
from icalendar import Event as CalendarEvent

from jobs.errors import InvalidField
from jobs.policies.cron import MONTH_DAYS

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
FURTHEST_DAYS = 92  # an open day further away is none
MOST_DAYS = 5_000
MOST_NAME = 200
MOST_FILE = 1 << 20
_WHOLE_DAYS = {"DAILY": 1, "WEEKLY": 7, "MONTHLY": 30, "YEARLY": 365}
_DAILY_PARTS = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYMONTH"})
_PARTS = _DAILY_PARTS | {"BYMONTHDAY"}
_NTH = re.compile(r"[+-]?[0-9]+")
LONGEST_DAYS = 366  # of one event
STEPS = 100_000  # of all events of a file: days that are looked at
RULE_STEPS, RARE_STEPS = 100, 10_000
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
FIRST, LAST = date(1970, 1, 1), date(2099, 12, 31)


@dataclass(frozen=True, slots=True)
class Holidays:
    """Closed dates, and weekdays (0 is Monday) that are always closed."""

    days: frozenset[date] = frozenset()
    weekend: frozenset[int] = frozenset()

    def closed(self, day: date) -> bool:
        """Whether there is no business on this date.

        >>> Holidays(frozenset({date(2027, 1, 1)}), frozenset({5, 6})).closed(date(2027, 1, 2))
        True
        """
        return day in self.days or day.weekday() in self.weekend

    def open_day(self, day: date, step: int) -> date | None:
        """The nearest open date after (step 1) or before (-1) a day; None if there is none within 92 days.

        >>> Holidays(frozenset({date(2027, 1, 1)}), frozenset({5, 6})).open_day(date(2027, 1, 1), 1)
        datetime.date(2027, 1, 4)
        """
        for _ in range(FURTHEST_DAYS):
            day += timedelta(days=step)
            if not self.closed(day):
                return day
        return None


def read_holidays(days: Mapping[str, Any], weekend: Sequence[str]) -> Holidays:
    """From the columns of a calendar.

    Raises:
        ValueError: A date or weekday is none.

    >>> read_holidays({"2027-12-25": "Christmas"}, ["sun"]).closed(date(2027, 12, 25))
    True
    """
    closed = frozenset(WEEKDAYS.index(one) for one in weekend)
    return Holidays(frozenset(date.fromisoformat(one) for one in days), closed)


def parse_days(value: Any, pointer: str) -> dict[str, str]:
    """Closed dates with their names.

    Args:
        value: {"2027-12-25": "Christmas", …}.
        pointer: Where it stands.

    Raises:
        InvalidField: A key is no date of 1970 to 2099, a name is no text, or there are too many.

    >>> parse_days({"2027-12-25": "Christmas"}, "/days")
    {'2027-12-25': 'Christmas'}
    """
    if not isinstance(value, Mapping):
        raise InvalidField(pointer, "wrong_type", "must be an object of dates and names")
    if len(value) > MOST_DAYS:
        raise InvalidField(pointer, "too_many", f"must have at most {MOST_DAYS} dates")
    for day, name in value.items():
        place = f"{pointer}/{day}"
        if not isinstance(day, str) or not _DATE.fullmatch(day) or not _is_date(day):
            raise InvalidField(place, "invalid_date", "must be a date such as 2027-12-25")
        if not isinstance(name, str) or len(name) > MOST_NAME or not name.isprintable():
            raise InvalidField(place, "wrong_type", f"must be a name of at most {MOST_NAME}")
    return dict(sorted(value.items()))


def parse_weekend(value: Any, pointer: str) -> list[str]:
    """Weekdays that are always closed, in the order of the week.

    Raises:
        InvalidField: It is no list of weekdays, or it leaves no day open.

    >>> parse_weekend(["sun", "sat"], "/weekend")
    ['sat', 'sun']
    """
    if not isinstance(value, list | tuple) or not all(one in WEEKDAYS for one in value):
        raise InvalidField(pointer, "wrong_type", f"must be a list of {', '.join(WEEKDAYS)}")
    if len(set(value)) == len(WEEKDAYS):
        raise InvalidField(pointer, "out_of_range", "must leave a day open")
    return sorted(set(value), key=WEEKDAYS.index)


def read_ics(text: str, *, first: date, last: date, pointer: str = "/ics") -> dict[str, str]:
    """Dates on which a calendar file has an event of whole days, repeating ones included.

    Args:
        text: An iCalendar file (RFC 5545).
        first: The first date that is looked at.
        last: The last one.
        pointer: Where it stands.

    Raises:
        InvalidField: It is no such file, or has too many dates, or none.
    """
    if len(text) > MOST_FILE:
        raise InvalidField(pointer, "too_large", f"must have at most {MOST_FILE} characters")
    days: dict[str, str] = {}
    budget = [STEPS]
    try:
        for event in Calendar.from_ical(text).events:
            name = "".join(one for one in str(event.get("SUMMARY", "")) if one.isprintable())
            for day in _days_of(event, first, last, budget):
                days.setdefault(day.isoformat(), name[:MOST_NAME])
    except InvalidField:
        raise
    except Exception as error:  # noqa: BLE001  whatever a file of anybody makes a library do
        raise InvalidField(pointer, "bad_syntax", f"is no calendar file: {error}"[:300]) from None
    if len(days) > MOST_DAYS:
        raise InvalidField(pointer, "too_many", f"has more than {MOST_DAYS} dates")
    if not days:
        raise InvalidField(pointer, "empty", f"has no event of whole days from {first} to {last}")
    return dict(sorted(days.items()))


def _days_of(event: CalendarEvent, first: date, last: date, budget: list[int]) -> Iterator[date]:
    """Dates of one event in [first, last]; an event with an hour closes no day."""
    begin = event.start
    if isinstance(begin, datetime) or event.get("STATUS") == "CANCELLED":
        return
    length = (event.end - begin).days
    if length < 1:
        raise ValueError(f"an event ends on {event.end}, before it has begun")
    if length > LONGEST_DAYS:
        raise ValueError(f"an event of {length} days is longer than {LONGEST_DAYS}")
    for start in _starts(event, begin, first - timedelta(days=length), last, budget):
        for number in range(length):
            _spend(budget, 1)
            day = start + timedelta(days=number)
            if first <= day <= last:
                yield day


def _starts(
    event: CalendarEvent, begin: date, first: date, last: date, budget: list[int]
) -> Iterator[date]:
    found = rruleset()
    found.rdate(datetime.combine(begin, time()))
    for rule in _several(event.get("RRULE")):
        steps = RARE_STEPS if _check_rule(rule) else RULE_STEPS
        _spend(budget, (last - begin).days // _WHOLE_DAYS[rule["FREQ"][0]] + steps)
        text = rule.to_ical().decode()
        one = rrulestr(text, dtstart=datetime.combine(begin, time()), ignoretz=True)
        found.rrule(cast("rrule", one))  # one line is one rule
    for name, add in (("RDATE", found.rdate), ("EXDATE", found.exdate)):
        for several in _several(event.get(name)):
            for one in several.dts:
                _spend(budget, 1)
                if not isinstance(one.dt, tuple):
                    day = one.dt.date() if isinstance(one.dt, datetime) else one.dt
                    add(datetime.combine(day, time()))
    window = datetime.combine(first, time()), datetime.combine(last, time())
    return (one.date() for one in found.between(*window, inc=True))


def _check_rule(rule: Mapping[str, Any]) -> bool:
    """Only rules that come round again: for the others a library looks up to the year 9999, or for ever.

    Returns:
        It may be such a one all the same: not every month has its day.

    Raises:
        ValueError: It is another one.
    """
    frequency = str(rule["FREQ"][0])
    if frequency not in _WHOLE_DAYS:
        raise ValueError(f"an event of whole days cannot repeat {frequency}")
    if int(rule.get("INTERVAL", [1])[0]) < 1:
        raise ValueError("an event cannot repeat every 0 days")
    known = _DAILY_PARTS if frequency == "DAILY" else _PARTS
    if unknown := sorted(set(rule) - known):
        raise ValueError(f"{frequency} with {', '.join(unknown)} is not supported")
    days = [abs(int(one)) for one in rule.get("BYMONTHDAY", [])]
    months = [int(one) for one in rule.get("BYMONTH", range(1, 13))]
    if days and min(days) > max(MONTH_DAYS[month - 1] for month in months):
        raise ValueError("none of its months has such a day")
    nth = [
        abs(int(digits[0])) for one in rule.get("BYDAY", []) if (digits := _NTH.match(str(one)))
    ]
    if max(nth, default=0) > 5:
        raise ValueError("no month has a sixth weekday")
    return max([*days, *(7 * one for one in nth)], default=0) > 28


def _spend(budget: list[int], steps: int) -> None:
    budget[0] -= steps
    if budget[0] < 0:
        raise ValueError("its events repeat too often to be read")


def _several(value: Any) -> list[Any]:
    """A property that may be missing, there once, or there more than once."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _is_date(text: str) -> bool:
    try:
        return FIRST <= date.fromisoformat(text) <= LAST
    except ValueError:
        return False
