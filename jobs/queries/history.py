"""One job with everything known about it: the row, its place in calendar or lease, its dead letter, its events.

API and console show a job from here. Rows that were written past validation are readable too: JSON that Python cannot
hold is replaced by a remark, missing neighbours are None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import F, Min, Model, QuerySet, TextField
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast

from jobs.conf import conf
from jobs.database import rows
from jobs.errors import NotFound
from jobs.models import DeadLetter, Job, JobEvent
from jobs.policies.sharding import shard_of_id
from jobs.queries.lists import PlainTime, plain_time
from jobs.states import EventKind, JobStatus

# Events are written with or after their job. The margin is for a database that moved to a host with a slower clock;
# without the bound every stored day would be searched.
EVENTS_BEFORE_CREATION = timedelta(hours=1)
MAX_EVENTS = 1_000
MAX_DEPTH = 100  # of JSON that is shown; what comes in through the API is far below


class Phase(StrEnum):
    """What a job is doing, in the word people are shown. Finer than its status, and never stored."""

    UPCOMING = "upcoming"
    DUE = "due"
    RETRY_WAIT = "retry_wait"
    PUBLISHED = "published"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


def phase_of(
    *,
    status: str,
    now: datetime,
    waits_until: datetime | None = None,
    attempt: int = 0,
    has_worker: bool = False,
    cancel_requested: bool = False,
) -> Phase:
    """The phase of a job.

    Args:
        status: Of the job.
        now: Aware time of the database at which the rest was read.
        waits_until: Due time of its due entry, if it has one.
        attempt: Attempts so far: one that waits after any of them waits for its next try.
        has_worker: Its lease was taken.
        cancel_requested: Its lease says that a cancel was asked.
    """
    match status:
        case JobStatus.SCHEDULED:
            if waits_until is None or waits_until <= now:
                return Phase.DUE
            return Phase.RETRY_WAIT if attempt else Phase.UPCOMING
        case JobStatus.LEASED:
            if cancel_requested:
                return Phase.CANCELLING
            return Phase.RUNNING if has_worker else Phase.PUBLISHED
        case _:
            return Phase(status)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """Who owns the job now; `worker` is None while it is published and not taken."""

    id: UUID
    token: int
    attempt: int
    pool: str | None
    worker: UUID | None
    worker_host: str | None
    worker_pid: int | None
    published_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    expires_at: datetime
    cancel_requested: bool
    progress: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """One job as one statement saw it. Times are aware UTC.

    Attributes:
        due_at: As asked at creation or by an edit.
        schedule_id, fire_at: Which schedule made it, for which of its firings; None: a person or a program asked for it.
        waits_until: Due time in force while it waits (a retry is due later than the job was), else None.
        read_at: The database's clock at that moment.
        started_at: When its first attempt started; None before, and once its history has been dropped.
        cancel_outcome: "cancelled" (it never ran this attempt), "honoured", "by_handler", "lease_lost" or "too_late";
            None while nothing was asked, or nothing is known yet.
        dead_letter: Of its last death, while it is dead.
    """

    id: UUID
    shard: int
    tenant_id: int
    tenant: str | None
    handler: str
    status: str
    due_at: datetime
    waits_until: datetime | None
    lane: str | None
    priority: int
    labels: Any
    attempt: int
    max_attempts: int
    attempt_limit: int
    lease_token: int
    retry: Any
    timeout_seconds: float
    request_key: str | None
    reference: str
    tags: Any
    concurrency_key: str | None
    schedule_id: UUID | None
    fire_at: datetime | None
    payload: Any
    payload_ref: str | None
    result: Any
    last_error: Any
    cancel_requested_at: datetime | None
    cancel_requested_by: str
    cancel_reason: str
    created_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    read_at: datetime
    lease: HeldLease | None = None
    started_at: datetime | None = None
    cancel_outcome: str | None = None
    dead_letter: DeadLetter | None = None

    @property
    def phase(self) -> Phase:
        """See `phase_of`."""
        return phase_of(
            status=self.status,
            now=self.read_at,
            waits_until=self.waits_until,
            attempt=self.attempt,
            has_worker=self.lease is not None and self.lease.worker is not None,
            cancel_requested=self.lease is not None and self.lease.cancel_requested,
        )

    @property
    def start_lag_seconds(self) -> float | None:
        """Seconds from due to the first start, never negative; None before it."""
        if self.started_at is None:
            return None
        return max(0.0, (self.started_at - self.due_at).total_seconds())


_ADDED = ("lease", "started_at", "cancel_outcome", "dead_letter")  # read by other means
_JOB_COLUMNS = [field.name for field in fields(JobDetail) if field.name not in _ADDED]
_LEASE_COLUMNS = [field.name for field in fields(HeldLease)]
# JSON is read as text: the driver would give up the whole row on one value that Python cannot hold.
_JSON_COLUMNS = ("retry", "tags", "payload", "result", "last_error", "labels", "progress")
# Times of rows that the ORM reads; it would read them as they are stored.
_EVENT_TIMES = ("at", "due_at")
_LETTER_TIMES = ("due_at", "died_at", "resolved_at")
_ELSEWHERE = {
    "tenant": "tenant.slug",
    "lane": "lane.name",
    "labels": "route.labels::text",
    "waits_until": plain_time("waiting.due_at"),
    "read_at": "statement_timestamp()",
    "pool": "pool.name",
    "worker_host": "worker.host",
    "worker_pid": "worker.pid",
}


def _column(table: str, name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name.endswith("_at"):
        return plain_time(f"{table}.{name}")
    return f"{table}.{name}::text" if name in _JSON_COLUMNS else f"{table}.{name}"


# One statement, so that status, calendar and lease agree: the job may move between any two.
DETAIL = f"""
select {", ".join(_column("job", name) for name in _JOB_COLUMNS)},
    {", ".join(_column("lease", name) for name in _LEASE_COLUMNS)}
