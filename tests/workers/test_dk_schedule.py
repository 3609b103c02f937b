"""dk schedule preview: one rule in words and instants, and files of them."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from jobs.policies.zones import ZONE_DATA

CASES = Path(__file__).parents[1] / "support" / "calendar" / "cases.json"
BERLIN = ("--timezone", "Europe/Berlin", "--after", "2027-03-26T00:00:00Z")


def preview(*arguments: str) -> tuple[int, str, str]:
    out, err, real = StringIO(), StringIO(), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = out, err
    try:
        call_command("dk", "schedule", "preview", *arguments)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.stdout, sys.stderr = real
    return code, out.getvalue(), err.getvalue()


def document(*arguments: str) -> Any:
    code, out, _ = preview(*arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_a_file_of_cases_is_answered_whole() -> None:
    cases = json.loads(CASES.read_text("utf-8"))
    code, out, err = preview("--cases", str(CASES))
    answers = json.loads(out)
    assert (code, err) == (0, "")
    expected: dict[str, object] = {case["id"]: case["expected"] for case in cases["cases"]}
    expected |= {case["id"]: {"error": case["error"]} for case in cases["invalid"]}
    assert answers == expected


def test_a_case_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    good = {"cron": "@daily", "start_utc": "2026-01-01T00:00:00Z", "count": 1}
    bad: list[dict[str, Any]] = [
        {"cron": "@daily", "tz": "Mars/Base"},
        {"cron": "@daily", "policy": {"on_gap": "guess"}},
        {"cron": "@daily", "start_utc": "tomorrow"},
        {},
        {"cron": "@daily", "count": "x"},
        {"cron": "@daily", "count": -1},
        {"cron": "@daily", "policy": 5},
    ]
    cases = [{"id": f"bad{n}", **case} for n, case in enumerate(bad)]
    odd: list[Any] = [1]
    file.write_text(json.dumps({"cases": [*cases, {"id": "good", **good}, *odd]}))
    code, out, _ = preview("--cases", str(file))
    assert code == 0
    assert json.loads(out) == {
        "bad0": {"error": "unknown_timezone"},
        "bad1": {"error": "bad_policy"},
        "bad2": {"error": "invalid_time"},
        "bad3": {"error": "required"},
        "bad4": {"error": "wrong_type"},
        "bad5": {"error": "out_of_range"},
        "bad6": {"error": "wrong_type"},
        "8": {"error": "wrong_type"},
        "good": ["2026-01-02T00:00:00Z"],
    }


def test_a_file_that_is_no_list_of_cases_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", '{"cases": 1}', "[" * 100_000):
        file = tmp_path / "cases.json"
        file.write_text(text)
        code, out, err = preview("--cases", str(file))
        assert (code, out) == (2, "")
        assert "--cases" in err
    assert preview("--cases", str(tmp_path / "none"))[0] == 2


def test_kf02_a_gap_is_told_in_words_with_what_each_policy_would_do() -> None:
    shown = document("--cron", "30 2 * * *", *BERLIN, "--count", "3")
    assert shown["words"] == "At 02:30"
    assert [one["fire_at"] for one in shown["runs"]] == [
        "2027-03-26T01:30:00Z",
        "2027-03-27T01:30:00Z",
        "2027-03-28T01:00:00Z",
    ]
    moved = shown["runs"][2]
    assert moved == {
        "fire_at": "2027-03-28T01:00:00Z",
        "due_at": "2027-03-28T01:00:00Z",
        "local": "2027-03-28T03:00:00+02:00",
        "slot": "2027-03-28T02:30:00",
        "pass": 1,
        "resolution": "after_gap",
        "words": "02:30 does not exist on 28 March 2027 in Europe/Berlin; runs at 03:00",
    }
    gap, overlap, *_ = shown["shifts"]
    assert (gap["at"], gap["kind"]) == ("2027-03-28T01:00:00Z", "gap")
    assert gap["words"] == "the clock goes from 02:00 ahead to 03:00; on_gap decides"
    assert gap["would_run"] == {
        "next_valid": ["2027-03-28T01:00:00Z"],
        "shift_forward": ["2027-03-28T01:30:00Z"],
        "skip": [],
    }
    assert overlap["would_run"] == {
        "first": ["2027-10-31T00:30:00Z"],
        "second": ["2027-10-31T01:30:00Z"],
        "both": ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"],
    }
    assert shown["zone_data"] == ZONE_DATA
    assert shown["cut"]


def test_the_page_says_the_same() -> None:
    code, out, _ = preview("--cron", "30 2 * * *", *BERLIN, "--on-gap", "skip", "--count", "4")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "At 02:30"
    assert lines[3] == (
        "2027-03-28T02:30:00  skipped"
        "  02:30 does not exist on 28 March 2027 in Europe/Berlin; does not run"
    )
    assert "    skip: does not run" in lines


def test_an_interval_is_touched_by_no_shift() -> None:
    shown = document("--cron", "*/15 * * * *", *BERLIN, "--count", "1")
    assert {shift["words"].split("; ")[1] for shift in shown["shifts"]} == {
        "touches no slot of this rule"
    }
    dates = document("--every", "3d", "--anchor", "2027-03-26T09:00:00", *BERLIN, "--count", "2")
    assert [one["fire_at"] for one in dates["runs"]] == [
        "2027-03-26T08:00:00Z",
        "2027-03-29T07:00:00Z",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cron", "0 0 30 2 *"), "/cron: impossible_date"),
        (("--cron", "@daily", "--timezone", "UTC+3"), "/timezone: unknown_timezone"),
        (("--cron", "@daily", "--on-overlap", "third"), "/on_overlap: bad_policy"),
        (("--cron", "0 0 * 2 1#5", "--after", "2045-01-01T00:00:00Z"), "no_upcoming_occurrence"),
        (("--every", "5m"), "/anchor: wrong_type"),
        (("--cron", "@daily", "--count", "0"), "--count"),
    ],
)
def test_kf07_a_rule_that_is_refused_names_the_field(
    arguments: tuple[str, ...], told: str
) -> None:
    code, _, err = preview(*arguments)
    assert code == 2
    assert told in err
