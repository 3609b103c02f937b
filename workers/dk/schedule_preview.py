"""dk schedule preview: what a rule will do that is stored nowhere, or a file of them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from jobs.errors import InvalidField, ValidationFailed
from jobs.policies.timing import Timing
from jobs.policies.zones import ZONE_DATA
from jobs.services.preview import (
    MOST_RUNS,
    Preview,
    check_upcoming,
    expected_instants,
    parse_recurrence,
    preview,
)
from jobs.services.requests import integer
from workers.dk.history import moment, printable

DONE, USAGE = 0, 2
LAST = datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC)


def add_preview(verb: ArgumentParser) -> None:
    """Its arguments."""
    what = verb.add_mutually_exclusive_group(required=True)
    what.add_argument("--cron", help='five or six fields, or an alias: "30 2 * * *"')
    what.add_argument(
        "--every", help="90m, 36h (elapsed time), 3d, 2w, 1mo (dates); with --anchor"
    )
    what.add_argument("--cases", type=Path, metavar="FILE", help="many rules: {cases, invalid}")
    verb.add_argument("--anchor", help="2026-03-01T09:00:00Z; for dates without the Z")
    verb.add_argument("--timezone", default="UTC", help="default: UTC")
    verb.add_argument("--on-gap", default="next_valid")
    verb.add_argument("--on-overlap", default="first")
    verb.add_argument("--after", type=moment, metavar="TIME", help="default: now")
    verb.add_argument("--until", type=moment, metavar="TIME", help="default: ten years on")
    verb.add_argument("--count", type=int, default=10, help=f"most runs, 1 to {MOST_RUNS}")
    verb.add_argument("--json", action="store_true", help="one JSON document")


def run_preview(options: Namespace, out: TextIO, err: TextIO) -> int:
    """Preview one rule, or a file of them; exit code 2 for one that is refused."""
    if options.cases is not None:
        return _all_cases(options.cases, out, err)
    if not 1 <= options.count <= MOST_RUNS:
        err.write(f"--count: must be from 1 to {MOST_RUNS}\n")
        return USAGE
    fields = {
        name: getattr(options, name)
        for name in ("cron", "every", "anchor", "timezone", "on_gap", "on_overlap")
    }
    after = options.after or datetime.now(UTC)
    try:
        schedule = parse_recurrence(fields)
        check_upcoming(schedule, after)
    except (InvalidField, ValidationFailed) as error:
        return _refused(error, options, out, err)
    shown = preview(
        Timing(recurrence=schedule),
        text=options.cron or "",
        after=after,
        until=options.until,
        count=options.count,
    )
    if options.json:
        out.write(json.dumps(shown.document()) + "\n")
    else:
        out.writelines(printable(line) + "\n" for line in _lines(shown, options.timezone))
    return DONE


def _lines(shown: Preview, key: str) -> list[str]:
    lines = [shown.words]
    for one in shown.runs:
        time = f"{one['local']}  {one['fire_at']}" if one["fire_at"] else f"{one['slot']}  skipped"
        lines.append("  ".join(filter(None, [time, one["words"]])))
    if not shown.runs:
        lines.append("nothing in this time")
    if shown.shifts:
        lines.append(f"the clock of {key} in the next 18 months (zone data {ZONE_DATA}):")
    for shift in shown.shifts:
        lines.append(f"  {shift['at']}  {shift['words']}")
        lines += [
            f"    {policy}: {', '.join(runs) or 'does not run'}"
            for policy, runs in shift["would_run"].items()
        ]
    return lines


def _refused(
    error: InvalidField | ValidationFailed, options: Namespace, out: TextIO, err: TextIO
) -> int:
    faults = error.errors if isinstance(error, ValidationFailed) else [error]
    if options.json:
        told = [
            {"pointer": one.pointer, "code": one.field_code, "detail": one.reason}
            for one in faults
        ]
        out.write(json.dumps({"errors": told}) + "\n")
    for one in faults:
        err.write(printable(f"{one.pointer}: {one.field_code}: {one.reason}") + "\n")
    return USAGE


def _all_cases(path: Path, out: TextIO, err: TextIO) -> int:
    """{id: [instants]} or {id: {"error": code}}, one bad case never stopping the others."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        cases = json.loads(text)
        listed = [*cases.get("cases", ()), *cases.get("invalid", ())]
        answers = {_name(case, number): _case(case) for number, case in enumerate(listed)}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        err.write(f"--cases: cannot read {path}: {error}\n")
        return USAGE
    out.write(json.dumps(answers, indent=1) + "\n")
    return DONE


def _name(case: Any, number: int) -> str:
    return str(case.get("id", case.get("cron", number))) if isinstance(case, dict) else str(number)


def _case(case: Any) -> list[str] | dict[str, str]:
    policy = case.get("policy", {}) if isinstance(case, dict) else None
    if not isinstance(policy, dict):
        return {"error": "wrong_type"}
    fields = {**policy, "timezone": case.get("tz")}
    fields |= {name: case.get(name) for name in ("cron", "every", "anchor")}
    try:
        schedule = parse_recurrence(fields)
        after = _instant(case.get("start_utc", "2026-01-01T00:00:00Z"), "/start_utc")
        until = _instant(case["end_utc"], "/end_utc") if "end_utc" in case else LAST
        most = None if "end_utc" in case else MOST_RUNS
        count = integer(0, 10**9)(case["count"], "/count") if "count" in case else most
        return list(expected_instants(schedule, after=after, until=until, count=count))
    except ValidationFailed as error:
        return {"error": error.errors[0].field_code}
    except InvalidField as error:
        return {"error": error.field_code}


def _instant(text: object, pointer: str) -> datetime:
    """Of any year, unlike the times of jobs: a window may lie outside the years that count."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise InvalidField(pointer, "invalid_time", "is not a time") from None
    if found.tzinfo is None:
        raise InvalidField(pointer, "offset_missing", "needs an offset such as Z or +01:00")
    return found
