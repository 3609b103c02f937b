"""Jobs standing in every place a job can be, and an exact account of what one call changed.

`stand` puts a job into its starting place among neighbours that no call may touch. `watching` compares all rows of the
job tables and the whole history before and after, and checks the books of every job; `unchanged` allows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs.clock import database_now
from jobs.models import DeadLetter, DueEntry, Job, JobEvent, Lease
from jobs.policies.sharding import bucket_of, new_job_id
from jobs.states import FINISHED, EventKind, JobStatus, Place
from jobs.transitions.cancel import acknowledge_cancels, cancel_job
from jobs.transitions.finish import retry_jobs
from jobs.transitions.requeue import discard_dead_letter
from tests.factories import BOOM, WORKER, make_job, make_pool


class Start(StrEnum):
    """A starting place, told apart as far as any guard could tell."""

    MISSING = "no such job"
    DUE = "due entry"
    RETRYING = "due entry after a failed attempt"
    PUBLISHED = "lease without worker"
    RUNNING = "lease with worker"
    STOPPING = "lease with worker, cancel asked"
    SUCCEEDED = "finished, succeeded"
    CANCELLED = "finished, cancelled"
    DEAD = "open dead letter"
    DISCARDED = "resolved dead letter"


HELD = (Start.RUNNING, Start.STOPPING)
WAITING = (Start.DUE, Start.RETRYING)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One job in its starting place.

    `lease_id` and `dead_letter_id` are what it has, or what it had last, or ids that never were. `now` is late enough
    for every due time and every expiry.
    """

    shard: int
    job_id: UUID
    request_key: str
    tenant_id: int
    route_id: int
    pool_id: int
    lease_id: UUID
    dead_letter_id: UUID
    now: datetime

    @property
    def job(self) -> Job:
        return Job.objects.get(pk=self.job_id)


def starting(*starts: Start) -> pytest.MarkDecorator:
    """Parametrise a test over these starting places."""
    return pytest.mark.parametrize("start", [pytest.param(start, id=start) for start in starts])


def starting_anywhere_but(*starts: Start) -> pytest.MarkDecorator:
    """Parametrise a test over all other starting places."""
    return starting(*(start for start in Start if start not in starts))


def stand(start: Start, *, bystanders: bool = True, **fields: Any) -> Standing:
    """A job in this place; `fields` are those of a create request."""
    pool = make_pool()
    if bystanders:
        make_job(request_key="bystander-due")
        make_job(request_key="bystander-published", place=Place.PUBLISHED, pool=make_pool("other"))
        make_job(request_key="bystander-running", place=Place.RUNNING)
        make_job(request_key="bystander-dead", place=Place.DEAD_LETTER)
    key = fields.setdefault("request_key", "order-8812")
    if start is Start.MISSING:
        model = make_job(request_key="another-order")
        job_id = new_job_id(shard=model.shard, unix_ms=0, rand_b=1)
    else:
        model = make_job(place=_MADE_AS[start], **fields)
        job_id = model.pk
    leases = Lease.objects.filter(job_id=job_id).values_list("pk", flat=True)
    had = (
        JobEvent.objects.filter(job_id=job_id).exclude(lease=None).values_list("lease", flat=True)
    )
    lease_id = leases.first() or had.first() or uuid4()
    letter = DeadLetter.objects.filter(job_id=job_id).first()
    found = Standing(
        shard=model.shard,
        job_id=job_id,
        request_key=key,
        tenant_id=model.tenant_id,
        route_id=model.route_id,
        pool_id=pool.pk,
        lease_id=lease_id,
        dead_letter_id=letter.pk if letter else uuid4(),
        now=database_now() + timedelta(hours=1),
    )
    _finish_standing(start, found)
    return found


_MADE_AS = {
    Start.DUE: Place.DUE_ENTRY,
    Start.RETRYING: Place.RUNNING,
    Start.PUBLISHED: Place.PUBLISHED,
    Start.RUNNING: Place.RUNNING,
    Start.STOPPING: Place.RUNNING,
    Start.SUCCEEDED: Place.FINISHED,
    Start.CANCELLED: Place.RUNNING,
    Start.DEAD: Place.DEAD_LETTER,
    Start.DISCARDED: Place.DEAD_LETTER,
}


def _finish_standing(start: Start, it: Standing) -> None:
    """The last steps to places that make_job does not know."""
    if start is Start.RETRYING:
        failure = {"delay": 0, "cause": "error", "error": BOOM}
        retry_jobs(shards=[it.shard], worker_id=WORKER, failures={it.lease_id: failure})
    if start in (Start.STOPPING, Start.CANCELLED):
        cancel_job(shard=it.shard, job_id=it.job_id, actor="user:anna", reason="order withdrawn")
    if start is Start.CANCELLED:
        stopped = {it.lease_id: {"cancel": "honoured"}}
        acknowledge_cancels(shards=[it.shard], worker_id=WORKER, stopped=stopped)
    if start is Start.DISCARDED:
        discard_dead_letter(
            shard=it.shard, dead_letter_id=it.dead_letter_id, actor="user:anna", note="obsolete"
        )


class _Gone:
    def __repr__(self) -> str:
        return "GONE"


GONE = _Gone()


@dataclass(frozen=True)
class New:
    """A row that was not there before, with all its columns."""

    columns: dict[str, Any]


type Rows = dict[tuple[str, UUID], dict[str, Any]]
type Changes = dict[tuple[str, UUID], dict[str, Any] | New | _Gone]

_KEYS: dict[Any, str] = {Job: "id", DueEntry: "job_id", Lease: "job_id", DeadLetter: "id"}


