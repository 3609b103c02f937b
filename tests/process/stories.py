"""Jobs of process tests: made like any other, and read back as the story that their events tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from jobs.clock import database_now
from jobs.models import Job, JobEvent
from jobs.policies.deliveries import read_deliveries
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.services.verifying import verify_history
from jobs.states import FINISHED
from tests.factories import make_tenant
from tests.support.books import assert_balanced

__all__ = ["database_now"]

PROBE_PAYLOAD = {"gate", "leave", "seconds", "raises", "odd_progress", "way", "odd", "mebibytes"}


def submit(handler: str = "probe.deaf", *, tenant: str = "acme", **fields: Any) -> UUID:
    """Create a job; what a probe reads from its payload may be given beside the fields of the request."""
    (job_id,) = submit_many(1, handler, tenant=tenant, **fields)
    return job_id


def submit_many(
    count: int, handler: str = "probe.deaf", *, tenant: str = "acme", **fields: Any
) -> list[UUID]:
    """As `submit`, so many equal jobs in one transaction: they are there at one moment."""
    payload = {name: fields.pop(name) for name in PROBE_PAYLOAD & fields.keys()}
    request = parse_request({"handler": handler, "payload": payload, **fields})
    made = submit_jobs(
        tenant=make_tenant(tenant), requests=[request] * count, actor="token:test0001"
    )
    return [one.job_id for one in made]


class Event(NamedTuple):
    """One row of the history. `detail` is empty where none was written."""

    kind: str
    at: datetime
    actor: str
    lease: UUID | None
    token: int | None
    attempt: int
    to_status: str
    detail: dict[str, Any]


def events(job_id: UUID, kind: str = "") -> list[Event]:
    """The job's events in order, of one kind if asked."""
    told = JobEvent.objects.filter(job_id=job_id).order_by("seq")
    return [
        Event(*row)._replace(detail=row[-1] or {})
        for row in told.values_list(*Event._fields)
        if kind in ("", row[0])
    ]


def histories(job_ids: Collection[UUID]) -> dict[UUID, list[Event]]:
    """The events of many jobs, in order."""
    told: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
    found = JobEvent.objects.filter(job_id__in=told).order_by("job_id", "seq")
    for job_id, *row in found.values_list("job_id", *Event._fields).iterator():
        told[job_id].append(Event(*row)._replace(detail=row[-1] or {}))
    return told


def recoveries(told: Iterable[Event]) -> list[float]:
    """For each attempt lost with its worker: seconds from its last heartbeat until it went back to the calendar."""
    return [
        seconds_between(lost.detail["heartbeat_at"], lost.at)
        for lost in told
        if lost.detail.get("cause") == "lease_expired"
    ]


def story(job_id: UUID) -> list[str]:
    """What happened to the job, in the words of its events: ["created", "leased", "started", "succeeded"]."""
    return [event.kind for event in events(job_id)]


def happened(job_id: UUID, kind: str, *, times: int = 1) -> bool:
    """True once there are so many events of this kind."""
    return JobEvent.objects.filter(job_id=job_id, kind=kind).count() >= times


def finished(*job_ids: UUID) -> bool:
    """True once all of them are finished."""
    return not Job.objects.filter(pk__in=job_ids).exclude(status__in=FINISHED).exists()


def result_of(job_id: UUID) -> dict[str, Any]:
    """What the attempt that succeeded returned."""
    result: dict[str, Any] | None = Job.objects.get(pk=job_id, status="succeeded").result
    assert result is not None
    return result


def seconds_between(earlier: datetime | str, later: datetime | str) -> float:
    """Between two database times; a text is one that a detail holds."""
    first, last = (
        datetime.fromisoformat(one) if isinstance(one, str) else one for one in (earlier, later)
    )
    return (last - first).total_seconds()


def assert_at_rest(*, receiver_log: Path | None = None, **how: Any) -> None:
    """Every job is finished or waits for later, and every history is whole: by both checkers, which share no code.

    With the log of a receiver that all jobs call, its promise was kept too; `how` goes to `verify_history`.
    """
    assert_balanced()
    if receiver_log is not None:
        how["deliveries"] = read_deliveries(receiver_log.read_text().splitlines())
    verdict = verify_history(at_rest=True, **how)
    told = "\n".join(map(str, [*verdict.violations[:20], *verdict.first_story]))
    assert verdict.clean, f"{dict(verdict.by_invariant)}\n{told}"
    assert verdict.jobs > 0
