"""Every transition called on a `Standing` with the arguments that are right for it; a test overrides one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from jobs.models import DueEntry, Pool
from jobs.policies.sharding import new_job_id
from jobs.transitions import cancel, claim, edit, enqueue, finish, lease, requeue, take, withdraw
from tests.factories import BOOM, SCHEDULER, WORKER
from tests.support.places import Standing

RETRY = {"delay": 90.0, "cause": "error", "error": BOOM}
DEATH = {"reason": "permanent_error", "cause": "error", "error": BOOM}
EXPIRED_RETRY = {**RETRY, "cause": "lease_expired"}
EXPIRED_DEATH = {"reason": "attempts_exhausted", "cause": "lease_expired", "error": BOOM}
NOBODY = UUID("00000000-0000-4000-8000-0000000000ff")


def new_job(it: Standing, **fields: Any) -> enqueue.NewJob:
    """A create request under the key of this job: with its own id while there is none, with another one after."""
    made = it.job_id.int >> 80 != 0  # ids of missing jobs begin with zeros
    values = {
        "id": new_job_id(shard=it.shard, unix_ms=1, rand_b=2) if made else it.job_id,
        "shard": it.shard,
        "tenant_id": it.tenant_id,
        "handler": "billing.charge",
        "route_id": it.route_id,
        "lane_id": 3,
        "max_attempts": 3,
        "retry": {"kind": "fixed"},
        "timeout_seconds": 30.0,
        "request_key": it.request_key,
        "request_hash": bytes(32),
        **fields,
    }
    return enqueue.NewJob(**values)


def create_jobs(it: Standing, **changed: Any) -> set[UUID]:
    given = {"jobs": [new_job(it)], "actor": "token:test0001", "now": it.now, **changed}
    return enqueue.create_jobs(given.pop("jobs"), **given)


def claim_batch(it: Standing, **changed: Any) -> claim.Claimed:
    pool = Pool.objects.get(pk=it.pool_id)
    given = {"shards": [it.shard], "job_ids": [it.job_id], "pool": pool, "actor": SCHEDULER}
    return claim.claim_batch(**{**given, "now": it.now, **changed})


def take_batch(it: Standing, **changed: Any) -> list[take.Taken]:
    given: dict[str, Any] = {"shards": [it.shard], "pool_id": it.pool_id, "limit": 10}
    given |= {"handlers": ["billing.charge"], "worker_id": WORKER, "now": it.now, **changed}
    return take.take_batch(**given)


def extend_leases(it: Standing, **changed: Any) -> dict[UUID, bool]:
    given = {"lease_ids": [it.lease_id], **_held(it), **changed}
    return lease.extend_leases(**given)


def release_jobs(it: Standing, **changed: Any) -> set[UUID]:
    given = {"reasons": {it.lease_id: {"reason": "shutting down"}}, **_held(it), **changed}
    return lease.release_jobs(**given)


def expire_published(it: Standing, **changed: Any) -> set[UUID]:
    given = {"shards": [it.shard], "lease_ids": [it.lease_id], "actor": SCHEDULER, "now": it.now}
    return lease.expire_published(**{**given, **changed})


def expire_started(it: Standing, **changed: Any) -> set[UUID]:
    """With budget left, unless `deaths` says otherwise."""
    given: dict[str, Any] = {"shards": [it.shard], "actor": SCHEDULER, "now": it.now, "deaths": {}}
    given["retries"] = {} if "deaths" in changed else {it.lease_id: EXPIRED_RETRY}
    return lease.expire_started(**{**given, **changed})


def expire_exhausted(it: Standing, **changed: Any) -> set[UUID]:
    """With the budget spent."""
    return expire_started(it, deaths={it.lease_id: EXPIRED_DEATH}, **changed)


def complete_jobs(it: Standing, **changed: Any) -> set[UUID]:
    return finish.complete_jobs(
        **{"results": {it.lease_id: {"paid": True}}, **_held(it), **changed}
    )


def retry_jobs(it: Standing, **changed: Any) -> set[UUID]:
    return finish.retry_jobs(**{"failures": {it.lease_id: RETRY}, **_held(it), **changed})


def dead_letter_jobs(it: Standing, **changed: Any) -> set[UUID]:
    return finish.dead_letter_jobs(**{"failures": {it.lease_id: DEATH}, **_held(it), **changed})


def snooze_jobs(it: Standing, **changed: Any) -> set[UUID]:
    item = {"delay": 3600.0, "reason": "the bank is closed"}
    return finish.snooze_jobs(**{"snoozes": {it.lease_id: item}, **_held(it), **changed})


def cancel_job(it: Standing, **changed: Any) -> cancel.CancelOutcome:
    given = {"shard": it.shard, "job_id": it.job_id, "actor": "user:otto", "reason": "sold out"}
    return cancel.cancel_job(**{**given, "now": it.now, **changed})


def acknowledge_cancels(it: Standing, **changed: Any) -> set[UUID]:
    given = {"stopped": {it.lease_id: {"cancel": "honoured"}}, **_held(it), **changed}
    return cancel.acknowledge_cancels(**given)


def acknowledge_own(it: Standing, **changed: Any) -> set[UUID]:
    """The handler itself decided that the job is void."""
    stopped = {it.lease_id: {"cancel": "by_handler", "reason": "order gone"}}
    return acknowledge_cancels(it, stopped=stopped, by_handler=True, **changed)


def requeue_dead_letter(it: Standing, **changed: Any) -> UUID:
    return requeue.requeue_dead_letter(**{**_letter(it), **changed})


def discard_dead_letter(it: Standing, **changed: Any) -> UUID:
    return requeue.discard_dead_letter(**{**_letter(it), **changed})


def edit_job(it: Standing, **changed: Any) -> None:
    given = {"shard": it.shard, "job_id": it.job_id, "actor": "user:otto", "tags": ["vip"]}
    edit.edit_job(**{**given, "now": it.now, **changed})


def withdraw_jobs(it: Standing, **changed: Any) -> set[UUID]:
    """As of a schedule's job: only those have a time to miss."""
    DueEntry.objects.filter(pk=it.job_id).update(misfire_at=it.now)
    given = {"shards": [it.shard], "job_ids": [it.job_id], "reason": "misfire", "now": it.now}
    return withdraw.withdraw_jobs(**{**given, "actor": SCHEDULER, **changed})


