"""Rows of django-celery-beat → entries. Pure; knows what celery's beat makes of them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from jobs.errors import InvalidField
from jobs.policies.cron import MONTHS, WEEKDAYS, parse_cron
from jobs.policies.times import format_time
from jobs.policies.zones import parse_zone
from workers.importing.celery_tables import Row
from workers.importing.cron_meaning import day_findings, touched_by_shift
from workers.importing.entries import Context, Entry, Finding, Kind, Notice, Reading, Zone

FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
MOST_GRACE = 366 * 86_400
# Elapsed time, as celery counts: a day of it is 24 hours, whatever the clock does.
PERIODS = {"seconds": (1, "s"), "minutes": (1, "m"), "hours": (1, "h"), "days": (24, "h")}
RETRIES = Finding(
    "retries",
    "celery retries only what a task asks for; the handler's retry policy holds here",
)
BOUNDS = ((0, 59, ()), (0, 23, ()), (1, 31, ()), (1, 12, MONTHS), (0, 6, WEEKDAYS))
_LONG_NAME = re.compile(r"[A-Za-z]{4,}")
_RANGE = re.compile(r"([0-9]{1,2}|[A-Za-z]{3})-([0-9]{1,2}|[A-Za-z]{3})(?:/([0-9]{1,3}))?")
OWN_TASK = "celery.backend_cleanup"


class _Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(code, text)


def read_rows(rows: list[Row], *, context: Context) -> Reading:
    """An entry for every periodic task, switched off or not."""
    reading = Reading([_entry(row, context) for row in rows])
    if any(row.get("task") == OWN_TASK for row in rows):
        text = (
            f"{OWN_TASK} is celery's own; nothing of it is needed here: ignore it in the mapping"
        )
        reading.notices.append(Notice("periodictask", "own_task", text))
    return reading


def _entry(row: Row, context: Context) -> Entry:
    task = str(row.get("task", ""))
    facts: dict[str, Any] = {
        "task": task,
        "name": str(row.get("name", "")),
        "queue": row.get("queue") or "",
    }
    crontab = row.get("crontab")
    common: dict[str, Any] = {
        "source": "celery_beat",
        "place": f"periodictask:{row['id']}",
        "subject": task,
        "facts": facts,
        "key": str(row.get("name", "")),
        "rule": _rule(row),
    }
    zone = context.zone
    try:
        for name, kind in (("args", list), ("kwargs", dict)):
            facts[name] = _json(row, name, kind)
        if crontab:
            zone = _zone(crontab)
            recurrence, findings = _crontab(crontab, zone, context)
        elif row.get("interval"):
            zone = Zone("UTC", "elapsed time")
            recurrence, findings = _interval(row, context)
        else:
            raise _no_recurrence(row)
        fields, more = _fields(row)
    except _Refused as refused:
        return Entry(**common, zone=zone, refusal=refused.finding)
    if fields["misfire"] != "latest":  # expire_seconds tells what becomes of missed runs
        findings = [one for one in findings if one.code != "missed_runs"]
    return Entry(
        **common,
        zone=zone,
        recurrence=recurrence,
        fields=fields,
        findings=(*findings, *more, RETRIES),
        paused="" if row.get("enabled") else "switched off in django-celery-beat",
    )


def _rule(row: Row) -> str:
    if crontab := row.get("crontab"):
        return " ".join(str(crontab[name]).replace(" ", "") for name in FIELDS)
    if interval := row.get("interval"):
        return f"every {interval['every']} {interval['period']}"
    if solar := row.get("solar"):
        return f"solar {solar['event']}"
    if clocked := row.get("clocked"):
        moment = _time(clocked, "clocked_time")
        return f"once at {format_time(moment)}" if moment else "once"
    return ""


def _json(row: Row, name: str, kind: type) -> Any:
    try:
        value = json.loads(row.get(name) or ("[]" if kind is list else "{}"))
    except (ValueError, TypeError, RecursionError):
        raise _Refused("malformed_json", f"{name} is not JSON") from None
    if not isinstance(value, kind):
        raise _Refused("wrong_type", f"{name} must be {'a list' if kind is list else 'an object'}")
    return value


def _zone(crontab: Row) -> Zone:
    try:
        return Zone(parse_zone(str(crontab.get("timezone") or "UTC")), "its crontab's timezone")
    except InvalidField as fault:
        raise _Refused(fault.field_code, f"timezone {fault.reason}") from None


def _crontab(crontab: Row, zone: Zone, context: Context) -> tuple[dict[str, str], list[Finding]]:
    written = " ".join(str(crontab[name]).replace(" ", "") for name in FIELDS)
    text = unwrapped(written)
    try:
        parse_cron(text)
    except InvalidField as fault:
        raise _Refused(fault.field_code, fault.reason) from None
    text, findings = day_findings(text, who="celery", stars_decide=False)
    if touched_by_shift(text, zone.key, context.now):
        findings.append(
            Finding(
                "dst",
                "celery works from the last run and promises nothing for times that a clock skips or shows twice;"
                " here on_gap and on_overlap decide",
            )
        )
    findings.append(
        Finding(
            "missed_runs",
            "beat sends a task once when it comes back after its time, unless beat_cron_starting_deadline forbids:"
            " kept with misfire=latest",
            Kind.KEPT,
        )
    )
    if text != written:
        told = f"celery's notation, written here as {text}"
        findings.append(Finding("notation", told, Kind.NOTE))
    return {"cron": text}, findings


def unwrapped(text: str) -> str:
    """Five fields without what only celery knows: long names, and ranges that go on past the top of their field.

    >>> unwrapped("0 22-5/2 * * friday-monday")
    '0 22,0,2,4 * * 5,6,0,1'
    >>> unwrapped("0 9 * jan-mar 1-5")
    '0 9 * jan-mar 1-5'
    """
    fields = text.split()
    if len(fields) != len(FIELDS):
        return text
    done = []
    for field, (low, high, names) in zip(fields, BOUNDS, strict=True):
        short = _LONG_NAME.sub(lambda found: found[0][:3], field)
        done.append(",".join(_item(item, low, high, names) for item in short.split(",")))
    return " ".join(done)


def _item(item: str, low: int, high: int, names: tuple[str, ...]) -> str:
    """A range that ends before it begins as its values; anything else as it is."""
    found = _RANGE.fullmatch(item)
    if found is None:
        return item
    ends = []
    for name in found.group(1, 2):
        if name.upper() in names:
            ends.append(low + names.index(name.upper()))
        elif name.isdigit() and low <= int(name) <= high:
            ends.append(int(name))
        else:
            return item
    first, last = ends
    step = int(found[3] or 1)
    if first <= last or step < 1:
        return item
    return ",".join(map(str, [*range(first, high + 1), *range(low, last + 1)][::step]))


def _interval(row: Row, context: Context) -> tuple[dict[str, str], list[Finding]]:
    interval = row["interval"]
    period, every = str(interval["period"]), interval["every"]
    if period not in PERIODS:
        raise _Refused("sub_second", f"{period}: nothing here runs more often than every second")
    if not isinstance(every, int) or every < 1:
        raise _Refused("out_of_range", "every must be at least 1")
    factor, unit = PERIODS[period]
    last = _time(row, "last_run_at") or _time(row, "start_time") or context.now
    anchor = format_time(last.replace(microsecond=0))
    return {"every": f"{every * factor}{unit}", "anchor": anchor}, [
        Finding(
            "anchor",
            f"beat counts from the last run and drifts; here the beats are fixed, counted from {anchor}",
        ),
        Finding(
            "missed_runs",
            "beat sends a task once when it comes back after its time: kept with misfire=latest",
            Kind.KEPT,
        ),
    ]


def _no_recurrence(row: Row) -> _Refused:
    if row.get("solar"):
        return _Refused("solar", "times of the sun are not supported; a cron rule is the nearest")
    if row.get("clocked"):
        return _Refused("one_off", "runs once: create a job with due_at, it needs no schedule")
    return _Refused("required", "has neither crontab nor interval")


def _fields(row: Row) -> tuple[dict[str, Any], list[Finding]]:
    fields: dict[str, Any] = {"misfire": "latest"}
    findings = []
    for ours, theirs in (("starts_at", "start_time"), ("ends_at", "expires")):
        if moment := _time(row, theirs):
            fields[ours] = format_time(moment)
    if row.get("one_off"):
        fields["max_runs"] = 1
    if seconds := row.get("expire_seconds"):
        if not isinstance(seconds, int):
            raise _Refused("wrong_type", "expire_seconds must be a whole number")
        fields |= {"misfire": "skip", "grace_seconds": min(max(seconds, 1), MOST_GRACE)}
        findings.append(
            Finding(
                "expires",
                f"expire_seconds becomes misfire=skip, grace_seconds={fields['grace_seconds']}: a run missed while nothing"
                " ran is not sent later",
            )
        )
    dropped = [
        name
        for name in ("queue", "exchange", "routing_key", "priority")
        if row.get(name) is not None and row.get(name) != ""
    ]
    if dropped:
        findings.append(
            Finding(
                "routing",
                f"{', '.join(dropped)} ignored: lane, labels and priority in the mapping take their place",
            )
        )
    return fields, findings


def _time(row: Row, name: str) -> datetime | None:
    """A moment; sqlite has them as texts in UTC."""
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise _Refused("invalid_time", f"{name} is not a time") from None
    if not isinstance(found, datetime):
        raise _Refused("invalid_time", f"{name} is not a time")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
