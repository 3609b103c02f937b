"""RFC 3339, strictly: never a guess."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import InvalidField
from jobs.policies.times import format_time, parse_time

ACCEPTED = {
    "2026-12-01T00:00:00Z": datetime(2026, 12, 1, tzinfo=UTC),
    "2026-12-01t00:00:00z": datetime(2026, 12, 1, tzinfo=UTC),
    "2026-12-01T00:00:00+01:00": datetime(2026, 11, 30, 23, tzinfo=UTC),
    "2026-12-01T00:00:00-00:00": datetime(2026, 12, 1, tzinfo=UTC),
    "2026-12-01T00:00:00+05:45": datetime(2026, 11, 30, 18, 15, tzinfo=UTC),
    "2026-12-01T00:00:00-23:59": datetime(2026, 12, 1, 23, 59, tzinfo=UTC),
    "2026-12-01T00:00:00.5Z": datetime(2026, 12, 1, 0, 0, 0, 500_000, tzinfo=UTC),
    "2026-12-01T00:00:00.123456Z": datetime(2026, 12, 1, 0, 0, 0, 123_456, tzinfo=UTC),
    "2026-12-01T00:00:00.123456789Z": datetime(2026, 12, 1, 0, 0, 0, 123_456, tzinfo=UTC),
    "2028-02-29T12:00:00Z": datetime(2028, 2, 29, 12, tzinfo=UTC),
    "1970-01-01T00:00:00Z": datetime(1970, 1, 1, tzinfo=UTC),
    "2100-12-31T23:59:59.999999Z": datetime(2100, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "1969-12-31T23:00:00-02:00": datetime(1970, 1, 1, 1, tzinfo=UTC),
}

REFUSED: dict[str, list[object]] = {
    "wrong_type": [
        None,
        True,
        0,
        1_796_083_200,
        1.5,
        b"2026-12-01T00:00:00Z",
        ["2026-12-01T00:00:00Z"],
        {},
    ],
    "offset_missing": ["2026-12-01T00:00:00", "2026-12-01T00:00:00.5"],
    "invalid_time": [
        "",
        "now",
        "20260101",
        "2026-12-01",
        "2026-12-01T00:00Z",
        "2026-12-01T00:00:00 Z",
        "2026-12-01 00:00:00Z",
        " 2026-12-01T00:00:00Z",
        "2026-12-01T00:00:00Z\n",
        "2026-12-01T00:00:00ZZ",
        "2026-12-01T00:00:00,5Z",
        "2026-12-01T00:00:00.Z",
        "2026-12-01T00:00:00.1234567890Z",
        "2026-12-01T00:00:00+1:00",
        "2026-12-01T00:00:00+0100",
        "2026-12-01T00:00:00+01",
        "2026-12-01T00:00:00+01:00:30",
        "2026-12-01T00:00:00+24:00",
        "2026-12-01T00:00:00+00:60",
        "2026-12-01T00:00:00\u221201:00",
        "2026-12-01T00:00:00UTC",
        "2026-12-01T00:00:00[Europe/Berlin]",
        "2026-W49-2T00:00:00Z",
        "2026-335T00:00:00Z",
        "2026-1-1T00:00:00Z",
        "26-12-01T00:00:00Z",
        "+2026-12-01T00:00:00Z",
        "20266-12-01T00:00:00Z",
        "20261201T000000Z",
        "2026-00-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-12-01T24:00:00Z",
        "2026-12-01T00:60:00Z",
        "2026-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "\u0662\u0660\u0662\u0666-12-01T00:00:00Z",
        "\uff12\uff10\uff12\uff16-12-01T00:00:00Z",
        "2026-12-01T00:00:0\u0967Z",
        "2026-12-01T00:00:00Z\x00",
        "2026-12-01T00:00:00\ud800",
        "9" * 100_000,
    ],
    "out_of_range": [
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "2101-01-01T00:00:00Z",
        "2100-12-31T23:59:59-00:01",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "0001-01-01T00:00:00Z",
    ],
}


@pytest.mark.parametrize(("text", "moment"), ACCEPTED.items(), ids=ACCEPTED)
def test_s24_a_time_with_offset_is_read_as_utc(text: str, moment: datetime) -> None:
    parsed = parse_time(text, "/due_at")
    assert parsed == moment
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize(
    ("code", "text"),
    [(code, text) for code, texts in REFUSED.items() for text in texts],
    ids=lambda v: ascii(v)[:40],
)
def test_s24_anything_else_is_refused_with_its_field(code: str, text: object) -> None:
    with pytest.raises(InvalidField) as refusal:
        parse_time(text, "/items/2/due_at")
    assert (refusal.value.pointer, refusal.value.field_code) == ("/items/2/due_at", code)
    refusal.value.detail.encode()  # can be sent, whatever the text was


zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1970, 1, 3), datetime(2100, 12, 29), timezones=zones)  # noqa: DTZ001


@given(moments)
def test_s24_what_is_written_is_read_back(moment: datetime) -> None:
    text = format_time(moment)
    assert text.endswith("Z")
    assert text.isascii()
    assert parse_time(text, "") == moment
    assert parse_time(moment.isoformat(), "") == moment


@given(
    st.text(max_size=40) | st.from_regex(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\Z")
)
def test_s24_no_text_brings_another_error_or_a_time_out_of_range(text: str) -> None:
    try:
        moment = parse_time(text, "/due_at")
    except InvalidField:
        return
    assert text.isascii()
    assert 1970 <= moment.year <= 2100


def test_times_are_written_in_utc_with_microseconds_only_when_there_are_any() -> None:
    zone = timezone(timedelta(hours=2))
    assert format_time(datetime(2026, 12, 1, 1, 30, tzinfo=zone)) == "2026-11-30T23:30:00Z"
    assert (
        format_time(datetime(2026, 12, 1, 0, 0, 0, 1000, tzinfo=UTC))
        == "2026-12-01T00:00:00.001000Z"
    )
    with pytest.raises(ValueError, match="zone"):
        format_time(datetime(2026, 12, 1))  # noqa: DTZ001
