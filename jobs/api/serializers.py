"""How a job and its history look from outside. Fields are listed here, one by one; nothing is copied wholesale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from jobs.models import JobEvent
from jobs.policies.masking import MASK, mask_texts, mask_values
from jobs.policies.times import format_time
from jobs.policies.why import Reason
from jobs.queries.history import JobDetail


def job_url(job_id: UUID) -> str:
    """Address of a job on this server."""
    return reverse("api:job", args=[str(job_id)])


def idempotency_token(job: JobDetail) -> str:
    """What the handler of this job presents outside; the same for all attempts and requeues."""
    return f"{job.tenant}/{job.request_key or job.id}"


def job_out(job: JobDetail, *, reveal: bool) -> dict[str, Any]:
    """A job as the API shows it.

    Args:
        job: The job.
        reveal: Show payload and result as stored. Otherwise secrets in them are masked, and a payload's address is
            hidden altogether: whoever has a signed address has the payload. Error texts are masked always.
    """
    show = _as_stored if reveal else mask_values
    payload: dict[str, Any] = {"payload": show(job.payload)}
    if job.payload_ref is not None:
        payload = {"payload_ref": job.payload_ref if reveal else MASK}
    return {
        "id": str(job.id),
        "tenant": job.tenant,
        "handler": job.handler,
        "status": job.status,
        "phase": job.phase.value,
        "due_at": time_out(job.due_at),
        "lane": job.lane,
        "priority": job.priority,
        "labels": job.labels,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "request_key": job.request_key,
        "idempotency_token": idempotency_token(job),
        "reference": job.reference,
        "tags": job.tags,
        "schedule": job.schedule_id and str(job.schedule_id),
        "fire_at": time_out(job.fire_at),
        **payload,
        "result": show(job.result),
        "last_error": mask_texts(job.last_error),
        "cancel": _cancel_out(job),
        "lease": _lease_out(job),
        "created_at": time_out(job.created_at),
        "started_at": time_out(job.started_at),
        "finished_at": time_out(job.finished_at),
        "start_lag_seconds": job.start_lag_seconds,
        "links": {"self": job_url(job.id)},
    }


def event_out(event: JobEvent) -> dict[str, Any]:
    """One line of a job's history. `token` is the fencing token of the claim it happened under."""
    return {
        "seq": event.seq,
        "at": time_out(event.at),
        "kind": event.kind,
        "from_status": event.from_status,
        "to_status": event.to_status,
        "attempt": event.attempt,
        "actor": event.actor,
        "token": event.token,
        "detail": mask_texts(event.detail),
    }


def why_out(reasons: Sequence[Reason]) -> dict[str, Any]:
    """Why a job is where it is. What a reason knows of people, hosts and processes stays inside."""
    told = [
        {
            "code": reason.code,
            "class": reason.klass.value,
            "sentence": reason.sentence,
            "evidence": mask_texts(reason.evidence),
        }
        for reason in reasons
    ]
    return {"sentence": reasons[0].sentence, "reasons": told}


def _cancel_out(job: JobDetail) -> dict[str, Any] | None:
    if job.cancel_requested_at is None and job.cancel_outcome is None:
        return None
    return {
        "requested_at": time_out(job.cancel_requested_at),
        "by": job.cancel_requested_by or None,
        "reason": job.cancel_reason or None,
        "outcome": job.cancel_outcome,
    }


def _lease_out(job: JobDetail) -> dict[str, Any] | None:
    if job.lease is None:
        return None
    return {
        "pool": job.lease.pool,
        "worker": str(job.lease.worker) if job.lease.worker else None,
        "started_at": time_out(job.lease.started_at),
        "expires_at": time_out(job.lease.expires_at),
    }


def time_out(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    return None if moment is None else format_time(moment)


def _as_stored(value: object) -> object:
    return value
