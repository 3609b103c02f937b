"""parse_cron: what is accepted means what it says, and what is refused is refused by name."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import pytest

from jobs.errors import InvalidField
from jobs.policies.cron import parse_cron
from tests.support.cost import assert_cheap

CASES = json.loads(
    (Path(__file__).parents[1] / "support" / "calendar" / "cases.json").read_text("utf-8")
)
CODES = {
    "wrong_field_count",
    "bad_syntax",
    "out_of_range",
    "bad_step",
    "reversed_range",
    "unsupported",
    "mixed_weekday_forms",
    "impossible_date",
    "too_long",
    "wrong_type",
}


def outcome(text: str) -> str:
    try:
        parse_cron(text)
    except InvalidField as refused:
        return refused.field_code
    return "accepted"


def code(text: object) -> str:
    with pytest.raises(InvalidField) as refused:
        parse_cron(text)
    assert refused.value.pointer == "/cron"
    return refused.value.field_code


@pytest.mark.parametrize("case", CASES["invalid"], ids=lambda case: case["cron"] or "empty")
def test_kf09_bad_rules_are_refused_by_name(case: dict[str, str]) -> None:
    assert code(case["cron"]) == case["error"]


@pytest.mark.parametrize(
    "field", ["*/0", "*/00", "5-5/0", "59-0/0", "*/-1", "7/60", "1/", "/2", "-"]
)
def test_kf09_bad_fields_are_refused_wherever_they_stand(field: str) -> None:
    for place in range(5):
        fields = ["*"] * 5
        fields[place] = field
        assert code(" ".join(fields)) in {
            "bad_step",
            "bad_syntax",
            "reversed_range",
            "out_of_range",
        }
    assert code("* * 31-1/0 * *") == "reversed_range"


def test_kf07_dates_that_never_come_are_refused() -> None:
    for text in ("0 0 31 4 *", "0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 2 1"):
        assert code(text) == "impossible_date"
    for text in ("0 0 29 2 *", "0 0 31 1,2 *", "0 0 30,L 2 *", "0 0 L 2 *"):
        parse_cron(text)


def test_kf08_sunday_ends_a_range_by_name_and_by_seven() -> None:
    same = ("SAT-SUN", "6-7", "6,0", "6,7", "sat,sun", "6-SUN", "7,6,0")
    assert {parse_cron(f"0 0 * * {text}").weekdays for text in same} == {(0, 6)}
    assert parse_cron("0 0 * * 5-7").weekdays == (0, 5, 6)
    assert parse_cron("0 0 * * SUN-SUN").weekdays == parse_cron("0 0 * * 7-7").weekdays == (0,)
    assert parse_cron("0 0 * * 0-7").weekdays == (0, 1, 2, 3, 4, 5, 6)
    assert parse_cron("0 0 * * FRI-SUN/2").weekdays == (0, 5)
    assert parse_cron("0 0 * * 7/2").weekdays == (0, 2, 4, 6)
    for text in ("5-0", "FRI-WED", "7-3", "SAT-MON"):
        assert code(f"0 0 * * {text}") == "reversed_range"


def test_kf10_extensions_are_kept_or_refused_never_weakened() -> None:
    assert parse_cron("0 9 * * 5L").last == parse_cron("0 9 * * FRIL").last == (5,)
    assert parse_cron("0 9 * * 1#1,MON#3").nth == ((1, 1), (1, 3))
    assert parse_cron("0 9 * * 1#1,5L").last == (5,)
    assert parse_cron("0 9 15,L * *").last_day
    for text in ("0 9 LW * *", "0 9 1W * *", "0 9 L-1 * *", "0 9 * * L", "0 L * * *"):
        assert code(text) == "unsupported"
    for text in ("0 9 * * 5L,1", "0 9 * * 1-5,5#2"):
        assert code(text) == "mixed_weekday_forms"
    for text in ("0 9 L/2 * *", "0 9 1-L * *", "0 9 * * 1-5L", "0 9 * * 5#", "0 9 * * *,5L"):
        assert code(text) == "bad_syntax"


def test_spelling_does_not_matter() -> None:
    for one, other in (
        ("0 0 1 1 *", "@Yearly"),
        ("0 * * * * *", "*\t*/1   ? * ?"),
        ("00 07 * * MON-FRI", "0 7 * * mon,2-4,5"),
        ("0/20 * * * *", "0,20,40 * * * *"),
        ("  0 0 * * 0 ", "@weekly"),
        ("5-5 * * * *", "5 * * * *"),
    ):
        assert parse_cron(one) == parse_cron(other)


def test_a_rule_of_every_hour_is_an_interval_however_it_is_spelled() -> None:
    for hours in ("*", "*/1", "0-23", ",".join(map(str, range(24))), "0-11,12-23"):
        assert parse_cron(f"0 {hours} * * *").is_interval
    assert not parse_cron("0 1-23 * * *").is_interval


def test_what_is_no_text_or_too_long_is_refused() -> None:
    assert code(None) == code(5) == code(["*"]) == "wrong_type"
    assert code("0 " * 200) == "too_long"
    assert code("0 0\u00a0* * *") == "wrong_field_count"  # no blank that separates
    assert code("\u0660 0 * * *") == "bad_syntax"  # a zero, but not ours
    assert code("0 0 *\n* *") == "wrong_field_count"


def test_kf09_whatever_comes_in_is_accepted_or_refused_by_a_known_code_at_little_cost() -> None:
    """Seeded noise out of the characters of the grammar and others."""
    source = random.Random(9)
    letters = "0123456789*/-,#L?WHR @" + string.ascii_uppercase[:6] + "\t\n²é"

    def all_of_it() -> None:
        for _ in range(3_000):
            text = "".join(source.choices(letters, k=source.randint(0, 30)))
            assert outcome(text) in CODES | {"accepted"}

    assert_cheap(all_of_it, seconds=3)
