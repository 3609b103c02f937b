"""What the engine ought to do, said a second time: jobs as plain values, moved by rules that share no code with it.

Every method moves the model and returns the answer that the engine must give. A due time that jitter leaves open is a
span until the row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

# Seconds; the engine is given the same ones as settings.
LEASE_TTL, PUBLISH_TTL, TOLERANCE = 30.0, 60.0, 1.0
HEAD_STARTS = {"urgent": 600, "normal": 120, "background": 0}

# Retry policies, and the shortest and longest wait after attempt n, worked out by hand.
POLICIES: dict[str, dict[str, object]] = {
    "fixed": {"kind": "fixed", "base_seconds": 10.0, "jitter": 0.0},
    "list": {"kind": "list", "delays": [5.0, 60.0], "jitter": 0.2},
    "exponential": {
        "kind": "exponential",
        "base_seconds": 2.0,
        "factor": 3.0,
        "max_seconds": 15.0,
        "jitter": 0.5,
    },
}
WAITS: dict[str, Callable[[int], tuple[float, float]]] = {
    "fixed": lambda attempt: (10.0, 10.0),
    "list": lambda attempt: (4.0, 6.0) if attempt == 1 else (48.0, 72.0),
    "exponential": lambda attempt: {1: (1.0, 3.0), 2: (3.0, 9.0)}.get(attempt, (7.5, 15.0)),
}
LATEST_WISH = {"fixed": 1.0, "list": 1.04, "exponential": 1.1}  # a fifth of the jitter on top


@dataclass(frozen=True)
class Ending:
    """How an attempt ends, as its worker will report it. `delay` is a snooze, or a handler's wish for its retry."""

    kind: str  # succeeded, failed, snoozed, released, cancelled
    permanent: bool = False
    delay: float | None = None
    by_handler: bool = False


@dataclass(frozen=True)
class Attempt:
    """What a worker knows of an attempt it was given."""

    job_id: UUID
    lease: UUID
    worker: UUID


