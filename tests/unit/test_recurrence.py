"""expand: the written calendar policy, case by case and against a walker that reads the clock minute by minute."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from jobs.policies.cron import parse_cron
from jobs.policies.intervals import Every, EveryDate
from jobs.policies.recurrence import Recurrence, expand
from jobs.policies.zones import shifts, zone_keys
from jobs.states import OnGap, OnOverlap, Resolution
from tests.support.cost import assert_cheap
from tests.support.walker import DrawnRule, walk

CASES = json.loads(
    (Path(__file__).parents[1] / "support" / "calendar" / "cases.json").read_text("utf-8")
)["cases"]
CALENDAR_CASES = int(os.environ.get("CALENDAR_CASES") or 200)  # 20,000 in a long run
NEW_YORK, BERLIN = "America/New_York", "Europe/Berlin"
END = datetime(2200, 1, 1, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def cron(
    text: str, key: str = "UTC", on_gap: str = "next_valid", on_overlap: str = "first"
) -> Any:
    return Recurrence(parse_cron(text), key, OnGap(on_gap), OnOverlap(on_overlap))


def due(schedule: Recurrence, after: str, until: str = "", count: int | None = None) -> list[str]:
    window = utc(after), utc(until) if until else END
    found = islice(expand(schedule, *window), count)
    return [f"{one.fire_at:%Y-%m-%dT%H:%M:%SZ}" for one in found]


def short(times: list[str], year: str = "2026-") -> list[str]:
    return [time.removeprefix(year).removesuffix(":00Z") for time in times]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_case_of_the_policy(case: dict[str, Any]) -> None:
    schedule = cron(case["cron"], case["tz"], **case["policy"])
    found = due(schedule, case["start_utc"], case.get("end_utc", ""), case.get("count"))
    assert found == case["expected"], case["why"]


def drawn_rule(source: random.Random) -> DrawnRule:
    def some(values: range, most: int) -> frozenset[int]:
        return frozenset(source.sample(values, source.randint(1, most)))

    def text(values: frozenset[Any] | None, whole: range | None = None) -> str:
        if values is None or (whole is not None and values == frozenset(whole)):
            return "*"
        return ",".join(
            f"{one[0]}#{one[1]}".replace("#L", "L") if isinstance(one, tuple) else str(one)
            for one in sorted(values, key=str)
        )

    minutes = source.choice(
        [frozenset({0}), frozenset({30}), some(range(60), 4), frozenset(range(60))]
    )
    hours = source.choice([some(range(24), 3), frozenset({0, 1, 2, 3}), frozenset(range(24))])
    months = source.choice([frozenset(range(1, 13))] * 3 + [some(range(1, 13), 6)])
    days: frozenset[Any] | None = None
    if source.random() < 0.3:
        days = some(range(1, 29), 5) | source.choice([frozenset(), frozenset({"L"})])
    weekdays: frozenset[Any] | None = None
    if source.random() < 0.3:
        weekdays = source.choice(
            [
                some(range(7), 4),
                frozenset({(source.randrange(7), source.randint(1, 5))}),
                frozenset({(source.randrange(7), "L"), (source.randrange(7), 1)}),
            ]
        )
    second = source.choice([0, 0, 0, source.randrange(60)])
    parts = [
        text(minutes, range(60)),
        text(hours, range(24)),
        text(days),
        text(months, range(1, 13)),
        text(weekdays),
    ]
    if second:
        parts.insert(0, str(second))
    return DrawnRule(" ".join(parts), second, minutes, hours, days, months, weekdays)


def test_f29_i13_expansion_is_what_the_clock_shows() -> None:
    """Random rule, zone, policies and window; most windows lie around a moment at which the clock is moved."""
    keys = sorted(zone_keys())
    first, last = (round(utc(f"{year}-01-05T00:00:00Z").timestamp()) for year in (2000, 2037))
    for seed in range(CALENDAR_CASES):
        source = random.Random(seed)
        key, rule = source.choice(keys), drawn_rule(source)
        moves = shifts(key, first, last)
        middle = source.choice(moves).at if moves else source.randrange(first, last)
        begin = middle + source.randrange(-40, 3) * 3600 + source.choice([0, 1, 1800, 3599])
        after = datetime.fromtimestamp(begin, UTC)
        until = after + timedelta(seconds=source.randrange(1, 2 * 86_400))
        on_gap, on_overlap = source.choice(list(OnGap)), source.choice(list(OnOverlap))
        schedule = cron(rule.text, key, on_gap, on_overlap)
        found = [one.fire_at for one in expand(schedule, after, until)]
        expected = walk(rule, key, on_gap, on_overlap, after, until)
        assert found == expected, (seed, rule.text, key, on_gap, on_overlap, after, until)
        # Again, and in two parts: the same.
        cut = source.choice([*found, after + (until - after) * source.random(), utc_of(middle)])
        cut = min(max(cut or after, after), until)
        parts = [*expand(schedule, after, cut), *expand(schedule, cut, until)]
        assert parts == list(expand(schedule, after, until)), (seed, cut)
        assert all(one < other for one, other in pairwise(expected))


def utc_of(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_kf01_a_repeated_local_time_runs_as_the_policy_says() -> None:
    window = "2026-10-24T12:00:00Z", "2026-10-27T12:00:00Z"
    after = ["10-26T01:00", "10-27T01:00"]
    for on_overlap, runs in (
        ("first", ["10-25T00:00"]),
        ("second", ["10-25T01:00"]),
        ("both", ["10-25T00:00", "10-25T01:00"]),
    ):
        found = due(cron("0 2 * * *", BERLIN, on_overlap=on_overlap), *window)
        assert short(found) == [*runs, *after]


def test_kf02_a_missing_local_time_runs_as_the_policy_says_and_a_skipped_one_is_told() -> None:
    window = "2026-03-07T12:00:00Z", "2026-03-10T12:00:00Z"
    after = ["03-09T06:30", "03-10T06:30"]
    for on_gap, runs in (
        ("next_valid", ["03-08T07:00"]),
        ("shift_forward", ["03-08T07:30"]),
        ("skip", []),
    ):
        assert short(due(cron("30 2 * * *", NEW_YORK, on_gap), *window)) == [*runs, *after]
    told = list(expand(cron("30 2 * * *", NEW_YORK, "skip"), *map(utc, window), skipped=True))
    assert [one.resolution for one in told] == [
        Resolution.IN_GAP,
        Resolution.PLAIN,
        Resolution.PLAIN,
    ]
    gone = told[0]
    assert (gone.fire_at, gone.slot.isoformat(), gone.number) == (None, "2026-03-08T02:30:00", 0)
    assert gone.known_at == utc("2026-03-08T07:00:00Z")


def test_kf03_an_interval_keeps_its_rhythm_through_a_shift() -> None:
    quarter = cron("*/15 * * * *", NEW_YORK, "skip", "first")
    for begin, end, count in (
        ("2026-11-01T03:59:59Z", "2026-11-02T04:59:59Z", 100),
        ("2026-03-08T04:59:59Z", "2026-03-09T03:59:59Z", 92),
    ):
        found = [one.fire_at for one in expand(quarter, utc(begin), utc(end))]
        assert len(found) == count
        steps = {(b - a).seconds for a, b in pairwise(found) if a and b}
        assert steps == {900}


def test_kf04_the_search_never_stands_still() -> None:
    half_past = cron("30 * * * *", "Europe/Helsinki")
    at, found = utc("2026-10-24T23:00:00Z"), []
    for _ in range(12):
        at = next(expand(half_past, at, END)).fire_at or at
        found.append(at)
    assert found == [utc("2026-10-24T23:30:00Z") + timedelta(hours=n) for n in range(12)]


def test_kf05_noon_is_noon_however_early_it_is_worked_out() -> None:
    for year in ("2020", "2026"):
        after = f"{year}-03-26T11:00:00Z"
        assert "2026-03-29T10:00:00Z" in due(
            cron("0 12 * * 0", BERLIN), after, "2026-03-29T10:00:00Z"
        )


def test_kf06_either_day_field_matches() -> None:
    friday = cron("0 0 13 * 5")
    found = due(friday, "2025-12-31T23:59:59Z", "2026-12-31T23:59:59Z")
    assert len(found) == 61
    assert short(due(friday, "2026-01-31T23:59:59Z", count=5)) == [
        f"{day}T00:00" for day in ("02-06", "02-13", "02-20", "02-27", "03-06")
    ]


def test_kf08_weekend_days() -> None:
    for days in ("SAT-SUN", "6-7", "6,0", "6,7", "sat,sun"):
        found = due(cron(f"0 0 * * {days}"), "2025-12-31T23:59:59Z", "2026-01-31T23:00:00Z")
        assert [int(one[8:10]) for one in found] == [3, 4, 10, 11, 17, 18, 24, 25, 31]
    found = due(cron("0 0 * * 5-7"), "2025-12-31T23:59:59Z", count=4)
    assert [int(one[8:10]) for one in found] == [2, 3, 4, 9]


def test_kf10_the_last_friday_is_the_last_friday() -> None:
    found = due(cron("0 9 * * 5L"), "2026-01-01T00:00:00Z", count=6)
    assert [one[5:10] for one in found] == ["01-30", "02-27", "03-27", "04-24", "05-29", "06-26"]


def test_kf17_an_interval_is_what_was_asked_and_does_not_drift() -> None:
    anchor = round(utc("2026-05-01T01:00:00Z").timestamp())
    daily = Recurrence(Every(anchor, 86_400), NEW_YORK)
    for late in ("2026-05-02T01:07:00Z", "2026-05-02T11:30:00Z"):
        assert due(daily, late, count=5) == [f"2026-05-0{n}T01:00:00Z" for n in range(3, 8)]
    # Elapsed time through a shift; and the clock's face is told with each.
    across = Recurrence(Every(round(utc("2026-11-01T04:00:00Z").timestamp()), 3600), NEW_YORK)
    found = list(islice(expand(across, utc("2026-11-01T04:30:00Z"), END), 3))
    assert [(one.slot.hour, one.number) for one in found] == [(1, 1), (1, 2), (2, 1)]
    assert due(daily, "2026-04-01T00:00:00Z", "2026-05-01T00:59:59Z") == []


def test_kf17_civil_intervals_keep_to_the_wall_clock() -> None:
    first = round(utc("2026-10-20T09:00:00Z").timestamp())  # as a local time
    three = Recurrence(EveryDate(first, days=3), BERLIN)
    assert short(due(three, "2026-10-19T00:00:00Z", count=4)) == [
        "10-20T07:00",
        "10-23T07:00",
        "10-26T08:00",
        "10-29T08:00",
    ]
    last = round(utc("2026-01-31T02:30:00Z").timestamp())
    monthly = Recurrence(EveryDate(last, months=1), BERLIN, OnGap.SKIP)
    assert [one[5:10] for one in due(monthly, "2026-01-01T00:00:00Z", count=4)] == [
        "01-31",
        "03-31",
        "05-31",
        "07-31",
    ]
    quarterly = Recurrence(EveryDate(last, months=3), "UTC")
    found = due(quarterly, "2060-01-01T00:00:00Z", "2062-12-31T00:00:00Z")
    assert [one[:10] for one in found] == [
        f"{year}-{day}" for year in (2060, 2061, 2062) for day in ("01-31", "07-31", "10-31")
    ]


def test_a_dense_rule_costs_as_much_as_is_read_of_it() -> None:
    every_second = cron("* * * * * *", BERLIN)
    assert_cheap(
        lambda: list(islice(expand(every_second, utc("2026-01-01T00:00:00Z"), END), 1_000)),
        seconds=0.2,
    )


@pytest.mark.parametrize("text", ["30 2 * * *", "0 9 * * 1-5", "0 9 1,15 * *"])
def test_the_next_firing_costs_one_and_not_hundreds(text: str) -> None:
    rule, after = cron(text, BERLIN), utc("2026-01-01T00:00:00Z")

    def several() -> None:
        for _ in range(100):
            assert next(expand(rule, after, END)).fire_at

    assert_cheap(several, seconds=0.2)  # 0.02 to 0.06; a season of them at once took 1 to 2


@pytest.mark.parametrize(
    "text", ["0 0 29 2 *", "0 0 * 2 1#5", "0 9 * * 5L", "0,30 */2 1-7,L * 1#1,5L", "0 0 L * *"]
)
def test_a_year_of_a_sparse_rule_is_cheap(text: str) -> None:
    window = utc("2026-01-01T00:00:00Z"), utc("2027-01-01T00:00:00Z")
    assert_cheap(lambda: list(expand(cron(text, "Africa/Casablanca"), *window)), seconds=0.5)


def test_only_1970_to_2099_counts() -> None:
    daily = cron("@daily")
    assert due(daily, "1960-01-01T00:00:00Z", count=1) == ["1970-01-01T00:00:00Z"]
    assert due(daily, "2099-12-30T12:00:00Z") == ["2099-12-31T00:00:00Z"]
    assert (
        due(daily, "2150-01-01T00:00:00Z")
        == due(daily, "2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z")
        == []
    )
