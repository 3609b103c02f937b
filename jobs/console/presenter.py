"""Rows in words: the one place where a page meets what was written past validation.

Nothing here raises on odd data: a missing neighbour, an unknown status or JSON of another shape is shown as such.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from jobs.console.markup import Chip, Moment
from jobs.console.words import Word, between, compact, duration, line, short_id, text
from jobs.errors import InvalidField
from jobs.policies.masking import mask_text, mask_texts, mask_values
from jobs.policies.retry import RetryPolicy, nominal_seconds
from jobs.queries.history import JobDetail, Phase, phase_of
from jobs.queries.lists import JobRow

SHOWN_DELAYS = 8  # of a retry policy
PHASES: dict[str, Word] = {
    Phase.UPCOMING: Word("Upcoming", "quiet"),
    Phase.DUE: Word("Due", "wait"),
    Phase.RETRY_WAIT: Word("Retry wait", "warn"),
    Phase.PUBLISHED: Word("Published", "wait"),
    Phase.RUNNING: Word("Running", "live"),
    Phase.CANCELLING: Word("Cancelling", "warn"),
    Phase.SUCCEEDED: Word("Succeeded", "good"),
    Phase.DEAD: Word("Dead", "bad"),
    Phase.CANCELLED: Word("Cancelled", "quiet"),
}


def pretty(value: object) -> str:
    """A JSON value of a job, indented, with what stands under secret keys masked."""
    return text(json.dumps(mask_values(value), indent=2, ensure_ascii=False, default=str))


def phase_chip(phase: str) -> Chip:
    """A phase, or a stored status that this version does not know."""
    return Chip(PHASES.get(phase) or Word(line(phase, 30) or "unknown", "warn"))


def named(name: str | None, number: object) -> str:
    """A neighbour's name, or which one is missing."""
    return line(name, 100) if name is not None else f"#{number} (missing)"


def worker_name(worker: UUID | None, host: str | None, pid: int | None) -> str:
    """Host and process of a worker; a process whose row is gone by the start of its id."""
    if worker is None:
        return ""
    return f"{line(host, 80)}:{pid}" if host else f"{str(worker)[:8]}…"


class JobLine(NamedTuple):
    """One line of the job list, ready to print."""

    id: UUID
    short_id: str
    due_at: Moment
    timing: Word
    handler: str
    tenant: str
    reference: str
    lane: str
    phase: Chip
    attempts: str
    error: str
    place: str
    stored: bool


def job_line(row: JobRow, now: datetime) -> JobLine:
    """A row of the list as it stood at `now`."""
    if not row.stored:
        gone = Chip(Word("No job row", "bad"))
        return JobLine(
            row.job_id, short_id(row.job_id), Moment(row.due_at, now), Word("", "quiet"), "", "", "", "", gone,
            "", "The entry is there, its job is not.", "", stored=False,
        )  # fmt: skip
    phase = _row_phase(row, now)
    tenant = named(row.tenant, row.tenant_id)
    error = error_line(row.error_type, row.error_message)
    worker = worker_name(row.worker, row.worker_host, row.worker_pid)
    pool = named(row.pool, "?") if row.leased else ""
    return JobLine(
        id=row.job_id,
        short_id=short_id(row.job_id),
        due_at=Moment(row.due_at, now),
        timing=_timing(row, phase, now),
        handler=line(row.handler, 200),
        tenant=tenant,
        reference=line(row.reference, 128),
        lane=named(row.lane, "?"),
        phase=phase_chip(phase),
        attempts=f"{row.attempt}/{row.attempt_limit}",
        error=error,
        place=" · ".join(part for part in (pool, worker) if part),
        stored=True,
    )


def error_line(kind: object, message: object) -> str:
    """ "Type: message" on one line, with named secrets masked; a type that is no text is shown as stored."""
    parts = (line(kind, 100), line(mask_text(text(message, 1_000))))
    return ": ".join(part for part in parts if part)


def _row_phase(row: JobRow, now: datetime) -> str:
    try:
        return phase_of(
            status=row.status or "",
            now=now,
            waits_until=row.waits_until,
            attempt=row.attempt,
            has_worker=row.worker is not None,
            cancel_requested=row.cancel_requested,
        )
    except ValueError:
        return row.status or ""


