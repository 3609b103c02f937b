"""submit: a validated request becomes a durable job, or the job that the request key already names."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from jobs.conf import conf
from jobs.database import atomically, commits, rows
from jobs.errors import (
    InvalidField,
    NoMatchingPool,
    QuotaExceeded,
    RequestKeyReused,
    UnknownHandler,
    ValidationFailed,
)
from jobs.models import Job, Lane, Route, Tenant
from jobs.policies.payloads import canonical_json, request_hash
from jobs.policies.routing import can_run, canonical_labels, missing_labels
from jobs.policies.sharding import place_job, shards_of
from jobs.queries.backlog import count_waiting
from jobs.queries.catalog import Catalog, catalog
from jobs.services.requests import JobRequest
from jobs.transitions.enqueue import NewJob, create_jobs

# Until the commit, in the way in which claims of a tenant with a limit lock it: none of the others waits for this.
LOCK_TENANT = "select id from jobs_tenant where id = %(tenant)s for no key update"


class Submitted(NamedTuple):
    """The job that stands for a request; `created` is False when an earlier request had made it."""

    job_id: UUID
    shard: int
    created: bool


def submit_job(*, tenant: Tenant, request: JobRequest, actor: str) -> Submitted:
    """One request; see `submit_jobs`."""
    return submit_jobs(tenant=tenant, requests=[request], actor=actor)[0]


def submit_jobs(*, tenant: Tenant, requests: Sequence[JobRequest], actor: str) -> list[Submitted]:
    """Create a job for every request, all or none, inside the caller's transaction if there is one.

    Args:
        tenant: Owner of the jobs.
        requests: Parsed requests; equal request keys with equal requests share one job.
        actor: Who asks, for history ("token:ab12cd34").

    Returns:
        One result per request, in order.

    Raises:
        UnknownHandler: A name that no worker ever advertised. Nothing is stored.
        NoMatchingPool: No stored pool could ever run it. Nothing is stored.
        ValidationFailed: The lane does not exist. Nothing is stored.
        RequestKeyReused: The key names a job made by a different request. Nothing is stored.
        QuotaExceeded: The new ones among them would be more than the tenant may have waiting. Nothing is stored.
    """
    if tenant.max_backlog is not None:
        return _submit_within_backlog(tenant, tenant.max_backlog, requests, actor)
    jobs = _resolve_newest(tenant, requests, actor)
    if len(jobs) == 1 and not connection.in_atomic_block:
        # One statement: the job is there or nothing is, and a transaction around it would be four round trips more.
        return _store(tenant, requests, jobs, actor)
    return _store_together(tenant, requests, jobs, actor)


def submit_without_keys(
    wanted: Sequence[tuple[Tenant, JobRequest]], *, actor: str
) -> list[Submitted]:
    """Create a job for every request, of any number of tenants, in one statement; inside the caller's transaction.

    Args:
        wanted: Owner and parsed request of each; none has a request key. Those of a tenant stand together.
        actor: Who asks, for history.

    Returns:
        One result per request, in order.

    Raises:
        UnknownHandler, NoMatchingPool, ValidationFailed, QuotaExceeded: As `submit_jobs`.
    """
    answer: list[Submitted] = []
    free: list[NewJob] = []
    for tenant, group in groupby(wanted, key=itemgetter(0)):
        requests = [request for _, request in group]
        if tenant.max_backlog is not None:
            answer += _submit_within_backlog(tenant, tenant.max_backlog, requests, actor)
            continue
        jobs = _resolve_newest(tenant, requests, actor)
        answer += [Submitted(job.id, job.shard, created=True) for job in jobs]
        free += jobs
    create_jobs(free, actor=actor)
    return answer


def check_request(tenant: Tenant, request: JobRequest) -> None:
    """Whether such a request would be accepted now, its tenant's backlog aside.

    Args:
        tenant: Owner.
        request: Parsed.

    Raises:
        UnknownHandler, NoMatchingPool, ValidationFailed: As `submit_jobs`.
    """
    _resolve_newest(tenant, [request], "check")


@atomically
def _store_together(
    tenant: Tenant, requests: Sequence[JobRequest], jobs: list[NewJob], actor: str
) -> list[Submitted]:
    return _store(tenant, requests, jobs, actor)


@atomically
def _submit_within_backlog(
    tenant: Tenant, limit: int, requests: Sequence[JobRequest], actor: str
) -> list[Submitted]:
    """One submitter of this tenant at a time: two at once could both find room for the last job."""
    jobs = _resolve_newest(tenant, requests, actor)
    own_shards = shards_of(tenant_id=tenant.pk, spread=tenant.shard_spread, shards=conf().shards)
    rows(LOCK_TENANT, {"tenant": tenant.pk})
    keyed = [job for job in jobs if job.request_key is not None]
    new = {job.request_key for job in keyed} - _existing(tenant, keyed).keys()
    asked = len(jobs) - len(keyed) + len(new)  # a request that was accepted before adds nothing
    if asked:
        used = count_waiting(tenant_id=tenant.pk, shards=own_shards, limit=limit + 1)
        if used + asked > limit:
            raise QuotaExceeded(used=used, limit=limit, asked=asked)
    return _store(tenant, requests, jobs, actor)


def _store(
    tenant: Tenant, requests: Sequence[JobRequest], jobs: list[NewJob], actor: str
) -> list[Submitted]:
    created = create_jobs(jobs, actor=actor)
    known = _existing(tenant, [job for job in jobs if job.id not in created])
    answer = []
    for request, job in zip(requests, jobs, strict=True):
        if job.id in created:
            answer.append(Submitted(job.id, job.shard, created=True))
            continue
        earlier = known[job.request_key]
        if bytes(earlier.request_hash or b"") != job.request_hash:
            raise RequestKeyReused(job_id=earlier.pk, differs=_differing(earlier, job, request))
        answer.append(Submitted(earlier.pk, earlier.shard, created=False))
    return answer


def _resolve_newest(tenant: Tenant, requests: Sequence[JobRequest], actor: str) -> list[NewJob]:
    try:
        return _resolve_all(tenant, requests, actor, catalog())
    except (UnknownHandler, NoMatchingPool, ValidationFailed):
        # Since that reading a worker may have advertised the handler, or a person added the pool or the lane.
        return _resolve_all(tenant, requests, actor, catalog(max_age_seconds=0))


def _resolve_all(
    tenant: Tenant, requests: Sequence[JobRequest], actor: str, found: Catalog
) -> list[NewJob]:
    for request in requests:  # all of them, before a route is stored for one
        if request.handler not in found.handlers:
            raise UnknownHandler(f"No worker ever advertised a handler named {request.handler!r}.")
        _check_pools(request.labels, found)
    lanes = [_lane(request, found) for request in requests]
    routes: dict[tuple[str, str], int] = {}
    for request in requests:
        pair = request.handler, canonical_labels(request.labels)
        if pair not in routes:
            routes[pair] = found.route_ids.get(pair) or _new_route(*pair, request.labels)
    return [
        _resolve(tenant, request, lane, routes, actor, found)
        for request, lane in zip(requests, lanes, strict=True)
    ]


@commits
def _new_route(handler: str, labels_text: str, labels: dict[str, str]) -> int:
    """Store a pair of handler and labels that is asked for the first time: it is what pools are matched against."""
    # Its key alone: one that the catalog left out may have labels that cannot be read.
    route, _ = Route.objects.only("pk").get_or_create(
        handler=handler, labels_text=labels_text, defaults={"labels": labels}
    )
    return route.pk


def _check_pools(labels: dict[str, str], found: Catalog) -> None:
    pools = found.pools.values()
    if any(can_run(needed=labels, offered=p.labels, exclusive=p.exclusive_labels) for p in pools):
        return
    if not pools:
        raise NoMatchingPool("No pool is stored yet: the first worker that starts makes one.")
    lacking = min((missing_labels(labels, p.labels) for p in pools), key=len)
    wanted = canonical_labels(lacking) or "an exclusive label of every pool"
    raise NoMatchingPool(f"No stored pool could run this job; the nearest one lacks {wanted}.")


def _lane(request: JobRequest, found: Catalog) -> Lane:
    if request.lane is None:
        return found.lane_for(request.priority)
    if (lane := found.lane_named(request.lane)) is None:
        names = ", ".join(lane.name for lane in found.lanes)
        raise ValidationFailed([InvalidField("/lane", "unknown", f"must be one of {names}")])
    return lane


def _resolve(
    tenant: Tenant,
    request: JobRequest,
    lane: Lane,
    routes: dict[tuple[str, str], int],
    actor: str,
    found: Catalog,
) -> NewJob:
    handler = found.handlers[request.handler]
    job_id, shard = place_job(
        tenant_id=tenant.pk,
        request_key=request.request_key,
        spread=min(tenant.shard_spread, conf().shards),  # a tenant may allow more than there are
        shards=conf().shards,
        unix_ms=time.time_ns() // 1_000_000,
        rand_b=secrets.randbits(62),
    )
    return NewJob(
        id=job_id,
        shard=shard,
        tenant_id=tenant.pk,
        handler=request.handler,
        route_id=routes[request.handler, canonical_labels(request.labels)],
        lane_id=lane.pk,
        priority=request.priority,
        payload=request.payload,
        payload_ref=request.payload_ref,
        due_at=request.due_at,
        delay_seconds=request.delay_seconds,
        max_attempts=request.max_attempts or handler.max_attempts,
        retry=request.retry or handler.retry,
        timeout_seconds=request.timeout_seconds or handler.timeout_seconds,
        request_key=request.request_key,
        request_hash=request_hash(dict(request.sent)) if request.request_key else None,
        reference=request.reference,
        tags=request.tags,
        concurrency_key=request.concurrency_key,
        schedule_id=request.schedule_id,
        fire_at=request.fire_at,
        misfire_at=request.misfire_at,
        created_by=actor,
    )


def _existing(tenant: Tenant, lost: Sequence[NewJob]) -> dict[str | None, Job]:
    if not lost:
        return {}
    jobs = Job.objects.filter(
        shard__any=sorted({job.shard for job in lost}),
        tenant=tenant,
        request_key__any=[job.request_key for job in lost],
    )
    return {job.request_key: job for job in jobs}


def _differing(earlier: Job, job: NewJob, request: JobRequest) -> list[str]:
    """Top-level fields whose stored value differs from this request; only the hash of the request was kept."""
    same: dict[str, bool] = {
        "handler": earlier.handler == job.handler,
        "labels": earlier.route_id == job.route_id or earlier.handler != job.handler,
        "payload": _same(earlier.payload, job.payload),
        "lane": earlier.lane_id == job.lane_id,
        "due_at": request.due_at is None or earlier.due_at == request.due_at,
    }
    for name in (
        "payload_ref",
        "priority",
        "reference",
        "max_attempts",
        "timeout_seconds",
        "concurrency_key",
    ):
        same[name] = getattr(earlier, name) == getattr(job, name)
    for name in ("tags", "retry"):
        same[name] = _same(getattr(earlier, name), getattr(job, name))
    differs = sorted(name for name, equal in same.items() if not equal)
    return differs or sorted(set(request.sent) & {"delay_seconds", "due_at"}) or ["due_at"]


def _same(one: Any, other: Any) -> bool:
    return canonical_json(one) == canonical_json(
        list(other) if isinstance(other, tuple) else other
    )