def reject_completion(it: Standing, **changed: Any) -> bool:
    given: dict[str, Any] = {"shard": it.shard, "job_id": it.job_id, "lease_id": it.lease_id}
    given |= {"token": 1, "worker_id": NOBODY, "reported": "succeeded", "now": it.now, **changed}
    return finish.reject_completion(**given)


def _held(it: Standing) -> dict[str, Any]:
    return {"shards": [it.shard], "worker_id": WORKER, "now": it.now}


def _letter(it: Standing) -> dict[str, Any]:
    return {
        "shard": it.shard,
        "dead_letter_id": it.dead_letter_id,
        "actor": "user:otto",
        "note": "provider is back",
        "now": it.now,
    }


# By the names of jobs.states.TRANSITIONS: each way in which the function can be asked.
MOVES: dict[str, tuple[Callable[[Standing], Any], ...]] = {
    "enqueue.create_jobs": (create_jobs,),
    "claim.claim_batch": (claim_batch,),
    "take.take_batch": (take_batch,),
    "withdraw.withdraw_jobs": (withdraw_jobs,),
    "lease.release_jobs": (release_jobs,),
    "lease.expire_published": (expire_published,),
    "lease.expire_started": (expire_started, expire_exhausted),
    "finish.complete_jobs": (complete_jobs,),
    "finish.retry_jobs": (retry_jobs,),
    "finish.dead_letter_jobs": (dead_letter_jobs,),
    "finish.snooze_jobs": (snooze_jobs,),
    "cancel.cancel_job": (cancel_job,),
    "cancel.acknowledge_cancels": (acknowledge_cancels, acknowledge_own),
    "requeue.requeue_dead_letter": (requeue_dead_letter,),
    "requeue.discard_dead_letter": (discard_dead_letter,),
    "edit.edit_job": (edit_job,),
}