def _timing(row: JobRow, phase: str, now: datetime) -> Word:
    """Lateness as a person asks for it: how late is it, or how late was it started."""
    due = row.lease_due_at or row.waits_until or row.due_at
    match phase:
        case Phase.UPCOMING:
            return Word(f"in {between(now, due)}", "quiet")
        case Phase.RETRY_WAIT:
            return Word(f"retry in {between(now, due)}", "quiet")
        case Phase.DUE | Phase.PUBLISHED:
            late = (now - due).total_seconds()
            return Word(f"late by {duration(late)}", "warn" if late >= 1 else "quiet")
        case Phase.RUNNING | Phase.CANCELLING if row.started_at:
            late = (row.started_at - due).total_seconds()
            if late < 1:
                return Word("started on time", "quiet")
            return Word(f"started {duration(late)} late", "quiet")
        case Phase.SUCCEEDED | Phase.DEAD | Phase.CANCELLED if row.finished_at:
            if row.finished_at < row.due_at:
                return Word("ended before it was due", "quiet")
            return Word(f"ended {between(row.due_at, row.finished_at)} after due", "quiet")
    return Word("", "quiet")


def lateness(job: JobDetail) -> Word:
    """The header's sentence about time."""
    now = job.read_at
    match job.phase:
        case Phase.UPCOMING:
            return Word(f"due in {between(now, job.waits_until or job.due_at)}", "quiet")
        case Phase.RETRY_WAIT:
            return Word(f"next attempt in {between(now, job.waits_until or now)}", "warn")
        case Phase.DUE | Phase.PUBLISHED:
            due = job.waits_until or job.due_at
            if (now - due) >= timedelta(seconds=1):
                return Word(f"late by {between(due, now)}, and counting", "bad")
            return Word("due now", "quiet")
    lag = job.start_lag_seconds
    if lag is None:
        return Word("never started" if job.finished_at else "", "quiet")
    return Word("started on time" if lag < 1 else f"started {duration(lag)} late", "quiet")


class RetryWords(NamedTuple):
    """A retry policy in words, its first delays, and whether the stored one could be read."""

    rule: str
    delays: list[str]
    readable: bool


def retry_words(stored: object, attempts: int) -> RetryWords:
    """The policy that is in force for a job with `attempts` attempts in all."""
    policy = RetryPolicy.from_stored(stored)
    match policy.kind:
        case "fixed":
            rule = f"always {duration(policy.base_seconds)}"
        case "linear":
            rule = f"{duration(policy.base_seconds)} more after each attempt"
        case "exponential":
            rule = f"{duration(policy.base_seconds)}, times {policy.factor:g} after each attempt"
        case _:
            rule = "listed delays"
    rule += f", at most {duration(policy.max_seconds)}"
    if policy.jitter:
        rule += f", ± {policy.jitter:.0%}"
    shown = range(1, max(1, min(attempts, SHOWN_DELAYS + 1)))
    delays = [duration(nominal_seconds(policy, attempt)) for attempt in shown]
    try:
        RetryPolicy.parse(stored)
    except InvalidField:
        return RetryWords(rule, delays, readable=False)
    return RetryWords(rule, delays, readable=True)


def masked(stored: object) -> object:
    """A copy with named secrets hidden in texts and under keys."""
    return mask_texts(mask_values(stored))


def pairs(stored: object) -> list[str]:
    """Labels as "k=v"."""
    if not isinstance(stored, dict):
        return [line(stored)] if stored is not None else []
    return [f"{line(key, 80)}={line(value, 80)}" for key, value in stored.items()]


def joined(stored: object) -> object:
    """Tags as one text; what is no list stays as it is."""
    if not isinstance(stored, list):
        return stored
    return ", ".join(tag if isinstance(tag, str) else compact(tag) for tag in stored)


class ErrorPart(NamedTuple):
    """One member of a stored error; `block` when it is long or has lines of its own."""

    label: str
    text: str
    block: bool = False


def error_parts(stored: object) -> list[ErrorPart]:
    """A stored error, whatever shape it has, with named secrets masked."""
    stored = masked(stored)
    if stored is None:
        return []
    if not isinstance(stored, dict):
        return [ErrorPart("Stored", text(stored), block=True)]
    known = ("type", "message", "where", "cause", "attempt", "fingerprint")
    parts = [
        ErrorPart(name.capitalize(), text(stored[name]), block=name in ("message", "cause"))
        for name in known
        if stored.get(name) not in ("", None)
    ]
    if rest := {name: value for name, value in stored.items() if name not in known}:
        parts.append(ErrorPart("More", pretty(rest), block=True))
    return parts
