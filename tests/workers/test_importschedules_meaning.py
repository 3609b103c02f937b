"""What is said about days and clocks, held against a small cron of our own that does as Debian's does."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.errors import InvalidField
from jobs.policies.cron import DAY, parse_cron
from jobs.policies.recurrence import Recurrence, expand
from jobs.policies.zones import offset, shifts
from jobs.states import OnGap, OnOverlap
from workers.importing.cron_meaning import cron_dst, day_findings, is_wildcard
from workers.importing.entries import Finding, Kind

NOW = datetime(2027, 1, 10, tzinfo=UTC)
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC")
FIRST, DAYS = date(2026, 1, 1), 4 * 365 + 1


def values(text: str, low: int, high: int) -> set[int]:
    """A field as Vixie's cron reads it."""
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def cron_matches_date(fields: list[str], day: date, *, always_both: bool = False) -> bool:
    weekdays = {value % 7 for value in values(fields[4], 0, 7)}
    if day.month not in values(fields[3], 1, 12):
        return False
    found = day.day in values(fields[2], 1, 31), day.isoweekday() % 7 in weekdays
    both = always_both or fields[2].startswith("*") or fields[4].startswith("*")
    return all(found) if both else any(found)


def our_dates(text: str) -> set[date]:
    begin = (FIRST - date(1970, 1, 1)).days * DAY
    return {
        date(1970, 1, 1) + timedelta(days=slot // DAY)
        for slot in parse_cron(text).slots(begin, begin + DAYS * DAY)
    }


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, high - low)
    item = number.map(str) | span | st.tuples(span, step).map(lambda two: f"{two[0]}/{two[1]}")
    return st.one_of(
        st.just("*"),
        step.map(lambda n: f"*/{n}"),
        st.just(f"{low}-{high}"),
        st.lists(item, min_size=1, max_size=3).map(",".join),
    )


@settings(max_examples=40)
@given(days=field(1, 31), months=st.sampled_from(["*", "2", "1-6"]), weekdays=field(0, 6))
def test_dates_are_crons_unless_the_day_rule_is_named(days, months, weekdays):
    fields = ["0", "5", days, months, weekdays]
    text = " ".join(fields)
    try:
        parse_cron(text)
    except InvalidField:  # a date that does not exist is refused elsewhere
        return
    every = [FIRST + timedelta(days=n) for n in range(DAYS)]
    for always_both in (False, True):
        here, found = day_findings(text, who="x", stars_decide=not always_both)
        there = {day for day in every if cron_matches_date(fields, day, always_both=always_both)}
        named = any(one.kind is Kind.DIFFERS for one in found)
        assert (our_dates(here) != there) == named, (here, found)
        if here != text:
            assert [(one.code, one.kind) for one in found] == [("day_rule", Kind.KEPT)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 9 */10 * 1", True),
        ("0 9 13 * */2", True),
        ("0 9 13 * 5", False),
        ("0 9 */2 * *", False),
        ("0 9 */1 * 1", False),
        ("@weekly", False),
    ],
)
def test_the_star_of_a_step_is_what_cron_decides_by(text, told):
    _, found = day_findings(text, who="cron", stars_decide=True)
    assert [one.other_days for one in found] == [True] * told


def test_a_first_monday_that_celery_writes_with_both_fields_is_kept():
    here, found = day_findings("0 9 8-14 * mon,wed", who="celery", stars_decide=False)
    assert here == "0 9 * * 1#2,3#2"
    assert [one.kind for one in found] == [Kind.KEPT]


@pytest.mark.parametrize("weekdays", ["FRI-SUN", "2,fri-sun", "1-sun/2"])
def test_a_range_up_to_sunday_is_told_for_debian_has_it_empty(weekdays):
    _, found = day_findings(f"0 9 * * {weekdays}", who="cron", stars_decide=True)
    assert [(one.code, one.other_days) for one in found] == [("sunday_range", True)]
    assert day_findings("0 9 * * 5-7", who="cron", stars_decide=True)[1] == []