from jobs_job job
left join jobs_tenant tenant on tenant.id = job.tenant_id
left join jobs_lane lane on lane.id = job.lane_id
left join jobs_route route on route.id = job.route_id
left join jobs_dueentry waiting on waiting.shard = job.shard and waiting.job_id = job.id
left join jobs_lease lease on lease.shard = job.shard and lease.job_id = job.id
left join jobs_pool pool on pool.id = lease.pool_id
left join jobs_worker worker on worker.id = lease.worker
where job.shard = %(shard)s and job.id = %(job)s and (%(tenant)s::int is null or job.tenant_id = %(tenant)s)"""


def locate_job(*, tenant_id: int | None, job_id: UUID) -> int:
    """Shard of a stored job.

    Args:
        tenant_id: Whose job it must be; None for anyone's.
        job_id: The job.

    Raises:
        NotFound: No such job, or another tenant's: the two look the same.
    """
    shard = _shard_named_by(job_id)
    jobs = Job.objects.filter(shard=shard, pk=job_id)
    if tenant_id is not None:
        jobs = jobs.filter(tenant=tenant_id)
    if not jobs.exists():
        raise NotFound
    return shard


def job_detail(*, tenant_id: int | None, job_id: UUID) -> JobDetail:
    """One job.

    Args:
        tenant_id: Whose job it must be; None for anyone's.
        job_id: The job.

    Raises:
        NotFound: No such job, or another tenant's: the two look the same.
    """
    shard = _shard_named_by(job_id)
    found = rows(DETAIL, {"shard": shard, "job": job_id, "tenant": tenant_id})
    if not found:
        raise NotFound
    (values,) = found
    job = _named(_JOB_COLUMNS, values[: len(_JOB_COLUMNS)])
    lease = _named(_LEASE_COLUMNS, values[len(_JOB_COLUMNS) :])
    return JobDetail(
        **job,
        lease=HeldLease(**lease) if lease["id"] else None,
        started_at=_first_start(job_id, shard, job) if job["attempt"] else None,
        cancel_outcome=_cancel_outcome(job_id, shard, job),
        dead_letter=_last_death(job_id, shard) if job["status"] == JobStatus.DEAD else None,
    )


def job_events(job: JobDetail | Job, *, limit: int = MAX_EVENTS) -> list[JobEvent]:
    """History of a job, oldest first.

    Args:
        job: The job.
        limit: The newest so many; a first `seq` above 1 shows that older ones exist.
    """
    events = (
        _events_of(job.id, job.shard, job.created_at)
        .defer("detail", *_EVENT_TIMES)
        .annotate(detail_text=Cast("detail", TextField()), **_plain(_EVENT_TIMES))
        .order_by("-seq")[:limit]
    )
    found: list[JobEvent] = []
    for event in events:
        event.detail = stored_json(event.detail_text)
        _put_plain(event, _EVENT_TIMES)
        found.append(event)
    return found[::-1]


def stored_json(text: str | None) -> Any:
    """The value of a stored JSON text, or a remark where Python or a reader could not hold it. Never raises.

    Args:
        text: As jsonb gives it. Only what came in through the API is bounded in depth and in size of numbers.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # a number of 5,000 digits is a ValueError
        value = None
    else:
        if not _deeper_than(MAX_DEPTH, value):
            return value
    return {"unreadable": True, "characters": len(text)}


