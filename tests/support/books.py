"""The books of the whole database: every job is in one place, and its history tells how it came there.

`violations` folds the events of each job by the rules of the state machine and compares the end with the rows. It
reads tables only and shares no code with the engine. The names I1 … I18 are those of the list of invariants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs.models import DeadLetter, DueEntry, Job, JobEvent, Lease

FINISHED = ("succeeded", "dead", "cancelled")
LEASE_EXPIRED = "lease_expired"


@dataclass
class Fold:
    """What a job's events say about it so far."""

    max_attempts: int
    limit: int
    place: str = "nowhere"  # due, published, running, finished, letter (an open dead letter)
    status: str = ""
    attempt: int = 0
    token: int = 0
    seq: int = 0
    lease: UUID | None = None
    worker: str = ""  # actor of the start in force
    cancel_asked: bool = False
    leases: set[UUID] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def must(self, holds: bool, rule: str) -> None:
        if not holds:
            self.faults.append(f"{rule} at #{self.seq}")


def assert_balanced() -> None:
    """Fail with every violation found, the first job's whole history included."""
    found = list(violations())
    if found:
        job_id, _ = found[0]
        told = JobEvent.objects.filter(job_id=job_id).order_by("seq")
        story = "\n".join(
            f"  #{one.seq} {one.at} {one.kind} {one.actor} {one.detail}" for one in told
        )
        lines = "\n".join(f"{job}: {fault}" for job, fault in found[:20])
        raise AssertionError(f"{len(found)} violations\n{lines}\nfirst job:\n{story}")


def violations(*, tolerance: timedelta = timedelta(0)) -> Iterator[tuple[UUID, str]]:
    """(job id, fault) for everything that is wrong. `tolerance` is what expiries must have waited beyond the expiry."""
    due = set(DueEntry.objects.values_list("pk", flat=True))
    leases = {lease.job_id: lease for lease in Lease.objects.all()}
    letters: dict[UUID, int] = defaultdict(int)
    for letter in DeadLetter.objects.filter(resolution="open"):
        letters[letter.job_id] += 1
    told: dict[UUID, list[JobEvent]] = defaultdict(list)
    for event in JobEvent.objects.order_by("job_id", "seq", "at").iterator():
        told[event.job_id].append(event)
    for job in Job.objects.iterator():
        fold = Fold(max_attempts=job.max_attempts, limit=job.max_attempts)
        for event in told.pop(job.pk, []):
            _apply(fold, event, tolerance)
        lease = leases.pop(job.pk, None)
        waits = job.pk in due
        due.discard(job.pk)
        _compare(fold, job, lease, waits=waits, open_letters=letters.pop(job.pk, 0))
        for fault in fold.faults:
            yield job.pk, fault
    for name, orphans in (("due entry", due), ("lease", leases), ("letter", letters)):
        yield from ((job_id, f"I1 {name} without a job") for job_id in orphans)
    yield from ((job_id, "I1 events without a job") for job_id in told)


def _compare(fold: Fold, job: Job, lease: Lease | None, *, waits: bool, open_letters: int) -> None:
    """I1 and I18: the rows are where, and what, the events say."""
    fold.must(waits == (job.status == "scheduled"), "I1 due entry exactly while it waits")
    fold.must((lease is not None) == (job.status == "leased"), "I1 lease exactly while owned")
    fold.must((job.finished_at is not None) == (job.status in FINISHED), "I1 finished_at")
    fold.must(fold.status == job.status, f"I18 status {job.status}, events say {fold.status}")
    fold.must(fold.attempt == job.attempt, f"I18 attempt {job.attempt}, events {fold.attempt}")
    fold.must(fold.token == job.lease_token, "I18 token counter")
    fold.must(fold.limit == job.attempt_limit, f"I9 budget {job.attempt_limit}, not {fold.limit}")
    fold.must(job.attempt <= job.attempt_limit, "I9 more attempts than budget")
    fold.must(open_letters == (fold.place == "letter"), "I18 open dead letter")
    fold.must(fold.seq == (lease.seq if lease else job.seq), "I18 event counter")
    if lease is not None:
        fold.must(lease.pk == fold.lease, "I18 lease id")
        fold.must(lease.token == fold.token, "I18 token of the lease")
        fold.must(lease.attempt == fold.attempt, "I18 attempt of the lease")
        fold.must((lease.worker is not None) == (fold.place == "running"), "I18 worker")
        if lease.worker is not None:
            fold.must(fold.worker == f"worker:{lease.worker}", "I18 holder")
        fold.must(lease.cancel_requested == fold.cancel_asked, "I18 cancel asked")


