"""What a caller may ask of a schedule: field by field, one error per fault, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jobs.errors import InvalidField, ScheduleInvalid, ValidationFailed
from jobs.models import ScheduleVersion
from jobs.policies.intervals import Every
from jobs.policies.recurrence import Rule
from jobs.services.preview import parse_recurrence
from jobs.services.requests import integer, number, parse_request, read_fields, text, time
from jobs.states import Misfire, OnHoliday, OnRunning

MAX_CATCH_UP = 1_000
MAX_SECONDS = 366 * 86_400.0
# Fields of a job request that a schedule decides by itself.
NOT_IN_TEMPLATE = ("due_at", "delay_seconds", "request_key")
RECURRENCE = ("cron", "every", "anchor", "timezone", "on_gap", "on_overlap")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """A well-formed request; `version` are the columns of its version."""

    name: str
    version: dict[str, Any] = field(default_factory=dict)


def parse_schedule(
    fields: Mapping[str, Any], *, defaults: Mapping[str, str], pointer: str = ""
) -> ScheduleRequest:
    """Check every field of a schedule.

    Args:
        fields: As decoded from JSON. `job` is the request for each of its jobs, without time and key.
        defaults: `timezone`, `on_gap`, `on_overlap` where the fields name none.
        pointer: Where they stand in the body.

    Raises:
        ScheduleInvalid: Lists every faulty field by JSON pointer; unknown fields are faults too.
    """
    given, rest = split_recurrence(fields)
    values, faults = read_fields(rest, _FIELDS, what="a schedule", pointer=pointer)
    faults += [
        InvalidField(f"{pointer}/{name}", "required", "is required")
        for name in ("name", "job")
        if name not in fields
    ]
    rule: Rule | Every | None = None
    try:
        rule = parse_recurrence({**defaults, **given}).rule
    except ValidationFailed as several:
        faults.extend(several.errors)
    faults += _conflicts(values, rule, pointer)
    starts, ends = values.get("starts_at"), values.get("ends_at")
    if starts and ends and ends <= starts:
        faults.append(
            InvalidField(f"{pointer}/ends_at", "out_of_range", "must be after starts_at")
        )
    if faults:
        raise ScheduleInvalid(faults)
    template = values.pop("job")
    name = values.pop("name")
    return ScheduleRequest(name=name, version={**given, **values, "template": template})


def _conflicts(
    values: Mapping[str, Any], rule: Rule | Every | None, pointer: str
) -> list[InvalidField]:
    """Fields that are good alone and not together."""
    found = []
    running = values.get("on_running", OnRunning.ALLOW)
    if running != OnRunning.ALLOW and "concurrency_key" in values.get("job", {}):
        reason = "needs the job's concurrency key for itself; use allow, or leave that out"
        found.append(InvalidField(f"{pointer}/on_running", "conflict", reason))
    return found + holiday_faults(values, rule, pointer)


def holiday_faults(
    values: Mapping[str, Any], rule: Rule | Every | None, pointer: str = ""
) -> list[InvalidField]:
    """What `on_holiday` cannot do without a calendar or with such a rule."""
    if values.get("on_holiday", OnHoliday.SKIP) == OnHoliday.SKIP:
        return []
    found = []
    if values.get("calendar") is None:
        found.append(InvalidField(f"{pointer}/on_holiday", "conflict", "needs a calendar"))
    if rule is not None and (isinstance(rule, Every) or rule.is_interval):
        reason = "must be skip for a rule that follows elapsed time"
        found.append(InvalidField(f"{pointer}/on_holiday", "conflict", reason))
    return found


def split_recurrence(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that make the rule, as far as they are given and not null, and all others.

    Raises:
        ScheduleInvalid: It is no object at all.
    """
    if not isinstance(fields, Mapping):
        raise ScheduleInvalid([InvalidField("", "wrong_type", "must be an object")])
    given = {name: fields[name] for name in RECURRENCE if fields.get(name) is not None}
    return given, {name: value for name, value in fields.items() if name not in RECURRENCE}


def fields_of(version: ScheduleVersion) -> dict[str, Any]:
    """What `parse_schedule` would be given for this version, but for the name; None where it says nothing."""
    columns = {name: getattr(version, name) for name in _FIELDS if name not in ("name", "job")}
    rule = {name: getattr(version, name) or None for name in RECURRENCE}
    calendar = version.calendar and version.calendar.name
    return {**rule, **columns, "calendar": calendar, "job": version.template}


def _template(value: Any, place: str) -> dict[str, Any]:
    request = parse_request(value, place)
    faults = [
        InvalidField(f"{place}/{name}", "unknown", "is decided by the schedule")
        for name in NOT_IN_TEMPLATE
        if name in request.sent
    ]
    if faults:
        raise ValidationFailed(faults)
    return dict(request.sent)


def _one_of(kind: type[StrEnum]) -> Callable[[Any, str], str]:
    def parse(value: Any, place: str) -> str:
        if not isinstance(value, str) or value not in set(kind):
            raise InvalidField(place, "bad_policy", f"must be one of {', '.join(kind)}")
        return value

    return parse


def _unless_null(parse: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, place: None if value is None else parse(value, place)


# Of a calendar, for a rule that is stored nowhere as well.
HOLIDAY_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "calendar": _unless_null(text(100)),
    "on_holiday": _one_of(OnHoliday),
}
_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "name": text(200),
    "job": _template,
    "misfire": _one_of(Misfire),
    "grace_seconds": number(1, MAX_SECONDS),
    "catch_up_most": integer(1, MAX_CATCH_UP),
    "catch_up_seconds": number(1, MAX_SECONDS),
    "jitter_seconds": integer(0, 86_400),
    "starts_at": _unless_null(time),
    "ends_at": _unless_null(time),
    "max_runs": _unless_null(integer(1, 1_000_000_000)),
    "on_running": _one_of(OnRunning),
    **HOLIDAY_FIELDS,
}
