"""withdraw_jobs and let_late_jobs: a schedule takes back a job that nobody has claimed, or lets a missed one run."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import DueEntry
from jobs.states import EventKind, JobStatus
from jobs.transitions import withdraw
from tests.support.moves import withdraw_jobs
from tests.support.places import (
    GONE,
    Start,
    event,
    moved,
    stand,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db


def test_a_job_that_nobody_claimed_is_taken_back():
    it = stand(Start.DUE)
    DueEntry.objects.filter(pk=it.job_id).update(misfire_at=it.now)
    with watching() as change:
        assert withdraw_jobs(it) == {it.job_id}
    job = {
        "status": "cancelled",
        "finished_at": it.now,
        "updated_at": it.now,
        "seq": 2,
        "cancel_requested_at": it.now,
        "cancel_requested_by": "scheduler:00000000-0000-4000-8000-0000000000aa",
        "cancel_reason": "misfire",
    }
    assert change.rows == moved(it, Job=job, DueEntry=GONE)
    (told,) = change.events
    assert told == event(
        it,
        EventKind.CANCELLED,
        JobStatus.SCHEDULED,
        JobStatus.CANCELLED,
        actor=job["cancel_requested_by"],
        seq=2,
        attempt=0,
        detail={"reason": "misfire", "was": "waiting"},
    )


@starting_anywhere_but(Start.DUE, Start.RETRYING)
def test_what_does_not_wait_stays_as_it_is(start):
    it = stand(start)
    with unchanged():
        assert withdraw_jobs(it) == set()


def test_a_job_that_was_begun_before_is_never_taken_back():
    """It waits for its retry; only what nobody began has a time to miss."""
    it = stand(Start.RETRYING)
    with unchanged():
        given: dict[str, Any] = {"shards": [it.shard], "job_ids": [it.job_id], "reason": "edited"}
        assert withdraw.withdraw_jobs(**given, actor="user:otto", now=it.now) == set()
        assert (
            withdraw.let_late_jobs(shards=[it.shard], until={it.job_id: None}, now=it.now) == set()
        )


def test_a_missed_job_is_let_run_late():
    it = stand(Start.DUE)
    DueEntry.objects.filter(pk=it.job_id).update(misfire_at=it.now)
    with watching() as change:
        assert withdraw.let_late_jobs(shards=[it.shard], until={it.job_id: None}, now=it.now) == {
            it.job_id
        }
    assert change.events == []
    assert DueEntry.objects.get(pk=it.job_id).misfire_at is None


def test_nothing_asked_is_nothing_done(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert withdraw.withdraw_jobs(shards=[], job_ids=[], reason="edited", actor="x") == set()
        assert withdraw.let_late_jobs(shards=[], until={}) == set()
