"""Calendars of business days: files of events, dates and weekends, and what is wrong with them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from jobs.errors import InvalidField, ValidationFailed
from jobs.policies.holidays import MOST_DAYS, parse_days, parse_weekend, read_ics
from jobs.services.calendars import parse_calendar

FIRST, LAST = date(2026, 1, 1), date(2028, 12, 31)


def file(*events: str) -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//tests//EN"]
    for number, event in enumerate(events):
        lines += ["BEGIN:VEVENT", f"UID:{number}", *event.split("|"), "END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""])


def days(*events: str) -> dict[str, str]:
    return read_ics(file(*events), first=FIRST, last=LAST)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("DTSTART;VALUE=DATE:20270504|SUMMARY:Stocktaking", ["2027-05-04"]),
        # The end of an event of days is the first day after it.
        ("DTSTART;VALUE=DATE:20270504|DTEND;VALUE=DATE:20270506", ["2027-05-04", "2027-05-05"]),
        ("DTSTART;VALUE=DATE:20270504|DURATION:P3D", ["2027-05-04", "2027-05-05", "2027-05-06"]),
        (
            "DTSTART;VALUE=DATE:20001225|RRULE:FREQ=YEARLY",
            ["2026-12-25", "2027-12-25", "2028-12-25"],
        ),
        (
            "DTSTART;VALUE=DATE:20001225|RRULE:FREQ=YEARLY|EXDATE;VALUE=DATE:20271225",
            ["2026-12-25", "2028-12-25"],
        ),
        (
            "DTSTART;VALUE=DATE:20260401|RRULE:FREQ=MONTHLY;BYDAY=1WE;COUNT=3",
            ["2026-04-01", "2026-05-06", "2026-06-03"],
        ),
        (
            "DTSTART;VALUE=DATE:20260401|RDATE;VALUE=DATE:20260403,20260407",
            ["2026-04-01", "2026-04-03", "2026-04-07"],
        ),
        # It began before the first date and reaches into the window.
        ("DTSTART;VALUE=DATE:20251230|DTEND;VALUE=DATE:20260103", ["2026-01-01", "2026-01-02"]),
    ],
)
def test_events_of_whole_days_close_their_days(event: str, expected: list[str]) -> None:
    assert list(days(event)) == expected


def test_an_event_of_hours_and_a_cancelled_one_close_nothing() -> None:
    found = days(
        "DTSTART:20270504T100000Z|DTEND:20270504T110000Z",
        "DTSTART;VALUE=DATE:20270505|STATUS:CANCELLED",
        "DTSTART;VALUE=DATE:20270506|SUMMARY:Ascension\x07 Day",
    )
    assert found == {"2027-05-06": "Ascension Day"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_syntax"),
        ("hello", "bad_syntax"),
        (file(), "empty"),
        (file("DTSTART;VALUE=DATE:2027"), "bad_syntax"),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=SECONDLY"), "bad_syntax"),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=DAILY;INTERVAL=0"), "bad_syntax"),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=NEVER"), "bad_syntax"),
        (
            file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"),
            "bad_syntax",
        ),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=DAILY;BYMONTHDAY=13"), "bad_syntax"),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=DAILY;BYHOUR=1,2,3"), "bad_syntax"),
        (file("DTSTART;VALUE=DATE:20270504|RRULE:FREQ=MONTHLY;BYDAY=6MO"), "bad_syntax"),
        (
            file("DTSTART;VALUE=DATE:20270504|DTEND;VALUE=DATE:20520504|RRULE:FREQ=DAILY"),
            "bad_syntax",
        ),
        (file("DTSTART;VALUE=DATE:00010101|RRULE:FREQ=DAILY"), "bad_syntax"),
        (file(*["DTSTART;VALUE=DATE:20260101|RRULE:FREQ=DAILY"] * 200), "bad_syntax"),
        (
            file(
                *["DTSTART;VALUE=DATE:20270129|RRULE:FREQ=MONTHLY;INTERVAL=12;BYMONTHDAY=31"] * 20
            ),
            "bad_syntax",
        ),
        (file("DTSTART;VALUE=DATE:20270504|DTEND;VALUE=DATE:20270101"), "bad_syntax"),
        ("x" * (2 << 20), "too_large"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidField) as refused:
        read_ics(text, first=FIRST, last=LAST)
    assert (refused.value.pointer, refused.value.field_code) == ("/ics", code)


def test_a_file_of_every_day_for_ever_is_bounded() -> None:
    text = file("DTSTART;VALUE=DATE:20200101|RRULE:FREQ=DAILY")
    with pytest.raises(InvalidField) as refused:
        read_ics(text, first=date(2020, 1, 1), last=date(2040, 12, 31))
    assert refused.value.field_code == "too_many"
    assert len(read_ics(text, first=FIRST, last=LAST)) < MOST_DAYS


@pytest.mark.parametrize(
    "value",
    [None, [], {"2027-02-30": "x"}, {"27-02-03": "x"}, {"2027-02-03": 5}, {"1969-01-01": "x"},
     {"2027-02-03": "x" * 201}, {"2027-2-3": "x"}, {"٢٠٢٧-02-03": "x"}],
)  # fmt: skip
def test_days_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_days(value, "/days")
    assert refused.value.pointer.startswith("/days")


@pytest.mark.parametrize("value", [None, "sat", ["saturday"], [6], [["sat"]], ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]])  # fmt: skip
def test_a_weekend_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidField):
        parse_weekend(value, "/weekend")


def test_each_fault_of_a_calendar_is_named() -> None:
    fields = {"days": {"x": "y"}, "weekend": "sat", "ics": 5, "surprise": 1}
    with pytest.raises(ValidationFailed) as refused:
        parse_calendar(fields, today=FIRST)
    assert {one.pointer for one in refused.value.errors} == {
        "/days/x", "/weekend", "/ics", "/surprise", "/name",
    }  # fmt: skip


def test_a_file_and_single_days_make_one_calendar() -> None:
    ics = file("DTSTART;VALUE=DATE:20261225|SUMMARY:Christmas")
    made = parse_calendar(
        {"name": "works", "ics": ics, "days": {"2026-12-24": "Eve"}}, today=FIRST
    )
    assert made.days == {"2026-12-24": "Eve", "2026-12-25": "Christmas"}
