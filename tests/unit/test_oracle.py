"""The calendar that the ledger is held against: it agrees with the written policy, and with the expansion in every detail."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from jobs.policies.cron import ALIASES, parse_cron
from jobs.policies.intervals import parse_every
from jobs.policies.oracle import Calendar, among, read_calendar, walk
from jobs.policies.plain_rules import read_rule
from jobs.policies.recurrence import Recurrence, expand
from jobs.policies.zones import shifts, zone_keys
from jobs.states import OnGap, OnOverlap
from tests.support.cost import assert_cheap
from tests.support.walker import walk as walk_minutes
from tests.unit.test_recurrence import CALENDAR_CASES, drawn_rule, utc

CASES = json.loads(
    (Path(__file__).parents[1] / "support" / "calendar" / "cases.json").read_text("utf-8")
)["cases"]
END = utc("2099-12-31T23:59:59Z")
INTERVALS = [
    ("90m", "2010-03-01T09:00:00Z"),
    ("36h", "2009-03-01T09:00:07+05:30"),
    ("7s", "2000-01-31T00:30:00z"),
    ("3d", "2001-03-01T02:30:00"),
    ("2w", "2004-01-31T00:30:00"),
    ("1mo", "2004-01-31T02:15:00"),
    ("5mo", "1999-12-31T23:59:59"),
]


def calendar(cron: str = "", every: str = "", anchor: str = "", **rest: str) -> Calendar:
    policy = {"zone": "UTC", "on_gap": "next_valid", "on_overlap": "first", **rest}
    return read_calendar(cron=cron, every=every, anchor=anchor, **policy)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_i13_every_case_of_the_policy(case: dict[str, Any]) -> None:
    until = utc(case["end_utc"]) if "end_utc" in case else END
    found = walk(
        calendar(case["cron"], zone=case["tz"], **case["policy"]), utc(case["start_utc"]), until
    )
    runs = (one.fire_at for one in found if one.fire_at)
    told = [f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in islice(runs, case.get("count"))]
    assert told == case["expected"], case["why"]


def test_f29_i13_expansion_and_oracle_agree_on_instants_slots_passes_and_what_a_gap_skips() -> (
    None
):
    keys = sorted(zone_keys())
    first, last = (round(utc(f"{year}-01-05T00:00:00Z").timestamp()) for year in (2000, 2037))
    for seed in range(CALENDAR_CASES):
        source = random.Random(seed)
        key, drawn = source.choice(keys), drawn_rule(source)
        interval = source.choice(INTERVALS) if source.random() < 0.3 else None
        moves = shifts(key, first, last)
        middle = source.choice(moves).at if moves else source.randrange(first, last)
        begin = middle + source.randrange(-60, 3) * 3600 + source.choice([0, 1, 1800, 3599])
        after = datetime.fromtimestamp(begin, UTC)
        until = after + timedelta(seconds=source.randrange(1, 3 * 86_400))
        on_gap, on_overlap = source.choice(list(OnGap)), source.choice(list(OnOverlap))
        rule = parse_every(*interval) if interval else parse_cron(drawn.text)
        texts = {"every": interval[0], "anchor": interval[1]} if interval else {"cron": drawn.text}
        own = calendar(**texts, zone=key, on_gap=on_gap, on_overlap=on_overlap)
        found = list(walk(own, after, until))
        why = seed, drawn.text, interval, key, on_gap, on_overlap, after, until
        assert [
            (one.known_at, one.fire_at, one.slot.isoformat(), one.number)
            for one in expand(
                Recurrence(rule, key, on_gap, on_overlap), after, until, skipped=True
            )
        ] == [tuple(one) for one in found], why
        if interval is None:
            runs = [one.fire_at for one in found if one.fire_at]
            assert runs == walk_minutes(drawn, key, on_gap, on_overlap, after, until), why
        some = source.sample(found, min(3, len(found)))
        assert set(some) <= among(own, {one.known_at for one in some}) <= set(found), why


ITEMS = {
    "second": ("*", "0", "*/7", "5-10/2", "58/1", "0,30"),
    "minute": ("*", "*/1", "7", "*/25", "3-9", "50/3", "0,15,59"),
    "hour": ("*", "0-23", "*/5", "9-17/2", "22/1", "0,1,2"),
    "day": ("*", "?", "L", "15,L", "*/10", "31", "1-7", "29/1", "13"),
    "month": ("*", "JAN,feb", "*/5", "MAR-MAY", "2", "11/1"),
    "weekday": (
        *("*", "?", "*/1", "0", "7", "SUN", "FRI-SUN", "6-7", "7-7", "0-7", "0-SUN", "SUN-7"),
        *(
            "MON-FRI/2",
            "2/2",
            "7/2",
            "5-7/2",
            "*/2",
            "1#1,1#3",
            "7#5",
            "5L",
            "friL,0#2",
            "sat,sun",
        ),
    ),
}


def test_f29_i13_two_readers_of_one_grammar_see_the_same_dates_and_times() -> None:
    begin, end = (round(utc(f"{year}-01-01T00:00:00Z").timestamp()) for year in (2027, 2029))
    for seed in range(CALENDAR_CASES * 2):
        source = random.Random(seed)
        text = " ".join(source.choice(several) for several in ITEMS.values())
        if " 31 2 " in text:
            continue  # never comes, and is refused
        known, own = parse_cron(text), read_rule(text, "", "")
        day = datetime.fromtimestamp(begin, UTC)
        dates = set(known._dates(begin, end))
        while day.timestamp() < end:
            assert (day.timestamp() in dates) == own.on(day.date()), (seed, text, day)  # type: ignore[union-attr]
            day += timedelta(days=1)
        assert list(known._times(0, 86_400)) == list(own.times), (seed, text)  # type: ignore[union-attr]


@pytest.mark.parametrize("alias", ALIASES)
def test_i13_aliases_mean_the_same_to_both_readers(alias: str) -> None:
    window = utc("2027-01-01T00:00:00Z"), utc("2029-01-01T00:00:00Z")
    found = [one.fire_at for one in walk(calendar(alias), *window)]
    assert found == [one.fire_at for one in expand(Recurrence(parse_cron(alias), "UTC"), *window)]


@pytest.mark.parametrize(
    "texts",
    [
        {"cron": ""},
        {"cron": "* * * *"},
        {"cron": "61 * * * *"},
        {"cron": "*/0 * * * *"},
        {"cron": "9-5 * * * *"},
        {"cron": "0 0 * * MONDAY"},
        {"cron": "H * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 0 31 4,6 1"},
        {"cron": "0 0 * * 1", "zone": "Europe/Berlin "},
        {"cron": "0 0 * * 1", "on_gap": "later"},
        {"every": "0m", "anchor": "2027-01-01T00:00:00Z"},
        {"every": "m", "anchor": "2027-01-01T00:00:00Z"},
        {"every": "3y", "anchor": "2027-01-01T00:00:00Z"},
        {"every": "3d", "anchor": ""},
    ],
)
def test_i13_what_says_nothing_is_refused(texts: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  which of them, nobody asks
        calendar(**texts)


def test_a_year_of_a_daily_rule_is_cheap() -> None:
    window = utc("2026-01-01T00:00:00Z"), utc("2027-01-01T00:00:00Z")
    daily = calendar("30 2 * * *", zone="Africa/Casablanca")
    assert_cheap(lambda: list(walk(daily, *window)), seconds=0.5)
