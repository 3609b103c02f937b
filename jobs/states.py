"""Statuses, event kinds and the table of every transition. Plain Python: importable without Django."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class JobStatus(StrEnum):
    """Where a job stands. A leased job is published (no worker yet) or running (its lease has a worker)."""

    SCHEDULED = "scheduled"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


FINISHED = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED})


class EventKind(StrEnum):
    """What a history row says happened."""

    CREATED = "created"
    LEASED = "leased"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    SNOOZED = "snoozed"
    RELEASED = "released"
    PUBLISH_EXPIRED = "publish_expired"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    COMPLETION_REJECTED = "completion_rejected"
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    EDITED = "edited"


class OnGap(StrEnum):
    """What becomes of a slot that the clock never shows."""

    NEXT_VALID = "next_valid"
    SHIFT_FORWARD = "shift_forward"
    SKIP = "skip"


class OnOverlap(StrEnum):
    """When a slot runs that the clock shows twice."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class Resolution(StrEnum):
    """How a slot became an instant."""

    PLAIN = "plain"
    AFTER_GAP = "after_gap"
    SHIFTED = "shifted"
    FIRST_PASS = "first_pass"  # noqa: S105
    SECOND_PASS = "second_pass"  # noqa: S105
    IN_GAP = "in_gap"  # it did not: the policy skips it


class Misfire(StrEnum):
    """What to do about firings whose time passed while nobody could run them."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class OnRunning(StrEnum):
    """What to do when a schedule fires while an earlier run of it is still published or running."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_RUNNING = "cancel_running"


class OnHoliday(StrEnum):
    """What becomes of a firing on a day that its calendar closes."""

    SKIP = "skip"
    NEXT_BUSINESS_DAY = "next_business_day"
    PREVIOUS_BUSINESS_DAY = "previous_business_day"


class Verdict(StrEnum):
    """What became of a firing."""

    PENDING = "pending"
    RAN = "ran"
    LATE = "late"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
    DROPPED = "dropped"


class Place(StrEnum):
    """The one table, beside Job, that holds a job at a moment; every guard is presence in one of them."""

    NOWHERE = "not created"
    DUE_ENTRY = "due entry"
    PUBLISHED = "lease without worker"
    RUNNING = "lease with worker"
    FINISHED = "finished"
    DEAD_LETTER = "open dead letter"


class Transition(NamedTuple):
    """One allowed move: `function` (module.name below jobs.transitions) is the only code that makes it."""

    start: Place
    function: str
    end: Place
    status: JobStatus
    event: EventKind


_S, _E, _P = JobStatus, EventKind, Place
TRANSITIONS: tuple[Transition, ...] = (
    Transition(_P.NOWHERE, "enqueue.create_jobs", _P.DUE_ENTRY, _S.SCHEDULED, _E.CREATED),
    Transition(_P.DUE_ENTRY, "claim.claim_batch", _P.PUBLISHED, _S.LEASED, _E.LEASED),
    Transition(_P.DUE_ENTRY, "cancel.cancel_job", _P.FINISHED, _S.CANCELLED, _E.CANCELLED),
    Transition(_P.DUE_ENTRY, "withdraw.withdraw_jobs", _P.FINISHED, _S.CANCELLED, _E.CANCELLED),
    Transition(_P.DUE_ENTRY, "edit.edit_job", _P.DUE_ENTRY, _S.SCHEDULED, _E.EDITED),
    Transition(_P.PUBLISHED, "take.take_batch", _P.RUNNING, _S.LEASED, _E.STARTED),
    Transition(_P.PUBLISHED, "cancel.cancel_job", _P.FINISHED, _S.CANCELLED, _E.CANCELLED),
    Transition(
        _P.PUBLISHED, "lease.expire_published", _P.DUE_ENTRY, _S.SCHEDULED, _E.PUBLISH_EXPIRED
    ),
    Transition(_P.RUNNING, "finish.complete_jobs", _P.FINISHED, _S.SUCCEEDED, _E.SUCCEEDED),
    Transition(_P.RUNNING, "finish.retry_jobs", _P.DUE_ENTRY, _S.SCHEDULED, _E.FAILED),
    Transition(_P.RUNNING, "finish.dead_letter_jobs", _P.DEAD_LETTER, _S.DEAD, _E.DEAD),
    Transition(_P.RUNNING, "finish.snooze_jobs", _P.DUE_ENTRY, _S.SCHEDULED, _E.SNOOZED),
    Transition(_P.RUNNING, "lease.release_jobs", _P.DUE_ENTRY, _S.SCHEDULED, _E.RELEASED),
    Transition(_P.RUNNING, "lease.expire_started", _P.DUE_ENTRY, _S.SCHEDULED, _E.FAILED),
    Transition(_P.RUNNING, "lease.expire_started", _P.DEAD_LETTER, _S.DEAD, _E.DEAD),
    Transition(_P.RUNNING, "lease.expire_started", _P.FINISHED, _S.CANCELLED, _E.CANCELLED),
    Transition(_P.RUNNING, "cancel.cancel_job", _P.RUNNING, _S.LEASED, _E.CANCEL_REQUESTED),
    Transition(_P.RUNNING, "cancel.acknowledge_cancels", _P.FINISHED, _S.CANCELLED, _E.CANCELLED),
    Transition(
        _P.DEAD_LETTER, "requeue.requeue_dead_letter", _P.DUE_ENTRY, _S.SCHEDULED, _E.REQUEUED
    ),
    Transition(_P.DEAD_LETTER, "requeue.discard_dead_letter", _P.FINISHED, _S.DEAD, _E.DISCARDED),
)
