"""release_jobs: the holder gives a job back unfinished; the attempt is refunded."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.states import EventKind, JobStatus
from tests.factories import OTHER_WORKER, WORKER, all_shards
from tests.support.moves import claim_batch, release_jobs
from tests.support.places import (
    GONE,
    Start,
    due_row,
    event,
    moved,
    stand,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db


def test_a_released_job_is_due_at_once_with_its_attempt_refunded():
    it = stand(Start.RUNNING)
    with watching() as change:
        assert release_jobs(it) == {it.lease_id}
    job = {"status": "scheduled", "attempt_limit": 4, "seq": 4, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, DueEntry=due_row(it, it.now), Lease=GONE)
    assert change.events == [
        event(
            it,
            EventKind.RELEASED,
            JobStatus.LEASED,
            JobStatus.SCHEDULED,
            seq=4,
            attempt=1,
            actor=f"worker:{WORKER}",
            lease=it.lease_id,
            token=1,
            due_at=it.now,
            detail={"reason": "shutting down"},
        )
    ]


@starting_anywhere_but(Start.RUNNING)
def test_nothing_but_a_held_lease_without_a_cancel_can_be_released(start):
    it = stand(start)
    with unchanged():
        assert release_jobs(it) == set()


def test_another_worker_an_old_lease_and_another_shard_release_nothing():
    it = stand(Start.RUNNING)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert release_jobs(it, worker_id=OTHER_WORKER) == set()
        assert release_jobs(it, reasons={uuid4(): {"reason": "old"}}) == set()
        assert release_jobs(it, shards=others) == set()


def test_a_second_release_changes_nothing():
    it = stand(Start.RUNNING)
    release_jobs(it)
    with unchanged():
        assert release_jobs(it) == set()


def test_after_a_release_the_next_attempt_has_the_next_number_within_the_larger_budget():
    it = stand(Start.RUNNING)
    release_jobs(it)
    claim_batch(it)
    assert (it.job.attempt, it.job.attempt_limit, it.job.lease_token) == (2, 4, 2)
