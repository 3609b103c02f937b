"""How a job and its history look from outside. Fields are listed here, one by one; nothing is copied wholesale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from jobs.errors import ValidationFailed
from jobs.models import JobEvent, Occurrence, Schedule, ScheduleVersion
from jobs.policies.masking import MASK, mask_texts, mask_values
from jobs.policies.times import format_time
from jobs.policies.why import Reason
from jobs.policies.wording import rule_in_words
from jobs.queries.history import JobDetail
from jobs.services.preview import parse_recurrence, preview
from jobs.services.schedule_requests import RECURRENCE, fields_of


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
        "due_at": _time(job.due_at),
        "lane": job.lane,
        "priority": job.priority,
        "labels": job.labels,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "request_key": job.request_key,
        "idempotency_token": idempotency_token(job),
        "reference": job.reference,
        "tags": job.tags,
        **payload,
        "result": show(job.result),
        "last_error": mask_texts(job.last_error),
        "cancel": _cancel_out(job),
        "lease": _lease_out(job),
        "created_at": _time(job.created_at),
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
        "start_lag_seconds": job.start_lag_seconds,
        "links": {"self": job_url(job.id)},
    }


def event_out(event: JobEvent) -> dict[str, Any]:
    """One line of a job's history. `token` is the fencing token of the claim it happened under."""
    return {
        "seq": event.seq,
        "at": _time(event.at),
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
        "requested_at": _time(job.cancel_requested_at),
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
        "started_at": _time(job.lease.started_at),
        "expires_at": _time(job.lease.expires_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _as_stored(value: object) -> object:
    return value


def schedule_url(schedule_id: UUID) -> str:
    """Address of a schedule on this server."""
    return reverse("api:schedule", args=[str(schedule_id)])


def schedule_out(
    schedule: Schedule,
    version: ScheduleVersion,
    *,
    defaults: Mapping[str, str],
    now: datetime,
    runs: int,
    reveal: bool,
) -> dict[str, Any]:
    """A schedule as the API shows it.

    Args:
        schedule: What is true of all its versions.
        version: The one in force.
        defaults: `timezone`, `on_gap`, `on_overlap` where it says nothing; the answer has what is stored and what holds.
        now: From when on the next runs are told.
        runs: How many.
        reveal: Show the payload of its jobs as it is stored; otherwise secrets in it are masked.
    """
    stored = fields_of(version)
    holds = {**defaults, **{name: stored[name] for name in RECURRENCE if stored[name]}}
    job = dict(version.template)
    if not reveal and "payload" in job:
        job["payload"] = mask_values(job["payload"])
    if not reveal and "payload_ref" in job:
        job["payload_ref"] = MASK
    paused = schedule.paused_at is not None and (
        schedule.resume_at is None or schedule.resume_at > now
    )
    return {
        "id": str(schedule.pk),
        "name": schedule.name,
        "version": schedule.version,
        **stored,
        "starts_at": _time(version.starts_at),
        "ends_at": _time(version.ends_at),
        "effective": {name: holds[name] for name in ("timezone", "on_gap", "on_overlap")},
        "job": job,
        "paused": {
            "at": _time(schedule.paused_at),
            "by": schedule.paused_by,
            "reason": schedule.pause_reason,
            "resume_at": _time(schedule.resume_at),
        }
        if paused
        else None,
        "fault": schedule.fault,
        **_coming(holds, version, now, runs, paused=paused),
        "created_by": schedule.created_by,
        "created_at": _time(schedule.created_at),
    }


def _coming(
    holds: Mapping[str, Any], version: ScheduleVersion, now: datetime, runs: int, *, paused: bool
) -> dict[str, Any]:
    """Words and next runs; none for a stored rule that cannot be read any more."""
    try:
        recurrence = parse_recurrence({name: holds.get(name) or None for name in RECURRENCE})
    except ValidationFailed:
        return {"words": "", "next_runs": []}
    words = rule_in_words(recurrence.rule, version.cron)
    if paused:
        return {"words": words, "next_runs": []}
    after = max(now, version.starts_at) if version.starts_at else now
    found = preview(recurrence, text=version.cron, after=after, until=version.ends_at, count=runs)
    return {"words": words, "next_runs": found.runs}


def occurrence_out(row: Occurrence) -> dict[str, Any]:
    """One firing and what became of it."""
    return {
        "fire_at": _time(row.fire_at),
        "slot": row.slot,
        "pass": row.number,
        "resolution": row.resolution,
        "due_at": _time(row.due_at),
        "verdict": row.verdict,
        "reason": row.reason,
        "job": row.job_id and str(row.job_id),
        "version": row.version,
        "timezone": row.timezone,
        "on_gap": row.on_gap,
        "on_overlap": row.on_overlap,
        "zone_data": row.zone_data,
        "decided_at": _time(row.decided_at),
    }