def debian_runs(text: str, zone: str, begin: int, end: int) -> Counter[int]:
    """Instants in minutes, and how often it is started in each: Debian's cron, minute by minute on its local clock."""
    fields, wild, runs = text.split(), is_wildcard(text), Counter[int]()

    def start(local: int, instant: int) -> None:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=local)
        if (
            at.minute in values(fields[0], 0, 59)
            and at.hour in values(fields[1], 0, 23)
            and cron_matches_date(fields, at.date())
        ):
            runs[instant] += 1

    virtual = begin + offset(zone, begin * 60) // 60
    for instant in range(begin + 1, end + 1):
        running = instant + offset(zone, instant * 60) // 60
        late = running - virtual
        if late == 1:
            virtual = running
            start(running, instant)
        elif late > 1:  # the clock has gone ahead
            if wild:
                start(running, instant)
            while virtual < running:
                virtual += 1
                if not wild:
                    start(virtual, instant)
        elif wild:  # it has gone back: fixed times wait until it has caught up
            start(running, instant)
    return runs


def our_runs(text: str, zone: str, begin: int, end: int) -> tuple[Counter[int], list[Finding]]:
    policies, found = cron_dst(text, zone, NOW)
    rule = Recurrence(
        parse_cron(text),
        zone,
        OnGap(policies["on_gap"]),
        OnOverlap(policies["on_overlap"]),
    )
    window = (datetime.fromtimestamp(one * 60, UTC) for one in (begin, end))
    return (
        Counter(
            int(one.fire_at.timestamp()) // 60 for one in expand(rule, *window) if one.fire_at
        ),
        found,
    )


def around_shifts(zone: str) -> list[tuple[int, int]]:
    """A day before each change of the clock to a day after it, in minutes."""
    begin = int(NOW.timestamp())
    moves = shifts(zone, begin, begin + 540 * DAY)
    return [((one.at - DAY) // 60, (one.at + DAY) // 60) for one in moves]


@settings(max_examples=40)  # each is a day or two of minutes
@given(
    minute=st.sampled_from(["0", "30", "15,45", "*", "*/20", "0-59/30"]),
    hour=st.sampled_from(["*", "*/2", "0-23", "0", "1", "2", "3", "1-3", "2,14", "0-23/3", "*/1"]),
    weekdays=st.sampled_from(["*", "0", "1-5", "*/2"]),
    zone=st.sampled_from(ZONES),
)
@example(minute="0-59/30", hour="2", weekdays="*", zone="Australia/Lord_Howe")  # ends a gap
@example(minute="0", hour="2,3", weekdays="*", zone="Europe/Berlin")
@example(minute="30", hour="2", weekdays="*", zone="Europe/Berlin")
@example(minute="30", hour="0-23", weekdays="*", zone="Europe/Berlin")
@example(minute="*/20", hour="2", weekdays="*", zone="Europe/Berlin")
def test_kf02_runs_at_changes_of_the_clock_are_crons_unless_a_difference_is_named(
    minute, hour, weekdays, zone
):
    text = f"{minute} {hour} * * {weekdays}"
    same = True
    found: list[Finding] = []
    for window in around_shifts(zone):
        ours, found = our_runs(text, zone, *window)
        same = same and ours == debian_runs(text, zone, *window)
    named = {one.code for one in found if one.kind is Kind.DIFFERS}
    assert same == (not named), (text, zone, named)


def test_a_zone_whose_clock_stands_still_needs_no_words():
    assert cron_dst("30 2 * * *", "UTC", NOW)[1] == []
    assert cron_dst("30 12 * * *", "Europe/Berlin", NOW)[1] == []
    policies, found = cron_dst("*/5 2 * * *", "Europe/Berlin", NOW)
    assert policies == {"on_gap": "skip", "on_overlap": "both"}
    assert [(one.code, one.kind) for one in found] == [("dst", Kind.KEPT)]
