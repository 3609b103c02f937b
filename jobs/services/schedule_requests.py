"""What a caller may ask of a schedule: field by field, one error per fault, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.errors import InvalidField, ScheduleInvalid, ValidationFailed
from jobs.policies.pointers import child_pointer
from jobs.services.preview import parse_recurrence
from jobs.services.requests import integer, number, parse_request, text, time
from jobs.states import Misfire

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
    if not isinstance(fields, Mapping):
        raise ScheduleInvalid([InvalidField(pointer, "wrong_type", "must be an object")])
    faults: list[InvalidField] = []
    values: dict[str, Any] = {}
    for name, value in fields.items():
        place = child_pointer(pointer, str(name))
        if name in RECURRENCE:
            continue
        if (parse := _FIELDS.get(name)) is None:
            faults.append(InvalidField(place, "unknown", "is not a field of a schedule"))
            continue
        try:
            values[name] = parse(value, place)
        except InvalidField as fault:
            faults.append(fault)
        except ValidationFailed as several:
            faults.extend(several.errors)
    faults += [
        InvalidField(f"{pointer}/{name}", "required", "is required")
        for name in ("name", "job")
        if name not in fields
    ]
    given = {name: fields[name] for name in RECURRENCE if fields.get(name) is not None}
    try:
        parse_recurrence({**defaults, **given})
    except ValidationFailed as several:
        faults.extend(several.errors)
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


def _misfire(value: Any, place: str) -> str:
    if not isinstance(value, str) or value not in set(Misfire):
        raise InvalidField(place, "bad_policy", f"must be one of {', '.join(Misfire)}")
    return value


def _moment(value: Any, place: str) -> datetime | None:
    return None if value is None else time(value, place)


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "name": text(200),
    "job": _template,
    "misfire": _misfire,
    "grace_seconds": number(1, MAX_SECONDS),
    "catch_up_most": integer(1, MAX_CATCH_UP),
    "catch_up_seconds": number(1, MAX_SECONDS),
    "jitter_seconds": integer(0, 86_400),
    "starts_at": _moment,
    "ends_at": _moment,
    "max_runs": integer(1, 1_000_000_000),
}
