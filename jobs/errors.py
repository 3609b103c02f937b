"""Domain exceptions: one class for each thing a caller can act on.

The docstring is the default message, `code` is the stable name that API, console and commands share.
No HTTP status here: jobs/api/errors.py maps them.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID


class JobError(Exception):
    """The request could not be carried out."""

    code: ClassVar[str] = "internal"

    def __init__(self, detail: str = "") -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().splitlines()[0]
        super().__init__(self.detail)


class InvalidField(JobError):
    """A field has a value that cannot be accepted."""

    code = "validation_failed"

    def __init__(self, pointer: str, code: str, detail: str) -> None:
        """Name the field by JSON pointer ("/payload/items/3") and the fault by a short code."""
        super().__init__(f"{pointer or '/'}: {detail}")
        self.pointer, self.field_code, self.reason = pointer, code, detail


class ValidationFailed(JobError):
    """One or more fields have values that cannot be accepted."""

    code = "validation_failed"

    def __init__(self, errors: list[InvalidField]) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = errors


class ScheduleInvalid(ValidationFailed):
    """One or more fields of a schedule have values that cannot be accepted."""

    code = "schedule_invalid"


class MalformedJson(JobError):
    """The body is not JSON that can be stored and read back unchanged."""

    code = "malformed_json"

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.pointer = pointer


class PayloadTooLarge(JobError):
    """The body or the payload is larger than the limit."""

    code = "payload_too_large"

    def __init__(self, detail: str, *, limit: int, pointer: str = "") -> None:
        super().__init__(detail)
        self.limit, self.pointer = limit, pointer


class UnknownHandler(JobError):
    """No worker ever advertised a handler of this name."""

    code = "handler_unknown"
    pointer = "/handler"


class NoMatchingPool(JobError):
    """No stored pool has the labels that this job needs."""

    code = "no_pool_matches"
    pointer = "/labels"


class RequestKeyReused(JobError):
    """The request key belongs to what a different request has created."""

    code = "request_key_reused"

    def __init__(
        self, *, differs: list[str], job_id: UUID | None = None, schedule_id: UUID | None = None
    ) -> None:
        """`job_id` or `schedule_id`, whichever it is."""
        super().__init__()
        self.job_id, self.schedule_id, self.differs = job_id, schedule_id, differs


class NotFound(JobError):
    """There is no such row, or it belongs to another tenant."""

    code = "not_found"


class TransitionRefused(JobError):
    """The row is no longer in a state from which this transition starts."""

    code = "not_cancellable_state"

    def __init__(self, detail: str = "", *, current: str) -> None:
        super().__init__(detail)
        self.current = current


class AlreadyFinished(TransitionRefused):
    """The job has already finished."""

    code = "already_finished"


class JobRunning(TransitionRefused):
    """A worker has the job, and the caller asked not to interrupt it."""

    code = "not_cancellable_state"


class NotDead(TransitionRefused):
    """The dead letter is not open: it was requeued or discarded before."""

    code = "not_dead"


class NotWaiting(TransitionRefused):
    """Only a job that waits in the calendar can be edited."""

    code = "not_waiting"


class VersionConflict(JobError):
    """Somebody else has changed it since the version that this change was made for."""

    code = "version_mismatch"

    def __init__(self, *, current: int) -> None:
        super().__init__()
        self.current = current


class NotPaused(JobError):
    """Nobody has paused it."""

    code = "not_paused"


class CalendarInUse(JobError):
    """A schedule follows this calendar."""

    code = "calendar_in_use"


class QuotaExceeded(JobError):
    """The tenant has as many waiting jobs as it may have."""

    code = "backlog_quota"

    def __init__(self, *, used: int, limit: int, asked: int = 1) -> None:
        """`used` is counted up to one more than the limit."""
        super().__init__(
            f"The tenant may have {limit} waiting jobs and has {min(used, limit)}"
            f"{' or more' if used > limit else ''}; {asked} more would be too many. Nothing was stored."
        )
        self.used, self.limit, self.asked = used, limit, asked


class LeaseLost(TransitionRefused):
    """Another owner, an expiry or a cancel ended this lease first."""

    code = "lease_lost"


class PoolMismatch(JobError):
    """A pool of this name is stored with other labels."""

    code = "pool_mismatch"


class DatabaseUnavailable(JobError):
    """The database cannot be reached just now."""

    code = "database_unavailable"
