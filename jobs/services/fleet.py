"""Process rows: a worker or scheduler makes itself known, says that it lives, and takes its leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from jobs.database import atomically, commits
from jobs.errors import PoolMismatch
from jobs.models import Handler, Pool, SchedulerNode, Worker
from jobs.policies.routing import canonical_labels


@atomically
def ensure_pool(*, name: str, labels: Mapping[str, str] | None, executor: str = "threads") -> Pool:
    """The pool of this name; made from `labels` when there is none.

    Args:
        name: Pool name.
        labels: As given by the worker; None takes what is stored.
        executor: How its workers run handlers.

    Raises:
        PoolMismatch: The stored pool has other labels; two kinds of workers in one pool would run work by chance.
    """
    pool, made = Pool.objects.get_or_create(
        name=name, defaults={"labels": dict(labels or {}), "executor": executor}
    )
    if not made and labels is not None and dict(labels) != pool.labels:
        raise PoolMismatch(
            f"Pool {name!r} is stored with the labels [{canonical_labels(pool.labels)}],"
            f" this worker says [{canonical_labels(labels)}]."
        )
    return pool


@atomically
def advertise_handlers(handlers: Iterable[Handler]) -> None:
    """Store what the fleet can do; the newest advertiser's defaults win."""
    for handler in sorted(
        handlers, key=lambda one: one.name
    ):  # one order for all: no deadlock between workers
        Handler.objects.update_or_create(
            name=handler.name,
            defaults={
                "max_attempts": handler.max_attempts,
                "timeout_seconds": handler.timeout_seconds,
                "retry": handler.retry,
                "transactional": handler.transactional,
                "last_advertised_at": Now(),
            },
        )


@commits
def report_worker(worker_id: UUID, pool: Pool, **facts: Any) -> None:
    """Make or refresh the row of a live worker. It comes back by itself if somebody deleted it."""
    Worker.objects.update_or_create(
        id=worker_id,
        defaults={**facts, "last_seen_at": Now()},
        create_defaults={**facts, "pool": pool},
    )


@commits
def retire_worker(worker_id: UUID) -> None:
    """The worker has stopped in good order; its row says so until it is cleaned away."""
    Worker.objects.filter(pk=worker_id).update(state="stopped", running=0, last_seen_at=Now())


@commits
def report_demand(scheduler_id: UUID, demand: dict[str, Any]) -> None:
    """Tell the other schedulers what waits in the shards of this one, and what it has published."""
    SchedulerNode.objects.filter(pk=scheduler_id).update(demand=demand)
