"""What a caller may ask for: field by field, with one error per fault, before anything is stored.

Python callers and the REST API give the same fields, so both meet the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.conf import conf
from jobs.errors import InvalidField, ValidationFailed
from jobs.policies.payloads import check_payload, check_scalar
from jobs.policies.pointers import child_pointer
from jobs.policies.retry import RetryPolicy
from jobs.policies.routing import label_faults
from jobs.policies.times import parse_time
from jobs.queries.schedules import SCHEDULE_KEY

MAX_DELAY_SECONDS = 366 * 86_400.0
MAX_TIMEOUT_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A well-formed request. Names (handler, lane, labels) are not looked up yet; `sent` are the fields as given."""

    handler: str
    payload: Any = None
    payload_ref: str | None = None
    due_at: datetime | None = None
    delay_seconds: float = 0.0
    lane: str | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    request_key: str | None = None
    reference: str = ""
    tags: tuple[str, ...] = ()
    max_attempts: int | None = None
    retry: dict[str, Any] | None = None
    timeout_seconds: float | None = None
    concurrency_key: str | None = None
    schedule_id: UUID | None = None  # of a schedule's own job; nobody can ask for it
    fire_at: datetime | None = None
    misfire_at: datetime | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)


def parse_request(fields: Mapping[str, Any], pointer: str = "") -> JobRequest:
    """Check every field of a create request.

    Args:
        fields: As decoded from JSON; `due_at` may also be an aware datetime.
        pointer: Where the request stands in the body ("/jobs/3" in a batch).

    Returns:
        The request.

    Raises:
        ValidationFailed: Lists every faulty field by JSON pointer; unknown fields are faults too.
        PayloadTooLarge: The payload alone is over the limit.
    """
    values, faults = read_fields(fields, _FIELDS, what="a job request", pointer=pointer)
    if "handler" not in fields:
        faults.append(InvalidField(f"{pointer}/handler", "required", "is required"))
    for one, other in (("payload", "payload_ref"), ("due_at", "delay_seconds")):
        if one in fields and other in fields:
            faults.append(InvalidField(f"{pointer}/{other}", "conflict", f"excludes {one}"))
    if faults:
        raise ValidationFailed(faults)
    return JobRequest(**values, sent=dict(fields))


def read_fields(
    fields: Mapping[str, Any],
    parsers: Mapping[str, Callable[[Any, str], Any]],
    *,
    what: str,
    pointer: str = "",
) -> tuple[dict[str, Any], list[InvalidField]]:
    """Every field by its own parser.

    Args:
        fields: As decoded from JSON.
        parsers: Name → parser of (value, pointer). Any other name is a fault.
        what: Whose fields they are ("a job request"), for the words of a fault.
        pointer: Where they stand in the body.

    Returns:
        The values of the good ones, and the faults of the others.

    Raises:
        ValidationFailed: It is no object at all.
    """
    if not isinstance(fields, Mapping):
        raise ValidationFailed([InvalidField(pointer, "wrong_type", "must be an object")])
    values: dict[str, Any] = {}
    faults: list[InvalidField] = []
    for name, value in fields.items():
        place = child_pointer(pointer, str(name))
        if (parse := parsers.get(name)) is None:
            faults.append(InvalidField(place, "unknown", f"is not a field of {what}"))
            continue
        try:
            values[name] = parse(value, place)
        except InvalidField as fault:
            faults.append(fault)
        except ValidationFailed as several:
            faults.extend(several.errors)
    return values, faults


def text(limit: int, *, empty: bool = False) -> Callable[[Any, str], str]:
    """Parser of a text of at most so many characters."""

    def parse(value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise InvalidField(place, "wrong_type", "must be a text")
        check_scalar(value, place)
        if len(value) > limit or not (value or empty):
            least = 0 if empty else 1
            raise InvalidField(place, "length", f"must have {least} to {limit} characters")
        return value

    return parse


def parse_request_key(value: Any, place: str) -> str:
    """1 to 255 printable characters.

    Raises:
        InvalidField: Anything else.
    """
    key = text(255)(value, place)
    if not key.isprintable():
        raise InvalidField(place, "not_printable", "must have printable characters only")
    return key


def number(least: float, most: float) -> Callable[[Any, str], float]:
    """Parser of a number within bounds, both included."""

    def parse(value: Any, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(place, "wrong_type", "must be a number")
        if not least <= value <= most:  # NaN is not in any range
            raise InvalidField(
                place, "out_of_range", f"must be from {_plain(least)} to {_plain(most)}"
            )
        return float(value)

    return parse


def _plain(number: float) -> str:
    return f"{number:.15g}"  # plain `g` writes a year of seconds as 3.16224e+07


def integer(least: int, most: int) -> Callable[[Any, str], int]:
    """Parser of a whole number within bounds, both included."""
    any_number = number(least, most)

    def parse(value: Any, place: str) -> int:
        if any_number(value, place) != int(value):
            raise InvalidField(place, "wrong_type", "must be a whole number")
        return int(value)

    return parse


def time(value: Any, place: str) -> datetime:
    """A moment, as text or aware datetime.

    Raises:
        InvalidField: Anything else.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidField(place, "naive_time", "must have a zone")
        value = value.isoformat()
    return parse_time(value, place)


def _payload(value: Any, place: str) -> Any:
    check_payload(value, max_bytes=conf().payload_max_bytes, pointer=place)
    return value


def _labels(value: Any, place: str) -> dict[str, str]:
    if faults := label_faults(value, place):
        raise ValidationFailed(faults)
    return dict(value)


def _tags(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidField(place, "wrong_type", "must be a list of texts")
    if len(value) > 32:
        raise InvalidField(place, "too_many", "must have at most 32 tags")
    return tuple(text(64)(tag, f"{place}/{index}") for index, tag in enumerate(value))


def _concurrency_key(value: Any, place: str) -> str:
    key = text(255)(value, place)
    if key.startswith(SCHEDULE_KEY):
        raise InvalidField(place, "reserved", f"must not begin with {SCHEDULE_KEY}")
    return key


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "handler": text(200),
    "payload": _payload,
    "payload_ref": text(2000),
    "due_at": time,
    "delay_seconds": number(0, MAX_DELAY_SECONDS),
    "lane": text(63),
    "priority": integer(-100, 100),
    "labels": _labels,
    "request_key": parse_request_key,
    "reference": text(128, empty=True),
    "tags": _tags,
    "max_attempts": integer(1, 1000),
    "retry": lambda value, place: RetryPolicy.parse(value, place).to_dict(),
    "timeout_seconds": number(0.001, MAX_TIMEOUT_SECONDS),
    "concurrency_key": _concurrency_key,
}