def _apply(fold: Fold, event: JobEvent, tolerance: timedelta) -> None:
    fold.seq += 1
    fold.must(event.seq == fold.seq, f"I19 numbered {event.seq}")
    fold.must((event.from_status or "") == fold.status, f"I18 from {event.from_status}")
    over = fold.status in ("succeeded", "cancelled")
    fold.must(not over or event.kind == "completion_rejected", f"I5 {event.kind} after the end")
    _RULES[event.kind](fold, event)
    if event.kind != "leased":
        fold.must(event.attempt == fold.attempt, "I9 attempt of the event")
    detail = event.detail if isinstance(event.detail, dict) else {}
    if event.actor.startswith("scheduler:") and "expires_at" in detail:
        expired_at = datetime.fromisoformat(detail["expires_at"])
        fold.must(event.at > expired_at + tolerance, "I7 expired too early")
    fold.status = event.to_status


def _created(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "nowhere" and event.attempt == 0, "I18 created once, first")
    fold.place = "due"


def _leased(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "due", f"I2 leased while {fold.place}")
    fold.must(not fold.cancel_asked, "I11 leased after a cancel")
    fold.must(event.attempt == fold.attempt + 1, "I9 one attempt per claim")
    fold.must(event.token == fold.token + 1, "I3 token counts up by one")
    fold.must(event.lease is not None and event.lease not in fold.leases, "I3 a new lease id")
    fold.must(event.due_at is not None and event.at >= event.due_at, "I6 leased early")
    fold.attempt, fold.token = event.attempt, event.token or 0
    fold.lease = event.lease
    if event.lease:
        fold.leases.add(event.lease)
    fold.place = "published"


def _started(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "published", f"I2 started while {fold.place}")
    fold.must(not fold.cancel_asked, "I11 started after a cancel")
    _carries_lease(fold, event)
    fold.place, fold.worker = "running", event.actor


def _ended(place: str, *, refund: bool = False) -> Callable[[Fold, JobEvent], None]:
    """The holder's report, or an expiry in its place, ends a started lease."""

    def apply(fold: Fold, event: JobEvent) -> None:
        fold.must(fold.place == "running", f"I4 {event.kind} while {fold.place}")
        _carries_lease(fold, event)
        if (event.detail or {}).get("cause") != LEASE_EXPIRED:
            fold.must(event.actor == fold.worker, f"I4 reported by {event.actor}")
        if event.kind != "succeeded":
            fold.must(not fold.cancel_asked, f"I11 {event.kind} after a cancel")
        if event.kind == "failed":
            fold.must(fold.attempt < fold.limit, "I9 retried beyond the budget")
        reason = (event.detail or {}).get("reason")
        if event.kind == "dead" and reason == "attempts_exhausted":
            fold.must(fold.attempt >= fold.limit, "I9 dead before the budget was spent")
        fold.limit += refund
        _left(fold, place)

    return apply


def _publish_expired(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "published", f"I4 publish_expired while {fold.place}")
    _carries_lease(fold, event)
    fold.limit += 1
    _left(fold, "due")


def _cancel_requested(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "running", f"I11 asked while {fold.place}")
    fold.must(not fold.cancel_asked, "I11 asked twice")
    _carries_lease(fold, event)
    fold.cancel_asked = True


def _cancelled(fold: Fold, event: JobEvent) -> None:
    by_handler = (event.detail or {}).get("cancel") == "by_handler"
    stands = fold.place in ("due", "published")
    fold.must(
        stands or (fold.place == "running" and (fold.cancel_asked or by_handler)),
        f"I11 cancelled while {fold.place}",
    )
    if fold.place != "due":
        _carries_lease(fold, event)
    _left(fold, "finished")


def _requeued(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "letter", f"I5 requeued while {fold.place}")
    fold.limit = fold.attempt + fold.max_attempts
    fold.place = "due"


def _discarded(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "letter", f"I5 discarded while {fold.place}")
    fold.place = "finished"


def _edited(fold: Fold, event: JobEvent) -> None:
    fold.must(fold.place == "due", f"I4 edited while {fold.place}")


def _rejected(fold: Fold, event: JobEvent) -> None:
    detail = event.detail or {}
    fold.must(event.to_status == fold.status, "I4 a refused report changed the status")
    fold.must(event.lease != fold.lease or fold.lease is None, "I4 refused the lease in force")
    fold.must({"reported", "current_token"} <= detail.keys(), "I4 refusal without both tokens")
    fold.must((event.token or 0) <= fold.token, "I3 refused a token from the future")


def _carries_lease(fold: Fold, event: JobEvent) -> None:
    fold.must(event.lease == fold.lease and event.token == fold.token, "I4 another lease's word")


def _left(fold: Fold, place: str) -> None:
    fold.lease, fold.worker, fold.place = None, "", place
    fold.cancel_asked = False


_RULES: dict[str, Callable[[Fold, Any], None]] = {
    "created": _created,
    "leased": _leased,
    "started": _started,
    "succeeded": _ended("finished"),
    "failed": _ended("due"),
    "dead": _ended("letter"),
    "snoozed": _ended("due", refund=True),
    "released": _ended("due", refund=True),
    "publish_expired": _publish_expired,
    "cancel_requested": _cancel_requested,
    "cancelled": _cancelled,
    "completion_rejected": _rejected,
    "requeued": _requeued,
    "discarded": _discarded,
    "edited": _edited,
}