@dataclass
class Change:
    """What a call did: columns of changed rows, new rows, rows that are gone; events in their order."""

    rows: Changes = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def watching() -> Iterator[Change]:
    """Fill in, at the end of the block, what it changed in any row of any job. History may only grow."""
    rows, events = _rows(), _events()
    change = Change()
    yield change
    later_rows, later_events = _rows(), _events()
    for key in rows.keys() | later_rows.keys():
        old, new = rows.get(key), later_rows.get(key)
        if new is None:
            change.rows[key] = GONE
        elif old is None:
            change.rows[key] = New(new)
        elif old != new:
            change.rows[key] = {name: new[name] for name in new if new[name] != old[name]}
    assert {key: later_events.get(key) for key in events} == events, "history was rewritten"
    change.events = [told for key, told in later_events.items() if key not in events]
    check_books()


@contextmanager
def unchanged() -> Iterator[None]:
    """The block must leave every row and the history exactly as they were."""
    with watching() as change:
        yield
    assert change == Change()


def moved(it: Standing, **tables: dict[str, Any] | New | _Gone) -> Changes:
    """The expected `Change.rows` when only rows of this job changed, by table name."""
    keys = dict.fromkeys(("Job", "DueEntry", "Lease"), it.job_id)
    keys["DeadLetter"] = it.dead_letter_id
    return {(table, keys[table]): change for table, change in tables.items()}


def event(
    it: Standing,
    kind: EventKind,
    start: JobStatus | None,
    end: JobStatus,
    **columns: Any,
) -> dict[str, Any]:
    """The expected event; `seq`, `attempt` and `actor` have no default."""
    return {
        "shard": it.shard,
        "job_id": it.job_id,
        "tenant_id": it.tenant_id,
        "at": it.now,
        "kind": kind.value,
        "from_status": start and start.value,
        "to_status": end.value,
        "lease": None,
        "token": None,
        "due_at": None,
        "detail": None,
        **columns,
    }


def due_row(it: Standing, due_at: datetime) -> New:
    """The expected new due entry of this job."""
    job = it.job
    return New(
        {
            "job_id": it.job_id,
            "due_at": due_at,
            "bucket": bucket_of(due_at),
            "shard": job.shard,
            "route_id": job.route_id,
            "lane_id": job.lane_id,
            "priority": job.priority,
            "tenant_id": job.tenant_id,
            "concurrency_key": job.concurrency_key,
            "parked": False,
            "misfire_at": None,
        }
    )


def dead_letter_row(it: Standing, due_at: datetime, **columns: Any) -> tuple[UUID, New]:
    """The expected new dead letter of this job and its id; `reason`, `attempts` and the error have no default."""
    letter = DeadLetter.objects.get(job_id=it.job_id, resolution="open")
    row = {
        "id": letter.pk,
        "job_id": it.job_id,
        "shard": it.shard,
        "tenant_id": it.tenant_id,
        "handler": it.job.handler,
        "due_at": due_at,
        "died_at": it.now,
        "resolution": "open",
        "resolved_at": None,
        "resolved_by": "",
        "note": "",
        **columns,
    }
    return letter.pk, New(row)


def place_of(job_id: UUID) -> Place:
    """Where the job is, read from the tables that hold jobs."""
    if DueEntry.objects.filter(pk=job_id).exists():
        return Place.DUE_ENTRY
    if lease := Lease.objects.filter(job_id=job_id).first():
        return Place.RUNNING if lease.worker else Place.PUBLISHED
    if DeadLetter.objects.filter(job_id=job_id, resolution="open").exists():
        return Place.DEAD_LETTER
    return Place.FINISHED if Job.objects.filter(pk=job_id).exists() else Place.NOWHERE


def story(job_id: UUID) -> list[Any]:
    """The job's events in order."""
    return list(JobEvent.objects.filter(job_id=job_id).order_by("seq"))


def check_books() -> None:
    """Every job is in the one place its status says, and its events are numbered without a gap."""
    waiting = set(DueEntry.objects.values_list("pk", flat=True))
    leases = {lease.job_id: lease for lease in Lease.objects.all()}
    told: dict[UUID, list[dict[str, Any]]] = {}
    for row in _events().values():
        told.setdefault(row["job_id"], []).append(row)
    for job in Job.objects.all():
        lease = leases.pop(job.pk, None)
        status = JobStatus(job.status)
        assert (job.pk in waiting) == (status is JobStatus.SCHEDULED), job
        assert (lease is not None) == (status is JobStatus.LEASED), job
        assert (job.finished_at is not None) == (status in FINISHED), job
        waiting.discard(job.pk)
        events = told[job.pk]
        counted = lease.seq if lease else job.seq
        assert [row["seq"] for row in events] == list(range(1, counted + 1)), job
        assert events[-1]["to_status"] == status, job
        tokens = [row["token"] for row in events if row["kind"] == EventKind.LEASED]
        assert tokens == list(range(1, job.lease_token + 1)), job
        assert job.attempt == len(tokens), job
    assert not waiting, "due entries without a job"
    assert not leases, "leases without a job"


def _rows() -> Rows:
    return {
        (model.__name__, row[key]): row
        for model, key in _KEYS.items()
        for row in model.objects.values()
    }


def _events() -> dict[int, dict[str, Any]]:
    """By event id, in the order of each job's numbers; times inside details are read back as times."""
    found: dict[int, dict[str, Any]] = {}
    for row in JobEvent.objects.order_by("job_id", "seq").values():
        told = found[row["id"]] = {name: value for name, value in row.items() if name != "id"}
        if isinstance(row["detail"], dict):
            told["detail"] = {name: _time(name, value) for name, value in row["detail"].items()}
    return found


def _time(name: str, value: Any) -> Any:
    is_time = name.endswith("_at") and isinstance(value, str)
    return datetime.fromisoformat(value) if is_time else value
