"""Rules of schedules read a second time, for the check of the ledger alone.

Owns text → dates and times of day. Written from the calendar policy, apart from cron.py and intervals.py, so that one
mistake is not made twice: it knows what accepted text means and gives up on all else, without saying why.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 JAN *",
    "@annually": "0 0 1 JAN *",
}
FREE = {"*", "*/1", "?"}
SUNDAY = {"SUN", "7"}
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
LEAP_YEAR = 2028
UNITS = {"s": 1, "m": 60, "h": 3600}
DATES = {"d": 1, "w": 7}


@dataclass(frozen=True, slots=True)
class WallRule:
    """Times of a local clock.

    Attributes:
        on: Whether it runs on a date.
        times: Seconds of the day, ascending.
        every_hour: It runs in every hour, so a moved clock changes nothing for it.
    """

    on: Callable[[date], bool]
    times: tuple[int, ...]
    every_hour: bool = False


@dataclass(frozen=True, slots=True)
class BeatRule:
    """An instant, in seconds since 1970, and every so many seconds after it."""

    anchor: int
    seconds: int


@lru_cache(maxsize=64)
def read_rule(cron: str, every: str, anchor: str) -> WallRule | BeatRule:
    """What the text of a version says.

    Raises:
        ValueError: It says nothing that is understood here.

    >>> rule = read_rule("0 6 1 * 1#1", "", "")
    >>> [day for day in range(1, 31) if rule.on(date(2026, 9, day))], rule.times
    ([1, 7], (21600,))
    >>> read_rule("", "90m", "2026-03-01T09:00:00Z")
    BeatRule(anchor=1772355600, seconds=5400)
    """
    return _interval(every, anchor) if every else _expression(cron)


def _expression(text: str) -> WallRule:
    text = ALIASES.get(text.strip().lower(), text).upper()
    *before, days, months, weekdays = text.split()
    if len(before) not in (2, 3):
        raise ValueError(text)
    seconds, minutes, hours = before if len(before) == 3 else ["0", *before]
    in_hours = _numbers(hours, range(24))
    clock = (
        hour * 3600 + minute * 60 + second
        for hour in in_hours
        for minute in _numbers(minutes, range(60))
        for second in _numbers(seconds, range(60))
    )
    on = _dates(days, _numbers(months, range(1, 13), MONTHS), weekdays)
    return WallRule(on, tuple(sorted(clock)), every_hour=len(in_hours) == 24)


def _dates(days: str, months: set[int], weekdays: str) -> Callable[[date], bool]:
    chosen = days.split(",")
    plain = ",".join(one for one in chosen if one != "L")
    numbers = _numbers(plain, range(1, 32)) if plain and days not in FREE else set()
    longest = max(calendar.monthrange(LEAP_YEAR, month)[1] for month in months)
    if numbers and "L" not in chosen and min(numbers) > longest:
        raise ValueError(days)
    forms = [] if weekdays in FREE else [_weekday(one) for one in weekdays.split(",")]

    def on(day: date) -> bool:
        if day.month not in months:
            return False
        if days in FREE and not forms:
            return True
        last = calendar.monthrange(day.year, day.month)[1]
        if days not in FREE and (day.day in numbers or ("L" in chosen and day.day == last)):
            return True
        return any(form(day, last) for form in forms)

    return on


def _weekday(item: str) -> Callable[[date, int], bool]:
    """Of one item: whether a date is such a day, told how many days its month has."""
    if "#" in item:
        name, _, nth = item.partition("#")
        (day,), week = _weekdays(name), int(nth)
        return lambda one, _: one.isoweekday() % 7 == day and (one.day - 1) // 7 + 1 == week
    if item.endswith("L"):
        (day,) = _weekdays(item[:-1])
        return lambda one, last: one.isoweekday() % 7 == day and one.day > last - 7
    several = _weekdays(item)
    return lambda one, _: one.isoweekday() % 7 in several


def _weekdays(item: str) -> set[int]:
    """Sunday is 0, and also 7 where it ends a range."""
    head, slash, step = item.partition("/")
    first, dash, last = head.partition("-")
    if dash and last in SUNDAY and first not in {"0", "SUN"}:
        begin = 7 if first == "7" else _number(first, range(7), DAYS)
        return {day % 7 for day in range(begin, 8, int(step or 1))}
    if dash and last == "7":
        return {day % 7 for day in range(0, 8, int(step or 1))}
    head = "0" + head[1:] if head.startswith("7") else head
    return _numbers(head + slash + step, range(7), DAYS)


def _numbers(text: str, values: range, names: tuple[str, ...] = ()) -> set[int]:
    if text in FREE:
        return set(values)
    found: set[int] = set()
    for item in text.split(","):
        head, slash, step = item.partition("/")
        first, dash, last = head.partition("-")
        if head == "*":
            begin, end = values[0], values[-1]
        else:
            begin = _number(first, values, names)
            end = _number(last, values, names) if dash else values[-1] if slash else begin
        if begin > end or (slash and int(step) < 1):
            raise ValueError(item)
        found.update(range(begin, end + 1, int(step) if slash else 1))
    return found


def _number(text: str, values: range, names: tuple[str, ...]) -> int:
    number = values[0] + names.index(text) if text in names else int(text)
    if number not in values:
        raise ValueError(text)
    return number


def _interval(every: str, anchor: str) -> WallRule | BeatRule:
    unit = every.lstrip("0123456789")
    count = int(every.removesuffix(unit))
    start = datetime.fromisoformat(anchor.upper())
    if count < 1 or unit not in {*UNITS, *DATES, "mo"}:
        raise ValueError(every)
    if unit in UNITS:
        return BeatRule(int(start.timestamp() // 1), count * UNITS[unit])
    first = start.date()
    if unit == "mo":

        def on(day: date) -> bool:
            months = (day.year - first.year) * 12 + day.month - first.month
            return day >= first and day.day == first.day and months % count == 0
    else:
        days = count * DATES[unit]

        def on(day: date) -> bool:
            return day >= first and (day - first).days % days == 0

    return WallRule(on, (start.hour * 3600 + start.minute * 60 + start.second,))