@dataclass(kw_only=True)
class ModelJob:
    """One job, wherever it stands: due, published, running, letter (an open dead letter) or over."""

    id: UUID
    shard: int
    pool: str  # its home; "" where no live worker may run it
    lane: str
    priority: int
    policy: str
    max_attempts: int
    limit: int
    due: tuple[datetime, datetime]
    key: str | None
    body: dict[str, object]
    place: str = "due"
    status: str = "scheduled"
    attempt: int = 0
    told: list[str] = field(default_factory=lambda: ["created"])  # kinds of its events, in order
    lease: UUID | None = None
    published_in: str = ""
    lease_due: datetime | None = None
    worker: UUID | None = None
    expires_at: datetime | None = None
    asked: bool = False
    leases: set[UUID] = field(default_factory=set)
    ended: set[tuple[UUID, UUID]] = field(
        default_factory=set
    )  # lease and holder whose word was taken

    @property
    def seq(self) -> int:
        return len(self.told)

    def copy(self) -> ModelJob:
        return replace(self, told=list(self.told), leases=set(self.leases), ended=set(self.ended))

    @property
    def rank(self) -> datetime:
        """Its place among others, by the due time in force or the one under which it was claimed."""
        due_at = self.lease_due or self.due[0]
        return due_at - timedelta(seconds=HEAD_STARTS[self.lane] + self.priority)

    def lapsed(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at + after(TOLERANCE) < now

    def held_by(self, lease: UUID, worker: UUID) -> bool:
        return self.place == "running" and (self.lease, self.worker) == (lease, worker)

    # --- moves: each event is one of these -----------------------------------------------------------------------

    def wait(self, told: str, low: datetime, high: datetime | None = None) -> None:
        self._leave("due", "scheduled", told)
        self.due = (low, high or low)

    def end(self, status: str, told: str) -> None:
        self._leave("letter" if status == "dead" else "over", status, told)

    def _leave(self, place: str, status: str, told: str) -> None:
        self.place, self.status = place, status
        self.told.append(told)
        self.lease = self.worker = self.expires_at = self.lease_due = None
        self.asked, self.published_in = False, ""


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class Model:
    """All jobs of one tenant, by id, in the order of their creation."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, ModelJob] = {}

    def at(self, *places: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.place in places]

    def keyed(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.key is not None]

    def copy(self) -> dict[UUID, ModelJob]:
        return {job_id: job.copy() for job_id, job in self.jobs.items()}

    # --- by the scheduler ----------------------------------------------------------------------------------------

    def is_due(self, job: ModelJob, now: datetime) -> bool:
        return job.place == "due" and job.due[0] <= now

    def best(
        self,
        pool: str,
        workers: Collection[UUID],
        slots: int,
        now: datetime,
        leased: Collection[UUID],
    ) -> list[ModelJob]:
        """What a turn publishes to this pool: the first by rank, as many as slots are free of its live workers.

        Which of several with one rank come first is left open: those that are `leased`.
        """
        held = [job.worker for job in self.at("running")]
        free = sum(max(0, slots - held.count(worker)) for worker in workers)
        room = max(0, free - sum(job.published_in == pool for job in self.at("published")))
        due = [job for job in self.jobs.values() if job.pool == pool and self.is_due(job, now)]
        due.sort(key=lambda job: (job.rank, job.id not in leased))
        return due[:room]

    def publish(self, jobs: Iterable[ModelJob], pool: str, now: datetime) -> int:
        count = 0
        for job in jobs:
            if self.is_due(job, now):
                job.place, job.status, job.published_in = "published", "leased", pool
                job.attempt += 1
                job.told.append("leased")
                job.lease_due, job.expires_at = job.due[0], now + after(PUBLISH_TTL)
                count += 1
        return count

    def expire(self, shards: Iterable[int], now: datetime) -> int:
        count, mine = 0, set(shards)
        for job in self.at("published", "running"):
            if job.shard not in mine or not job.lapsed(now):
                continue
            count += 1
            if job.place == "published":
                job.limit += 1
                job.wait("publish_expired", now)
            elif job.asked:
                job.end("cancelled", "cancelled")
            elif job.attempt >= job.limit:
                job.end("dead", "dead")
            else:
                low, high = WAITS[job.policy](job.attempt)
                job.wait("failed", now + after(low), now + after(high))
        return count

    # --- by a worker ---------------------------------------------------------------------------------------------

    def takeable(self, pool: str) -> list[ModelJob]:
        found = [job for job in self.at("published") if job.published_in == pool]
        return sorted(found, key=lambda job: (job.rank, job.id))

    def take(self, job: ModelJob, worker: UUID, now: datetime) -> None:
        job.place, job.worker = "running", worker
        job.expires_at = now + after(LEASE_TTL)
        job.told.append("started")

    def extend(self, attempts: Iterable[Attempt], worker: UUID, now: datetime) -> dict[UUID, bool]:
        """Which leases live on, and which of them were asked to stop."""
        answer = {}
        for attempt in attempts:
            job = self.jobs[attempt.job_id]
            if job.held_by(attempt.lease, worker):
                job.expires_at = now + after(LEASE_TTL)
                answer[attempt.lease] = job.asked
        return answer

    def report(self, reports: list[tuple[Attempt, Ending]], now: datetime) -> set[UUID]:
        """The leases whose report is refused: neither held any more nor ended by this very worker before."""
        late = []
        for attempt, ending in reports:
            job = self.jobs[attempt.job_id]
            if job.held_by(attempt.lease, attempt.worker):
                job.ended.add((attempt.lease, attempt.worker))
                self._end(job, ending, now)
            elif (attempt.lease, attempt.worker) not in job.ended:
                late.append(attempt)
        for attempt in late:
            self.jobs[attempt.job_id].told.append("completion_rejected")
        return {attempt.lease for attempt in late}

    def _end(self, job: ModelJob, ending: Ending, now: datetime) -> None:
        if ending.kind == "succeeded":
            job.end("succeeded", "succeeded")
        elif job.asked or ending.by_handler:
            job.end("cancelled", "cancelled")
        elif ending.kind == "released":
            job.limit += 1
            job.wait("released", now)
        elif ending.kind == "snoozed":
            job.limit += 1
            job.wait("snoozed", now + after(ending.delay or 0.0))
        elif ending.permanent or job.attempt >= job.limit:
            job.end("dead", "dead")
        else:
            low, high = WAITS[job.policy](job.attempt)
            if ending.delay is not None:
                low, high = ending.delay, ending.delay * LATEST_WISH[job.policy]
            job.wait("failed", now + after(low), now + after(high))

    # --- by a person ---------------------------------------------------------------------------------------------

    def cancel(self, job: ModelJob, if_running: str) -> tuple[str, bool] | str:
        """(outcome, already), or the code of the refusal."""
        if job.place in ("due", "published"):
            job.end("cancelled", "cancelled")
            return "cancelled", False
        if job.place == "running":
            if if_running == "refuse":
                return "not_cancellable_state"
            if job.asked:
                return "cancel_requested", True
            job.asked = True
            job.told.append("cancel_requested")
            return "cancel_requested", False
        return ("cancelled", True) if job.status == "cancelled" else "already_finished"

    def edit(self, job: ModelJob, due_at: datetime | None, lane: str | None) -> str:
        """The code of the refusal, or nothing."""
        if job.place != "due":
            return "not_waiting"
        job.told.append("edited")
        job.due = (due_at, due_at) if due_at else job.due
        job.lane = lane or job.lane
        return ""

    def requeue(self, job: ModelJob, delay: float, now: datetime) -> str:
        """The code of the refusal, or nothing."""
        if job.place != "letter":
            return "not_dead"
        job.limit = job.attempt + job.max_attempts
        job.wait("requeued", now + after(delay))
        return ""

    def discard(self, job: ModelJob) -> str:
        """The code of the refusal, or nothing."""
        if job.place != "letter":
            return "not_dead"
        job.place = "over"
        job.told.append("discarded")
        return ""
