"""What the job page shows, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.console.markup import Moment, moment
from jobs.console.presenter import (
    error_parts,
    joined,
    lateness,
    masked,
    named,
    pairs,
    phase_chip,
    pretty,
    retry_words,
    worker_name,
)
from jobs.console.timeline import Entry, lost_or_failed
from jobs.console.words import actor_name, between, duration, line, text
from jobs.models import DeadLetter, Handler, JobEvent
from jobs.models.dead_letters import Resolution
from jobs.queries.history import JobDetail, Phase

TEXTS = (
    "handler",
    "reference",
    "request_key",
    "concurrency_key",
    "payload_ref",
    "cancel_reason",
)
ACTORS = ("created_by", "cancel_requested_by")
TIMES = ("due_at", "waits_until", "finished_at", "created_at", "cancel_requested_at")


def job_context(
    job: JobDetail, events: Sequence[JobEvent], entries: Sequence[Entry]
) -> dict[str, Any]:
    """Values for the template of the page; every text is plain and is escaped there."""
    now = job.read_at
    unsure = lost_or_failed(events)
    return {
        "now": Moment(now),
        "job": job,
        "texts": {name: text(getattr(job, name), 2_000) for name in TEXTS},
        "actors": {name: actor_name(getattr(job, name)) for name in ACTORS},
        "times": {name: moment(getattr(job, name), now) for name in TIMES},
        "phase": phase_chip(job.phase),
        "lateness": lateness(job),
        "tenant": named(job.tenant, job.tenant_id),
        "lane": named(job.lane, "?"),
        "token": text(f"{job.tenant or f'#{job.tenant_id}'}/{job.request_key or job.id}", 400),
        "pool": named(job.lease.pool, "?") if job.lease else "",
        "payload": pretty(job.payload),
        "result": pretty(job.result),
        "error": error_parts(job.last_error),
        "retry": retry_words(job.retry, job.attempt_limit),
        "timeout": duration(job.timeout_seconds),
        "labels": pairs(job.labels),
        "tags": line(joined(job.tags), 1_000),
        "known_handler": Handler.objects.filter(pk=job.handler).exists(),
        "entries": entries,
        "unsure": {"attempt": unsure.attempt, "at": Moment(unsure.at, now)} if unsure else None,
        "letter": _letter(job.dead_letter, now=now) if job.dead_letter else None,
        "consequence": _consequence(job),
        "cancellable": job.finished_at is None and job.phase is not Phase.CANCELLING,
    }


def _letter(letter: DeadLetter, *, now: Any) -> dict[str, Any]:
    return {
        "id": letter.pk,
        "open": letter.resolution == Resolution.OPEN,
        "died_at": Moment(letter.died_at, now),
        "attempts": letter.attempts,
        "reason": line(letter.reason, 30).replace("_", " "),
        "error_type": line(letter.error_type, 200),
        "message": text(masked(letter.message), 20_000),
        "resolution": line(letter.resolution, 20),
        "resolved_by": actor_name(letter.resolved_by),
        "resolved_at": moment(letter.resolved_at, now),
        "note": text(letter.note, 1_000),
    }


def _consequence(job: JobDetail) -> str:
    """What a cancel would mean for this job now."""
    before = (
        f" Its {job.attempt} earlier attempt{'s' * (job.attempt != 1)} may have had effects outside."
        if job.attempt
        else ""
    )
    lease = job.lease
    match job.phase:
        case Phase.UPCOMING | Phase.DUE | Phase.RETRY_WAIT:
            return f"No worker has this job. Once cancelled it will never run.{before}"
        case Phase.PUBLISHED if lease:
            pool = line(lease.pool or "?", 63)
            return (
                f"It is published to pool {pool} and no worker has taken it. If that is still so when the cancel "
                "commits, it will never run; if a worker is faster, it is asked to stop."
            )
        case Phase.RUNNING if lease and lease.started_at:
            worker = worker_name(lease.worker, lease.worker_host, lease.worker_pid)
            since = between(lease.started_at, job.read_at)
            return (
                f"Worker {worker} has had it for {since}; it may already have done its work outside. It is asked to "
                "stop: the job ends cancelled if it does, and succeeded if it finishes first."
            )
    return ""
