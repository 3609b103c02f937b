"""What the log of a receiver says of the promises: each effect once, and never by a worker that was replaced.

A receiver is whatever handlers call in the outside world. Its log has one JSON object a line, in the order in which it
decided: {"token": idempotency token, "job": job id, "lease_token": fencing token, "applied": whether it took effect}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobs.errors import InvalidField
from jobs.policies.history import Event, Violation
from jobs.states import EventKind, JobStatus


class Receiver(StrEnum):
    """What the receiver promises."""

    APPLY_ONCE = "apply-once"  # collapses by the idempotency token
    FENCING = "fencing"  # refuses a fencing token smaller than one it has seen of the job


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call of the receiver."""

    token: str
    lease_token: int
    applied: bool


def read_deliveries(lines: Iterable[str]) -> dict[UUID, list[Delivery]]:
    """Deliveries by job, in order.

    Raises:
        InvalidField: A line that is no delivery; the pointer holds its number.

    >>> line = '{"token": "acme/a", "job": "00000000-0000-0000-0000-000000000001", "lease_token": 1, "applied": true}'
    >>> read_deliveries([line])
    {UUID('00000000-0000-0000-0000-000000000001'): [Delivery(token='acme/a', lease_token=1, applied=True)]}
    """
    found: dict[UUID, list[Delivery]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            job_id, delivery = _parsed(line, f"/{number}")
            found.setdefault(job_id, []).append(delivery)
    return found


def _parsed(line: str, pointer: str) -> tuple[UUID, Delivery]:
    try:
        said = json.loads(line)
        job_id, delivery = (
            UUID(said["job"]),
            Delivery(said["token"], said["lease_token"], said["applied"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        told = f"is no delivery: {fault!r}"[:200]
        raise InvalidField(pointer, "invalid_delivery", told) from None
    kinds: tuple[tuple[Any, type], ...] = (
        (delivery.token, str),
        (delivery.lease_token, int),
        (delivery.applied, bool),
    )
    for value, kind in kinds:
        if type(value) is not kind:  # a bool is an int
            told = f"has {value!r}"[:100] + f" where a {kind.__name__} belongs"
            raise InvalidField(pointer, "invalid_delivery", told)
    return job_id, delivery


def check_deliveries(
    deliveries: Sequence[Delivery], events: Sequence[Event], status: str, *, receiver: Receiver
) -> list[Violation]:
    """What the receiver's log of one job breaks; it says nothing of when, so `seq` is 0.

    Args:
        deliveries: Of the job, in the receiver's order.
        events: Of the job.
        status: Of the job now.
        receiver: What it promises.
    """
    check = _check_effects if receiver is Receiver.APPLY_ONCE else _check_fence
    rule = "I16" if receiver is Receiver.APPLY_ONCE else "I17"
    claimed = {event.token for event in events if event.kind == EventKind.LEASED}
    strange = [one.lease_token for one in deliveries if one.lease_token not in claimed]
    found = [Violation(rule, 0, f"delivered with token {token}, no claim's") for token in strange]
    return [*found, *check(deliveries, len(claimed), status)]


def _check_effects(
    deliveries: Sequence[Delivery], claims: int, status: str
) -> Iterator[Violation]:
    effects = sum(one.applied for one in deliveries)
    if status == JobStatus.SUCCEEDED and effects != 1:
        yield Violation("I16", 0, f"{effects} effects of a job that succeeded")
    elif effects > 1:
        yield Violation("I16", 0, f"{effects} effects of a job that is {status}")
    if len(deliveries) > claims:
        yield Violation("I16", 0, f"{len(deliveries)} deliveries by {claims} claims")
    if len({one.token for one in deliveries}) > 1:
        yield Violation("I16", 0, "two idempotency tokens of one job")


def _check_fence(deliveries: Sequence[Delivery], claims: int, status: str) -> Iterator[Violation]:
    largest = 0
    for one in deliveries:
        if one.applied and one.lease_token < largest:
            yield Violation("I17", 0, f"token {one.lease_token} was accepted after {largest}")
        if one.applied:
            largest = max(largest, one.lease_token)
