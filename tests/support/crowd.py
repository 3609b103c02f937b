"""Many jobs at once in one place, made in batches by the transitions themselves."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from jobs.conf import conf
from jobs.models import Lease, Route
from jobs.policies.sharding import new_job_id
from jobs.states import Place
from jobs.transitions.claim import claim_batch
from jobs.transitions.enqueue import NewJob, create_jobs
from jobs.transitions.take import take_batch
from tests.factories import SCHEDULER, WORKER, all_shards, make_handler, make_pool, make_tenant

BATCH = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """One job of a crowd. `lease_id` is that of its place; a waiting job has none yet."""

    shard: int
    job_id: UUID
    lease_id: UUID
    token: int = 1


NO_LEASE = UUID(int=0)
HANDLER = "billing.charge"


def make_crowd(
    count: int, *, place: Place = Place.DUE_ENTRY, worker_id: UUID = WORKER, **fields: Any
) -> list[Member]:
    """`count` jobs over all shards, due now, standing in DUE_ENTRY, PUBLISHED or RUNNING; `fields` are of NewJob."""
    model = _model(**fields)
    jobs = [replace(model, **_place(fields.get("shard"))) for _ in range(count)]
    for batch in _batches(jobs):
        create_jobs(batch, actor="token:test0001")
    if place is Place.DUE_ENTRY:
        return [Member(job.shard, job.id, NO_LEASE) for job in jobs]
    publish_all([job.id for job in jobs])
    if place is Place.RUNNING:
        take_all(count, worker_id=worker_id)
    leases = {lease.job_id: lease for lease in Lease.objects.only("id", "job_id", "token")}
    return [Member(job.shard, job.id, leases[job.id].pk, leases[job.id].token) for job in jobs]


def new_job(**fields: Any) -> NewJob:
    """One create request for the crowd's handler, in a random shard unless `shard` is given."""
    return _model(**fields)


def publish_all(job_ids: Sequence[UUID]) -> int:
    """due entry → published, for those of these jobs that are due; how many they were."""
    pool = make_pool()
    done = [
        claim_batch(shards=all_shards(), job_ids=batch, pool=pool, actor=SCHEDULER)
        for batch in _batches(job_ids)
    ]
    return sum(claimed.published for claimed in done)


def take_all(count: int = 1_000_000, *, worker_id: UUID = WORKER) -> list[Any]:
    """published → running, at most `count` of whatever is published."""
    taken: list[Any] = []
    while len(taken) < count:
        batch = take_batch(
            shards=all_shards(),
            pool_id=make_pool().pk,
            handlers=[HANDLER],
            worker_id=worker_id,
            limit=min(BATCH, count - len(taken)),
        )
        if not batch:
            break
        taken += batch
    return taken


def _batches[T](items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _place(shard: int | None) -> dict[str, Any]:
    """Shard and id of a new job."""
    shard = secrets.randbelow(conf().shards) if shard is None else shard
    unix_ms = time.time_ns() // 1_000_000
    return {
        "shard": shard,
        "id": new_job_id(shard=shard, unix_ms=unix_ms, rand_b=secrets.randbits(62)),
    }


def _model(**fields: Any) -> NewJob:
    handler = make_handler(HANDLER)
    route, _ = Route.objects.get_or_create(
        handler=handler.name, labels_text="", defaults={"labels": {}}
    )
    values: dict[str, Any] = {
        "tenant_id": make_tenant().pk,
        "handler": handler.name,
        "route_id": route.pk,
        "lane_id": 3,
        "max_attempts": 5,
        "retry": handler.retry,
        "timeout_seconds": handler.timeout_seconds,
        "payload": {"order": "8812"},
        **fields,
        **_place(fields.get("shard")),
    }
    return NewJob(**values)
