"""parse_every: lengths and anchors."""

from __future__ import annotations

import pytest

from jobs.errors import InvalidField
from jobs.policies.intervals import Every, EveryDate, parse_every

INSTANT, LOCAL = "2026-03-01T09:00:00Z", "2026-03-01T09:00:00"


def test_elapsed_time_begins_at_an_instant_and_dates_at_a_local_time() -> None:
    nine = 1_772_355_600
    assert parse_every("45s", INSTANT) == Every(nine, 45)
    assert parse_every("36h", "2026-03-01T10:00:00+01:00") == Every(nine, 36 * 3600)
    assert parse_every("2w", LOCAL) == EveryDate(nine, days=14)
    assert parse_every("3mo", LOCAL) == EveryDate(nine, months=3)


@pytest.mark.parametrize("every", ["", "0m", "-5m", "1.5h", "5", "m", "5y", "05m", " 5m", None, 5])
def test_kf17_a_length_that_is_none_is_refused(every: object) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_every(every, INSTANT)
    assert (refused.value.pointer, refused.value.field_code) == ("/every", "bad_syntax")


@pytest.mark.parametrize(
    ("every", "anchor", "code"),
    [
        ("5m", LOCAL, "offset_missing"),
        ("5m", None, "wrong_type"),
        ("5d", INSTANT, "invalid_time"),
        ("5d", "2026-02-30T09:00:00", "invalid_time"),
        ("5d", "2150-02-03T09:00:00", "out_of_range"),
    ],
)
def test_kf17_an_anchor_of_the_other_kind_is_refused(
    every: str, anchor: object, code: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_every(every, anchor)
    assert (refused.value.pointer, refused.value.field_code) == ("/anchor", code)


def test_a_length_beyond_ten_years_is_refused() -> None:
    for every in ("999999999s", "4000d", "600w", "130mo"):
        with pytest.raises(InvalidField, match="ten years"):
            parse_every(every, LOCAL)
