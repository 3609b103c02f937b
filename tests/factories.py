"""Rows that keep every constraint, made the way the product makes them: through submit and the transitions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db.models.functions import Now
from django.utils import timezone

from jobs.conf import conf
from jobs.models import (
    DeadLetter,
    DueEntry,
    Handler,
    Job,
    Lease,
    Pool,
    Route,
    Schedule,
    SchedulerNode,
    Shard,
    Tenant,
    Worker,
)
from jobs.queries.catalog import forget
from jobs.services.requests import parse_request
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import create_schedule
from jobs.services.submit import submit_job
from jobs.services.timings import tenant_defaults
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.claim import claim_batch
from jobs.transitions.finish import complete_jobs, dead_letter_jobs
from jobs.transitions.take import Taken, take_batch

WORKER = UUID("00000000-0000-4000-8000-000000000001")
OTHER_WORKER = UUID("00000000-0000-4000-8000-000000000002")
SCHEDULER_ID = UUID("00000000-0000-4000-8000-0000000000aa")
SCHEDULER = f"scheduler:{SCHEDULER_ID}"
BOOM = {
    "type": "ValueError",
    "message": "boom",
    "where": "shop:charge:12",
    "fingerprint": "00ff00ff00ff00ff",
}


def all_shards() -> list[int]:
    return list(range(conf().shards))


def make_tenant(slug: str = "acme", **overrides: Any) -> Tenant:
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title(), **overrides})[0]


def make_handler(name: str = "billing.charge", **overrides: Any) -> Handler:
    defaults = {
        "max_attempts": 3,
        "timeout_seconds": 30.0,
        "retry": {"kind": "fixed", "base_seconds": 10.0, "jitter": 0.0},
        **overrides,
    }
    handler, made = Handler.objects.get_or_create(name=name, defaults=defaults)
    if made:
        forget()
    return handler


def make_pool(name: str = "default", **overrides: Any) -> Pool:
    pool, made = Pool.objects.get_or_create(name=name, defaults=overrides)
    if made:
        forget()
    return pool


def make_schedule(
    tenant: Tenant | None = None, now: datetime | None = None, **fields: Any
) -> Schedule:
    """Hourly work of a known handler, unless the fields say otherwise."""
    owner = tenant or make_tenant()
    make_handler()
    make_pool()
    request = parse_schedule(
        {"name": "nightly", "cron": "0 * * * *", "job": {"handler": "billing.charge"}, **fields},
        defaults=tenant_defaults(owner),
    )
    return create_schedule(tenant=owner, request=request, actor="user:otto", now=now)


def make_worker(
    pool: Pool | None = None, handlers: tuple[str, ...] = ("billing.charge",), **overrides: Any
) -> Worker:
    values = {
        "id": uuid4(),
        "host": "host-a",
        "pid": 1,
        "slots": 8,
        "handlers": list(handlers),
        **overrides,
    }
    return Worker.objects.create(pool=pool or make_pool(), **values)


def make_scheduler(**overrides: Any) -> SchedulerNode:
    """A live scheduler that looks after all shards."""
    soon = Now() + timedelta(hours=1)
    values = {"id": SCHEDULER_ID, "host": "host-s", "pid": 1, "expires_at": soon, **overrides}
    Shard.objects.update(owner=values["id"], expires_at=values["expires_at"])
    return SchedulerNode.objects.create(**values)


def make_job(
    *,
    place: Place = Place.DUE_ENTRY,
    tenant: Tenant | None = None,
    pool: Pool | None = None,
    worker_id: UUID = WORKER,
    cancel_asked: bool = False,
    **fields: Any,
) -> Job:
    """A job standing in `place`; `fields` are those of a create request. FINISHED means succeeded."""
    fields.setdefault("handler", "billing.charge")
    make_handler(fields["handler"])
    pool = pool or make_pool()
    made = submit_job(
        tenant=tenant or make_tenant(), request=parse_request(fields), actor="token:test0001"
    )
    if place is not Place.DUE_ENTRY:
        publish(made.job_id, made.shard, pool)
    if place in (Place.RUNNING, Place.FINISHED, Place.DEAD_LETTER):
        taken = take(made.job_id, worker_id)
        if cancel_asked:
            cancel_job(
                shard=made.shard, job_id=made.job_id, actor="user:anna", reason="order withdrawn"
            )
        if place is Place.FINISHED:
            complete_jobs(shards=[made.shard], worker_id=worker_id, results={taken.lease_id: None})
        elif place is Place.DEAD_LETTER:
            dead_letter_jobs(
                shards=[made.shard],
                worker_id=worker_id,
                failures={
                    taken.lease_id: {"reason": "permanent_error", "cause": "error", "error": BOOM}
                },
            )
    return Job.objects.get(pk=made.job_id)


def publish(job_id: UUID, shard: int, pool: Pool | None = None) -> Lease:
    """due entry → published; a job that is not due yet becomes due first."""
    DueEntry.objects.filter(pk=job_id, due_at__gt=Now()).update(due_at=Now())
    done = claim_batch(shards=[shard], job_ids=[job_id], pool=pool or make_pool(), actor=SCHEDULER)
    assert done.published == 1
    return Lease.objects.get(job_id=job_id)


def take(job_id: UUID, worker_id: UUID = WORKER) -> Taken:
    """published → running, for exactly this job (others of its pool are left alone)."""
    lease = Lease.objects.get(job_id=job_id)
    Lease.objects.filter(pk=lease.pk).update(rank=timezone.now() - timedelta(days=4000))
    (taken,) = take_batch(
        shards=[lease.shard],
        pool_id=lease.pool_id,
        handlers=[Route.objects.get(pk=lease.route_id).handler],
        worker_id=worker_id,
        limit=1,
    )
    assert taken.job_id == job_id
    return taken


def lease_of(job: Job) -> Lease:
    return Lease.objects.get(job=job)


def dead_letter_of(job: Job) -> DeadLetter:
    return DeadLetter.objects.get(job=job, resolution="open")


def route_of(job: Job) -> Route:
    return Route.objects.get(pk=job.route_id)
