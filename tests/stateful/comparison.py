"""The rows and histories of the model's tenant against the model, after every step, in three statements."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.database import preparing, rows
from jobs.policies.history import Facts, check_history
from jobs.queries.histories import History, histories
from tests.stateful.model import TOLERANCE, Model, ModelJob, after

ROUNDING = after(0.001)
LEASES = """
select lease.job_id, lease.id, lease.token, lease.attempt, lease.worker, lease.expires_at, lease.cancel_requested,
    pool.name, lease.rank, lease.due_at
from jobs_lease lease join jobs_pool pool on pool.id = lease.pool_id where lease.tenant_id = %(tenant)s"""


class StoredLease(NamedTuple):
    """One lease as it stands in its row."""

    id: UUID
    token: int
    attempt: int
    worker: UUID | None
    expires_at: datetime
    cancel_requested: bool
    pool: str
    rank: datetime
    due_at: datetime


def compare(model: Model, before: dict[UUID, ModelJob], *, tenant: int, shards: list[int]) -> None:
    """Fail where row, history and model differ; then take from the rows what only they can know.

    Args:
        model: What ought to be.
        before: What was, for jobs whose last move a crash may have prevented: each is then as it was, or moved.
        tenant: Whose jobs.
        shards: All of them.
    """
    with preparing():  # planning them is half of what they cost, 8,000 times
        found = {one.job_id: one for one in histories(shards=shards, tenant_id=tenant)}
    assert found.keys() == model.jobs.keys(), "I1, I12: other jobs are stored than were accepted"
    owned = {job_id for job_id, history in found.items() if history.facts.lease}
    stored = rows(LEASES, {"tenant": tenant}, hot=True) if owned else []
    leases = {job_id: StoredLease(*lease) for job_id, *lease in stored}
    assert leases.keys() == owned, "I1: a lease without a job"
    for job_id, history in found.items():
        if job_id in before and history.facts.seq == before[job_id].seq:
            model.jobs[job_id] = before[job_id]
        job = model.jobs[job_id]
        _compare_history(job, history)
        _compare_place(job, history.facts)
        _compare_lease(job, leases.get(job_id))


def _compare_history(job: ModelJob, history: History) -> None:
    broken = check_history(history.events, history.facts, tolerance_seconds=TOLERANCE)
    assert broken == [], f"{job.id}: {broken}\n{history.events}"
    told = [event.kind for event in history.events]
    assert told == job.told, (
        f"I18, I19: {job.id} has the events {told}, it ought to have {job.told}"
    )


def _compare_place(job: ModelJob, facts: Facts) -> None:
    waits, owned = job.place == "due", job.place in ("published", "running")
    said = (job.status, job.attempt, job.limit, job.attempt, waits, owned, job.worker)
    stored = (
        *(facts.status, facts.attempt, facts.attempt_limit, facts.lease_token),
        *(facts.has_due_entry, facts.lease is not None),
        UUID(facts.lease.worker) if facts.lease and facts.lease.worker else None,
    )
    assert stored == said, f"{job.id}: {stored} is stored, it ought to be {said}"
    assert facts.open_dead_letters == (job.place == "letter"), f"{job.id}: open dead letters"
    if waits:
        assert facts.due_at is not None
        low, high = job.due
        assert low - ROUNDING <= facts.due_at <= high + ROUNDING, (
            f"I10: {job.id} is due at {facts.due_at}, it ought to be from {low} to {high}"
        )
        job.due = (facts.due_at, facts.due_at)


def _compare_lease(job: ModelJob, lease: StoredLease | None) -> None:
    if lease is None:
        return  # its presence was compared with the place already
    if job.lease is None:
        assert lease.id not in job.leases, f"I3: {job.id} is owned under an old lease again"
        job.lease = lease.id
        job.leases.add(lease.id)
    due_at = job.lease_due or job.due[0]
    said = StoredLease(
        id=job.lease,
        token=job.attempt,
        attempt=job.attempt,
        worker=job.worker,
        expires_at=job.expires_at or due_at,
        cancel_requested=job.asked,
        pool=job.published_in,
        rank=job.rank,
        due_at=due_at,
    )
    assert lease == said, f"{job.id}: the lease is {lease}, it ought to be {said}"
