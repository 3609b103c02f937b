"""A job's history in sentences, newest first, with the waits between them.

An event of a kind or shape that this version does not know is shown with what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from jobs.console.markup import Moment
from jobs.console.presenter import error_line, worker_name
from jobs.console.words import actor_name, between, line, member, moment_in, text
from jobs.models import JobEvent, Lane, Worker
from jobs.policies.masking import mask_text
from jobs.queries.history import JobDetail, Phase
from jobs.states import EventKind, JobStatus

GAP = timedelta(seconds=1)  # shorter waits are not worth a line

TONES = {
    EventKind.SUCCEEDED: "good",
    EventKind.FAILED: "bad",
    EventKind.DEAD: "bad",
    EventKind.PUBLISH_EXPIRED: "warn",
    EventKind.COMPLETION_REJECTED: "warn",
    EventKind.CANCEL_REQUESTED: "warn",
    EventKind.STARTED: "live",
}


ACTORS = {"user": "person", "token": "API"}


@dataclass(slots=True)
class Entry:
    """One line of the timeline.

    Attributes:
        seq: Number of the event in its job; None for "now".
        at: When.
        sentence: What happened.
        facts: Further (label, text), each a line.
        tone: As in `presenter.Word`.
        by: What kind of actor it was: person, API, machine.
        gap: What was waited for before it, or "".
    """

    seq: int | None
    at: datetime
    sentence: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    tone: str = "quiet"
    by: str = ""
    gap: str = ""

    @property
    def when(self) -> Moment:
        """Printed to the millisecond: events of one batch are that close."""
        return Moment(self.at, millis=True)


def timeline(job: JobDetail, events: Sequence[JobEvent]) -> list[Entry]:
    """Entries of a job, newest first, beginning with what it does now if it is not finished.

    Args:
        job: The job.
        events: Oldest first, their detail being JSON of any shape.
    """
    names = _Names(events)
    entries = [_entry(event, names) for event in events]
    for (before, _), (event, entry) in pairwise(zip(events, entries, strict=True)):
        entry.gap = _gap(before, event)
    if (now := _now(job)) and events:
        now.gap = _open_gap(job, events[-1])
    if now:
        entries.append(now)
    return entries[::-1]


class _Names:
    """Names of the processes that a history mentions, read in one query."""

    def __init__(self, events: Sequence[JobEvent]) -> None:
        ids = {worker for event in events for worker in _workers_in(event)}
        found = Worker.objects.filter(pk__any=sorted(ids)).only("host", "pid") if ids else ()
        edited = any(event.kind == EventKind.EDITED for event in events)
        self._lanes = dict(Lane.objects.values_list("pk", "name")) if edited else {}
        self._workers = {
            worker.pk: worker_name(worker.pk, worker.host, worker.pid) for worker in found
        }

    def worker(self, worker_id: UUID) -> str:
        return self._workers.get(worker_id) or worker_name(worker_id, None, None)

    def lane(self, stored: Any) -> str:
        return (self._lanes.get(stored) if isinstance(stored, int) else None) or line(stored, 30)

    def actor(self, actor: str) -> str:
        kind, _, name = actor.partition(":")
        if (worker_id := _uuid(name)) is not None and kind in ("worker", "scheduler"):
            shown = (
                self.worker(worker_id) if kind == "worker" else worker_name(worker_id, None, None)
            )
            return f"{kind} {shown}"
        return actor_name(actor)


def _entry(event: JobEvent, names: _Names) -> Entry:
    who, detail = names.actor(event.actor), event.detail
    entry = Entry(
        seq=event.seq,
        at=event.at,
        sentence="",
        tone=TONES.get(event.kind, "quiet"),  # type: ignore[call-overload]
        by=ACTORS.get(event.actor.partition(":")[0], "machine"),
    )
    facts = entry.facts
    match event.kind:
        case EventKind.CREATED:
            entry.sentence = f"Created by {who}"
            if event.due_at:
                facts.append(("Due", _clock(event.due_at)))
        case EventKind.LEASED:
            pool = line(member(detail, "pool"), 63) or "an unknown pool"
            entry.sentence = f"Leased by {who} and published to pool {pool}"
            facts.append(("Attempt", f"{event.attempt}, fencing token {event.token}"))
        case EventKind.STARTED:
            entry.sentence = f"Started by {who}"
            facts.append(("Attempt", f"{event.attempt}, fencing token {event.token}"))
        case EventKind.SUCCEEDED:
            entry.sentence = f"Succeeded, reported by {who}"
            if member(detail, "cancel") == "too_late":
                facts.append(("Cancel", "it had been asked for, but came too late"))
        case EventKind.FAILED | EventKind.DEAD:
            _failure(entry, event, names)
        case EventKind.SNOOZED:
            entry.sentence = "Snoozed by its handler; the attempt is not counted"
            _reason(facts, detail)
            _next(facts, event, "Next attempt")
        case EventKind.RELEASED:
            entry.sentence = f"Given back unfinished by {who}; the attempt is not counted"
            _reason(facts, detail)
        case EventKind.PUBLISH_EXPIRED:
            entry.sentence = (
                "No worker took it in time: back to waiting; the attempt is not counted"
            )
        case EventKind.CANCEL_REQUESTED:
            entry.sentence = f"Cancel requested by {who}; the worker was told to stop"
            _reason(facts, detail)
        case EventKind.CANCELLED:
            _cancelled(entry, event, who)
        case EventKind.COMPLETION_REJECTED:
            reported = line(member(detail, "reported"), 30) or "an outcome"
            entry.sentence = f"Refused: “{reported}”, reported too late by {who}"
            current = line(member(detail, "current_token"), 30) or "unknown"
            facts.append(("Tokens", f"it presented {event.token}; the job is at {current}"))
        case EventKind.REQUEUED:
            entry.sentence = f"Requeued by {who} with a new budget of attempts"
            _reason(facts, detail, "note")
            _next(facts, event, "Due")
        case EventKind.DISCARDED:
            entry.sentence = f"Dead letter closed by {who}; the job stays dead"
            _reason(facts, detail, "note")
        case EventKind.EDITED:
            entry.sentence = f"Changed by {who}"
            if (was := moment_in(member(detail, "old_due_at"))) != event.due_at:
                facts.append(("Due", f"{_clock(was)} → {_clock(event.due_at)}"))
            if (was_in := member(detail, "old_lane")) != (lane := member(detail, "lane")):
                facts.append(("Lane", f"{names.lane(was_in)} → {names.lane(lane)}"))
            if (tags := member(detail, "tags")) is not None:
                facts.append(("Tags", line(tags, 300)))
        case _:
            entry.sentence = f"{line(event.kind, 30) or 'Unknown event'} by {who}"
            facts.append(("Stored", text(detail, 2_000)))
    return entry


def _failure(entry: Entry, event: JobEvent, names: _Names) -> None:
    detail = event.detail
    error = member(detail, "error")
    told = error_line(member(error, "type"), member(error, "message"))
    if not told and detail is not None:
        told = line(mask_text(text(detail, 1_000)), 300)
    match member(detail, "cause"):
        case "lease_expired":
            entry.sentence = f"Attempt {event.attempt} lost: its lease expired, worker lost"
            worker = _uuid(member(detail, "worker"))
            entry.facts.append(("Worker", names.worker(worker) if worker else "unknown"))
            for label, name in (
                ("Last heartbeat", "heartbeat_at"),
                ("Lease ran out", "expires_at"),
            ):
                if moment := moment_in(member(detail, name)):
                    entry.facts.append((label, f"{between(moment, event.at)} before this"))
        case "timeout":
            entry.sentence = f"Attempt {event.attempt} ran out of time: {told}"
        case _:
            entry.sentence = f"Attempt {event.attempt} failed: {told}"
    if where := line(member(error, "where"), 200):
        entry.facts.append(("Where", where))
    if event.kind == EventKind.FAILED:
        _next(entry.facts, event, "Retry")
        return
    reason = line(member(detail, "reason"), 60).replace("_", " ")
    entry.facts.append(("Dead", f"no further attempt: {reason or 'reason not stored'}"))


def _cancelled(entry: Entry, event: JobEvent, who: str) -> None:
    detail = event.detail
    match member(detail, "cancel"):
        case "honoured":
            entry.sentence = f"Cancelled: {who} stopped it"
        case "by_handler":
            entry.sentence = "Cancelled by its handler"
        case "lease_lost":
            entry.sentence = "Cancelled: its worker was lost after the cancel was asked"
        case _:
            was = line(member(detail, "was"), 30) or "not started"
            entry.sentence = f"Cancelled by {who} while it was {was}: no worker had it"
    _reason(entry.facts, detail)
    if told := error_line(member(detail, "error", "type"), member(detail, "error", "message")):
        entry.facts.append(("Error", told))


def _reason(facts: list[tuple[str, str]], detail: Any, name: str = "reason") -> None:
    if (reason := member(detail, name)) not in (None, ""):
        facts.append((name.title(), text(reason, 1_000)))


def _next(facts: list[tuple[str, str]], event: JobEvent, label: str) -> None:
    if event.due_at:
        facts.append((label, f"{_clock(event.due_at)}, {between(event.at, event.due_at)} later"))


def _clock(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else "unknown"


def _gap(before: JobEvent, event: JobEvent) -> str:
    """What the time between two neighbouring events was spent on, if it is worth a line."""
    if event.at - before.at < GAP:
        return ""
    if before.kind == EventKind.STARTED or event.kind in (EventKind.FAILED, EventKind.SUCCEEDED):
        return f"{between(before.at, event.at)} running"
    if event.kind == EventKind.STARTED:
        return f"{between(before.at, event.at)} waiting for a worker"
    if before.to_status == JobStatus.DEAD:
        return f"{between(before.at, event.at)} until somebody decided"
    if before.to_status == JobStatus.LEASED:
        return f"{between(before.at, event.at)} in the hands of a pool"
    due = event.due_at if event.kind == EventKind.LEASED else None
    if due is None or due <= before.at:
        return f"{between(before.at, event.at)} waiting"
    if event.at - due < GAP:
        return f"{between(before.at, event.at)} until it was due"
    return f"{between(before.at, due)} until it was due, then {between(due, event.at)} waiting for a free slot"


def _now(job: JobDetail) -> Entry | None:
    """What an unfinished job does at the moment."""
    now, lease = job.read_at, job.lease
    match job.phase:
        case Phase.UPCOMING | Phase.RETRY_WAIT if job.waits_until:
            until = between(now, job.waits_until)
            word = "Waits to try again" if job.phase is Phase.RETRY_WAIT else "Waits"
            return Entry(None, now, f"{word}: due in {until}")
        case Phase.DUE:
            return Entry(None, now, "Due: waits to be leased to a pool", tone="wait")
        case Phase.PUBLISHED if lease:
            pool = line(lease.pool, 63) or "a missing pool"
            return Entry(
                None, now, f"Published to pool {pool}: no worker has taken it yet", tone="wait"
            )
        case Phase.RUNNING | Phase.CANCELLING if lease:
            worker = worker_name(lease.worker, lease.worker_host, lease.worker_pid)
            entry = Entry(None, now, f"Running on {worker}", tone="live")
            if job.phase is Phase.CANCELLING:
                entry.sentence += ", asked to stop"
            if lease.expires_at > now:
                left = f"for another {between(now, lease.expires_at)} without a heartbeat"
            else:
                left = f"it ran out {between(lease.expires_at, now)} ago and is about to be taken back"
                entry.tone = "warn"
            entry.facts.append(("Lease", left))
            if lease.heartbeat_at:
                entry.facts.append(("Heartbeat", f"{between(lease.heartbeat_at, now)} ago"))
            if lease.progress is not None:
                entry.facts.append(("Progress", line(mask_text(text(lease.progress, 500)), 300)))
            return entry
    return None


def _open_gap(job: JobDetail, last: JobEvent) -> str:
    if job.read_at - last.at < GAP:
        return ""
    running = job.phase in (Phase.RUNNING, Phase.CANCELLING)
    return f"{between(last.at, job.read_at)} {'running' if running else 'waiting'} so far"


def _workers_in(event: JobEvent) -> list[UUID]:
    kind, _, name = event.actor.partition(":")
    named = (name if kind == "worker" else None, member(event.detail, "worker"))
    return [found for value in named if (found := _uuid(value)) is not None]


def _uuid(value: Mapping[str, Any] | object) -> UUID | None:
    if not isinstance(value, str):
        return None
    try:
        return UUID(value)
    except ValueError:
        return None


def lost_or_failed(events: Sequence[JobEvent]) -> JobEvent | None:
    """The newest event after which nobody can say what the handler did in the outside world."""
    uncertain = (EventKind.FAILED, EventKind.DEAD)
    return next((event for event in reversed(events) if event.kind in uncertain), None)