def is_remark(value: object) -> bool:
    """True for what `stored_json` gives in place of a value that could not be held."""
    return isinstance(value, dict) and value.get("unreadable") is True


def _deeper_than(depth: int, value: object) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            member
            for container in level
            if isinstance(container, dict | list)
            for member in (container.values() if isinstance(container, dict) else container)
        ]
    return any(isinstance(value, dict | list) for value in level)


def _named(names: list[str], values: tuple[Any, ...]) -> dict[str, Any]:
    return {
        name: stored_json(value) if name in _JSON_COLUMNS else value
        for name, value in zip(names, values, strict=True)
    }


def _shard_named_by(job_id: UUID) -> int:
    try:
        shard = shard_of_id(job_id)
    except ValueError:
        raise NotFound from None
    if shard >= conf().shards:
        raise NotFound
    return shard


def _events_of(job_id: UUID, shard: int, created_at: datetime) -> QuerySet[JobEvent]:
    since = created_at - EVENTS_BEFORE_CREATION
    return JobEvent.objects.filter(shard=shard, job=job_id, at__gte=since)


def _first_start(job_id: UUID, shard: int, job: dict[str, Any]) -> datetime | None:
    started = _events_of(job_id, shard, job["created_at"]).filter(kind=EventKind.STARTED)
    first: datetime | None = started.aggregate(first=PlainTime(Min("at")))["first"]
    return first


def _cancel_outcome(job_id: UUID, shard: int, job: dict[str, Any]) -> str | None:
    """How a cancel went. Each event says it in `detail`; a job that nobody ran says only that it ended."""
    if job["status"] == JobStatus.SUCCEEDED and job["cancel_requested_at"]:
        return "too_late"
    if job["status"] != JobStatus.CANCELLED:
        return None
    events = _events_of(job_id, shard, job["created_at"]).filter(kind=EventKind.CANCELLED)
    told = Cast(KeyTransform("cancel", "detail"), TextField())
    outcome = stored_json(events.order_by("-seq").values_list(told, flat=True).first())
    return outcome if isinstance(outcome, str) else "cancelled"


def _last_death(job_id: UUID, shard: int) -> DeadLetter | None:
    letters = DeadLetter.objects.filter(shard=shard, job=job_id).order_by("-died_at", "-id")
    letter = letters.defer(*_LETTER_TIMES).annotate(**_plain(_LETTER_TIMES)).first()
    if letter is not None:
        _put_plain(letter, _LETTER_TIMES)
    return letter


def _plain(names: tuple[str, ...]) -> dict[str, PlainTime]:
    return {f"{name}_plain": PlainTime(F(name)) for name in names}


def _put_plain(row: Model, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(row, name, getattr(row, f"{name}_plain"))
