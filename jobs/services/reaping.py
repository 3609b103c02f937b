"""reap: leases whose time is over go back to the calendar, to the dead letters, or end as cancelled."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from jobs import telemetry
from jobs.conf import conf
from jobs.database import is_unavailable
from jobs.queries.fleet import ExpiredLease, expired_leases, lease_page
from jobs.services.outcomes import failure_plan
from jobs.transitions.lease import expire_published, expire_started

log = logging.getLogger(__name__)

WORKER_LOST = {
    "type": "WorkerLost",
    "message": "worker lost: lease expired",
    "where": "",
}
FIRST = UUID(int=0)


@dataclass(slots=True)
class Reaped:
    """What one sweep did. `failed` leases could not be processed; they are tried again at the next sweep."""

    seen: int = 0
    expired: int = 0
    failed: int = 0


def reap(
    *,
    shards: Sequence[int],
    actor: str,
    rng: random.Random,
    now: datetime | None = None,
) -> Reaped:
    """Sweep all leases of these shards once, page by page of their key.

    Args:
        shards: Shards to sweep.
        actor: The scheduler, for history.
        rng: For retry jitter, so that the neighbours of a job that kills its worker meet it rarely.
        now: Aware UTC; default is the database clock.
    """
    done = Reaped()
    after, limit = FIRST, conf().reap_batch
    while page := lease_page(shards=shards, after=after, limit=limit, now=now):
        after = page[-1][0]
        lapsed = [lease_id for lease_id, is_lapsed in page if is_lapsed]
        done.seen += len(page)
        if lapsed:
            leases = expired_leases(shards=shards, lease_ids=lapsed)
            _expire(leases, done, shards=shards, actor=actor, rng=rng, now=now)
        if len(page) < limit:
            break
    if done.expired:
        log.warning(telemetry.LEASES_EXPIRED, extra={"count": done.expired})
    return done


def _expire(leases: list[ExpiredLease], done: Reaped, **how: Any) -> None:
    """A page at once; if that fails, one by one, so that a broken row costs only itself."""
    try:
        _expire_page(leases, done, **how)
    except DatabaseError as error:
        if is_unavailable(error):
            raise
        if len(leases) == 1:
            done.failed += 1
            log.exception(telemetry.REAP_ROW_FAILED, extra={"lease_id": str(leases[0].lease_id)})
            return
        for lease in leases:
            _expire([lease], done, **how)


def _expire_page(
    leases: list[ExpiredLease],
    done: Reaped,
    *,
    shards: Sequence[int],
    actor: str,
    rng: random.Random,
    now: datetime | None,
) -> None:
    published = [lease.lease_id for lease in leases if not lease.started]
    plans: dict[bool, dict[UUID, dict[str, Any]]] = {True: {}, False: {}}
    for lease in leases:
        if lease.started:
            again, item = failure_plan(
                attempt=lease.attempt,
                attempt_limit=lease.attempt_limit,
                retry=lease.retry,
                handler=lease.handler,
                error=WORKER_LOST,
                cause="lease_expired",
                rng=rng,
            )
            plans[again][lease.lease_id] = item
    # Counted after each call: it is committed then, even if the next one fails.
    if published:
        done.expired += len(
            expire_published(shards=shards, lease_ids=published, actor=actor, now=now)
        )
    for again, items in plans.items():
        if items:
            plan = {"retries": items if again else {}, "deaths": {} if again else items}
            done.expired += len(expire_started(shards=shards, actor=actor, now=now, **plan))
