"""Cron expressions: our own strict grammar. What is accepted means exactly what it says; all else is refused by name.

Owns text → `CronRule` and the local dates and times that a rule matches. Knows nothing of zones; see recurrence.py.
croniter walks the dates, and only those: it is given plain rules that this grammar has checked and spelled out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from heapq import merge
from itertools import groupby
from typing import NoReturn

from croniter import croniter
from croniter.croniter import CroniterBadDateError

from jobs.errors import InvalidField

MAX_CHARACTERS = 255
DAY = 86_400
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  a local clock has no zone

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_DAY = "0 0 * * *"
MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # the most that each has
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    bottom: int
    top: int
    names: tuple[str, ...] = ()
    is_day: bool = False

    @property
    def values(self) -> range:
        return range(self.bottom, self.top + 1)


_SECOND, _MINUTE, _HOUR = _Field("second", 0, 59), _Field("minute", 0, 59), _Field("hour", 0, 23)
_DAY = _Field("day-of-month", 1, 31, is_day=True)
_MONTH = _Field("month", 1, 12, MONTHS)
_WEEKDAY = _Field("day-of-week", 0, 6, WEEKDAYS, is_day=True)  # 7 is read as Sunday

_VALUE = "([0-9]+|[A-Z]{3})"
_ITEM = re.compile(rf"(?:(\*)|{_VALUE}(?:-{_VALUE})?)(?:/([0-9]+))?")
_NTH = re.compile(rf"{_VALUE}#([0-9]+)")
_LAST = re.compile(rf"{_VALUE}L")
# Tokens of other dialects, told apart from mere typing errors: nearest weekday, days before the last, hash, random.
_FOREIGN = re.compile(r"\?|[0-9]*L?W|L-[0-9]+|[HR](\(.*\))?(/[0-9]+)?|[0-9]*L")


@dataclass(frozen=True)
class CronRule:
    """What an expression matches, on a local clock. Two spellings of one rule are equal.

    Attributes:
        seconds, minutes, hours, months: Sorted values.
        days: Sorted days of the month, or None when every day will do; with `last_day` also the last one.
        weekdays: Sorted plain weekdays, 0 is Sunday; None as for `days`.
        nth: (weekday, n): the n-th such weekday of the month.
        last: The last such weekday of the month.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] | None
    last_day: bool
    months: tuple[int, ...]
    weekdays: tuple[int, ...] | None
    nth: tuple[tuple[int, int], ...] = ()
    last: tuple[int, ...] = ()

    @property
    def is_interval(self) -> bool:
        """It runs at some time of every hour, so it follows elapsed time through a change of the clock."""
        return len(self.hours) == 24

    @property
    def per_day(self) -> int:
        """Slots of a day that matches."""
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def slots(self, begin: int, end: int) -> Iterator[int]:
        """Matching local times in [begin, end), ascending, as seconds since 1970 on the local clock."""
        for day in self._dates(begin, end):
            for time in self._times(begin - day, end - day):
                yield day + time

    def _times(self, begin: int, end: int) -> Iterator[int]:
        within_hour = self._within_hour
        for hour in self.hours:
            start = hour * 3600
            if start >= end:
                return
            if start + 3600 > begin:
                for offset in within_hour[bisect_left(within_hour, begin - start) :]:
                    if start + offset >= end:
                        return
                    yield start + offset

    @cached_property
    def _within_hour(self) -> list[int]:
        return [minute * 60 + second for minute in self.minutes for second in self.seconds]

    def _dates(self, begin: int, end: int) -> Iterator[int]:
        """Midnights of matching dates that touch [begin, end). Either day field matches if both are restricted."""
        both = [self._walk(rule, begin, end) for rule in self._date_rules]
        for day, _ in groupby(merge(*both)):
            yield day

    @cached_property
    def _date_rules(self) -> tuple[str, ...]:
        months = "*" if len(self.months) == 12 else _listed(self.months)
        if len(self.days or ()) == 31 or len(self.weekdays or ()) == 7:
            return (f"0 0 * {months} *",)  # every date, spelled out
        rules = []
        if self.days is not None or self.last_day:
            days = [*map(str, self.days or ()), *(["L"] if self.last_day else [])]
            rules.append(f"0 0 {','.join(days)} {months} *")
        weekdays = [*map(str, self.weekdays or ())]
        weekdays += [f"{weekday}#{n}" for weekday, n in self.nth]
        weekdays += [f"L{weekday}" for weekday in self.last]
        if weekdays:
            rules.append(f"0 0 * {months} {','.join(weekdays)}")
        return tuple(rules) or (f"0 0 * {months} *",)

    def _walk(self, rule: str, begin: int, end: int) -> Iterator[int]:
        first = begin // DAY * DAY
        if rule == EVERY_DAY:
            yield from range(first, end, DAY)
            return
        start, stop = (EPOCH + timedelta(seconds=one) for one in (first, end - 1))
        for count in range(start.year * 12 + start.month - 1, stop.year * 12 + stop.month):
            if count % 12 + 1 in self.months:
                for day in _dates_of_month(rule, count // 12, count % 12 + 1):
                    if first <= day < end:
                        yield day


@lru_cache(maxsize=16_384)
def _dates_of_month(rule: str, year: int, month: int) -> tuple[int, ...]:
    """Midnights that a plain rule matches. Many schedules share few of these rules, and walking is what costs."""
    begin = datetime(year, month, 1)  # noqa: DTZ001
    dates = croniter(rule, begin - timedelta(seconds=1), max_years_between_matches=1)
    found = []
    with suppress(CroniterBadDateError):  # none for longer than was asked
        while (date := dates.get_next(datetime)).month == month and date.year == year:
            found.append((date - EPOCH) // timedelta(seconds=1))
    return tuple(found)


def parse_cron(text: object, pointer: str = "/cron") -> CronRule:
    """The rule that an expression of five fields, of six with seconds first, or an alias stands for.

    Raises:
        InvalidField: At `pointer`; code `wrong_type`, `too_long`, `wrong_field_count`, `bad_syntax`, `out_of_range`,
            `bad_step`, `reversed_range`, `unsupported`, `mixed_weekday_forms` or `impossible_date`.

    >>> rule = parse_cron("*/30 9-10 * * MON-FRI")
    >>> rule.minutes, rule.hours, rule.weekdays
    ((0, 30), (9, 10), (1, 2, 3, 4, 5))
    >>> parse_cron("0 9 30 FEB *")
    Traceback (most recent call last):
    ...
    jobs.errors.InvalidField: /cron: none of its months has such a day
    """
    if not isinstance(text, str):
        raise InvalidField(pointer, "wrong_type", "must be a text such as 0 9 * * MON-FRI")
    if len(text) > MAX_CHARACTERS:
        raise InvalidField(pointer, "too_long", f"has more than {MAX_CHARACTERS} characters")
    try:
        return _parse(text.strip(" \t").upper() if text.isascii() else text)
    except _Fault as fault:
        raise InvalidField(pointer, fault.code, fault.detail) from None


class _Fault(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


@lru_cache(maxsize=4096)  # a rule is read again at each of its expansions
def _parse(text: str) -> CronRule:
    if text.startswith("@"):
        text = _expanded(text)
    parts = re.split(r"[ \t]+", text) if text else []
    if len(parts) not in (5, 6):
        raise _Fault("wrong_field_count", f"has {len(parts)} fields; five or six are needed")
    seconds, minutes, hours, days, months, weekdays = ["0"] * (6 - len(parts)) + parts
    last_day, plain_days = _without_last_day(days)
    plain, nth, last = _weekday_forms(weekdays)
    rule = CronRule(
        seconds=_values(seconds, _SECOND) or (),
        minutes=_values(minutes, _MINUTE) or (),
        hours=_values(hours, _HOUR) or (),
        days=_values(plain_days, _DAY, unrestricted=None) if plain_days else None,
        last_day=last_day,
        months=_values(months, _MONTH) or (),
        weekdays=_values(plain, _WEEKDAY, unrestricted=None) if plain else None,
        nth=nth,
        last=last,
    )
    longest = max(MONTH_DAYS[month - 1] for month in rule.months)
    if rule.days and not last_day and rule.days[0] > longest:
        raise _Fault("impossible_date", "none of its months has such a day")
    return rule


def _expanded(alias: str) -> str:
    if alias in {name.upper() for name in ALIASES}:
        return ALIASES[alias.lower()]
    name = re.split(r"[ \t]", alias)[0]
    if name in {"@REBOOT", "@EVERY"}:
        raise _Fault("unsupported", f"{name.lower()} is not supported")
    raise _Fault("bad_syntax", f"aliases are {', '.join(ALIASES)}")


def _without_last_day(text: str) -> tuple[bool, str]:
    items = text.split(",")
    return "L" in items, ",".join(item for item in items if item != "L")


def _weekday_forms(text: str) -> tuple[str, tuple[tuple[int, int], ...], tuple[int, ...]]:
    """The plain part as text, the n-th weekdays, the last weekdays."""
    plain, nth, last = [], set(), set()
    for item in text.split(","):
        if found := _NTH.fullmatch(item):
            n = int(found[2])
            if not 1 <= n <= 5:
                raise _Fault("out_of_range", f"{item} in day-of-week: a month has 1 to 5 of each")
            nth.add((_number(found[1], _WEEKDAY), n))
        elif found := _LAST.fullmatch(item):
            last.add(_number(found[1], _WEEKDAY))
        else:
            plain.append(item)
    if plain and (nth or last):
        if any(not _ITEM.fullmatch(item) or item.startswith("*") for item in plain):
            _values(",".join([*plain, "0"]), _WEEKDAY)  # says what is wrong with it
        raise _Fault(
            "mixed_weekday_forms", "plain weekdays and those with # or L do not go in one list"
        )
    return ",".join(plain), tuple(sorted(nth)), tuple(sorted(last))


def _values(
    text: str, spec: _Field, *, unrestricted: tuple[()] | None = ()
) -> tuple[int, ...] | None:
    """Sorted values of a field; of an unrestricted one all, or None where the caller asks for that."""
    if text in ("*", "*/1") or (text == "?" and spec.is_day):
        return None if unrestricted is None else tuple(spec.values)
    values: set[int] = set()
    for item in text.split(","):
        values.update(_item(item, spec, alone=item == text))
    return tuple(sorted(values))


def _item(item: str, spec: _Field, *, alone: bool) -> Iterable[int]:
    found = _ITEM.fullmatch(item)
    if found is None or (found[1] and not found[4] and not alone):
        _refuse(item, spec)
    star, first, last, step_text = found.groups()
    step = 1 if step_text is None else int(step_text)
    begin, end = spec.bottom, spec.top
    if not star:
        begin = 7 if last and _is_seven(first, spec) else _number(first, spec)
        end = _end(last, begin, spec) if last else spec.top if step_text else begin
        if begin > end:
            raise _Fault("reversed_range", f"{item} in {spec.name}: the end is before the start")
    if not 1 <= step <= spec.top - spec.bottom:
        raise _Fault(
            "bad_step", f"{item} in {spec.name}: a step is 1 to {spec.top - spec.bottom} here"
        )
    values = range(begin, end + 1, step)
    return (value % 7 for value in values) if spec is _WEEKDAY else values


def _end(last: str, begin: int, spec: _Field) -> int:
    """Where a range ends. Sunday ends a range of weekdays, too."""
    if spec is _WEEKDAY and (last == "SUN" or _is_seven(last, spec)):
        return 0 if begin == 0 and last == "SUN" else 7
    return _number(last, spec)


def _is_seven(text: str, spec: _Field) -> bool:
    """The other number of Sunday."""
    return spec is _WEEKDAY and text.isdigit() and int(text) == 7


def _number(text: str, spec: _Field) -> int:
    if not text.isdigit():
        if text not in spec.names:
            _refuse(text, spec)
        return spec.bottom + spec.names.index(text)
    value = int(text)
    if _is_seven(text, spec):
        return 0
    if value not in spec.values:
        raise _Fault("out_of_range", f"{text} in {spec.name}: {spec.bottom} to {spec.top}")
    return value


def _refuse(item: str, spec: _Field) -> NoReturn:
    if _FOREIGN.fullmatch(item):
        raise _Fault("unsupported", f"{item} in {spec.name} is not supported")
    raise _Fault("bad_syntax", f"{item or 'an empty item'} in {spec.name} is not understood")


def _listed(values: Iterable[int]) -> str:
    return ",".join(map(str, values))
