"""complete_jobs, retry_jobs, dead_letter_jobs, snooze_jobs: how an attempt ends that its holder reports."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from jobs.models import Lease
from jobs.states import EventKind, JobStatus, Place
from tests.factories import BOOM, OTHER_WORKER, WORKER, all_shards, lease_of, make_job
from tests.support.moves import (
    DEATH,
    RETRY,
    claim_batch,
    complete_jobs,
    dead_letter_jobs,
    retry_jobs,
    snooze_jobs,
    take_batch,
)
from tests.support.places import (
    GONE,
    HELD,
    Standing,
    Start,
    dead_letter_row,
    due_row,
    event,
    moved,
    stand,
    starting,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db

ITEMS = {
    complete_jobs: "results",
    retry_jobs: "failures",
    dead_letter_jobs: "failures",
    snooze_jobs: "snoozes",
}
EVERY_ENDING = pytest.mark.parametrize("end", ITEMS)
UNLESS_CANCELLED = pytest.mark.parametrize("end", [retry_jobs, dead_letter_jobs, snooze_jobs])


def told(it: Standing, kind: EventKind, end: JobStatus, **columns):
    values = {"seq": 4, "attempt": 1, "actor": f"worker:{WORKER}", "lease": it.lease_id}
    return event(it, kind, JobStatus.LEASED, end, **{**values, "token": 1, **columns})


@starting(*HELD)
def test_a_completed_job_succeeded_even_if_a_cancel_came_too_late(start):
    it = stand(start)
    with watching() as change:
        assert complete_jobs(it) == {it.lease_id}
    late = start is Start.STOPPING
    seq = 5 if late else 4
    job = {"status": "succeeded", "result": {"paid": True}, "seq": seq}
    job |= {"finished_at": it.now, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, Lease=GONE)
    detail = {"cancel": "too_late"} if late else None
    assert change.events == [
        told(it, EventKind.SUCCEEDED, JobStatus.SUCCEEDED, seq=seq, detail=detail)
    ]


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, "💥", {"a": [1, None]}])
def test_every_json_value_is_stored_as_the_result(result):
    it = stand(Start.RUNNING, bystanders=False)
    assert complete_jobs(it, results={it.lease_id: result}) == {it.lease_id}
    assert it.job.result == result


def test_a_failed_attempt_waits_for_its_retry():
    it = stand(Start.RUNNING)
    with watching() as change:
        assert retry_jobs(it) == {it.lease_id}
    job = {"status": "scheduled", "last_error": BOOM, "seq": 4, "updated_at": it.now}
    due_at = it.now + timedelta(seconds=90)
    assert change.rows == moved(it, Job=job, DueEntry=due_row(it, due_at), Lease=GONE)
    assert change.events == [
        told(it, EventKind.FAILED, JobStatus.SCHEDULED, due_at=due_at, detail=RETRY)
    ]


def test_a_failed_attempt_without_another_chance_leaves_a_dead_letter():
    it = stand(Start.RUNNING)
    due_at = Lease.objects.get(pk=it.lease_id).due_at
    with watching() as change:
        assert dead_letter_jobs(it) == {it.lease_id}
    letter, row = dead_letter_row(
        it,
        due_at,
        reason="permanent_error",
        error_type="ValueError",
        fingerprint="00ff00ff00ff00ff",
        message="boom",
        attempts=1,
    )
    job = {"status": "dead", "last_error": BOOM, "seq": 4}
    job |= {"finished_at": it.now, "updated_at": it.now}
    assert change.rows == {**moved(it, Job=job, Lease=GONE), ("DeadLetter", letter): row}
    assert change.events == [told(it, EventKind.DEAD, JobStatus.DEAD, detail=DEATH)]


def test_a_snoozed_job_waits_as_long_as_its_handler_asked_and_gets_its_attempt_back():
    it = stand(Start.RUNNING)
    with watching() as change:
        assert snooze_jobs(it) == {it.lease_id}
    job = {"status": "scheduled", "attempt_limit": 4, "seq": 4, "updated_at": it.now}
    due_at = it.now + timedelta(hours=1)
    assert change.rows == moved(it, Job=job, DueEntry=due_row(it, due_at), Lease=GONE)
    detail = {"delay": 3600.0, "reason": "the bank is closed"}
    assert change.events == [
        told(it, EventKind.SNOOZED, JobStatus.SCHEDULED, due_at=due_at, detail=detail)
    ]


@EVERY_ENDING
@starting_anywhere_but(*HELD)
def test_no_ending_is_accepted_for_a_lease_that_is_not_held(end, start):
    it = stand(start)
    with unchanged():
        assert end(it) == set()


@UNLESS_CANCELLED
def test_a_job_that_was_asked_to_stop_does_not_go_on(end):
    it = stand(Start.STOPPING)
    with unchanged():
        assert end(it) == set()


@EVERY_ENDING
def test_the_right_lease_with_another_worker_ends_nothing(end):
    it = stand(Start.RUNNING)
    with unchanged():
        assert end(it, worker_id=OTHER_WORKER) == set()


@EVERY_ENDING
def test_another_lease_id_ends_nothing(end):
    it = stand(Start.RUNNING)
    with unchanged():
        assert end(it, **{ITEMS[end]: {uuid4(): DEATH | RETRY}}) == set()


@EVERY_ENDING
def test_a_lease_of_another_shard_is_left_alone(end):
    it = stand(Start.RUNNING)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert end(it, shards=others) == set()


@EVERY_ENDING
@pytest.mark.parametrize("first", ITEMS)
def test_only_the_first_report_of_an_attempt_counts(end, first):
    it = stand(Start.RUNNING)
    assert first(it) == {it.lease_id}
    with unchanged():
        assert end(it) == set()


@EVERY_ENDING
def test_the_lease_of_an_earlier_attempt_cannot_end_the_attempt_that_runs_now(end):
    it = stand(Start.RETRYING)
    claim_batch(it)
    take_batch(it)
    assert lease_of(it.job).worker == WORKER  # the same worker even: only the lease id differs
    with unchanged():
        assert end(it) == set()


@EVERY_ENDING
def test_a_batch_ends_the_held_leases_and_returns_exactly_those(end):
    it = stand(Start.RUNNING)
    second = lease_of(make_job(request_key="second", place=Place.RUNNING))
    theirs = make_job(request_key="theirs", place=Place.RUNNING, worker_id=OTHER_WORKER)
    named = dict.fromkeys([it.lease_id, second.pk, lease_of(theirs).pk, uuid4()], DEATH | RETRY)
    with watching() as change:
        assert end(it, **{ITEMS[end]: named}) == {it.lease_id, second.pk}
    assert {told["job_id"] for told in change.events} == {it.job_id, second.job_id}


@EVERY_ENDING
def test_an_empty_batch_changes_nothing(end):
    it = stand(Start.RUNNING)
    with unchanged():
        assert end(it, **{ITEMS[end]: {}}) == set()


def test_attempts_and_tokens_grow_over_failures_and_refunds_and_the_budget_follows():
    it = stand(Start.DUE)
    now, seen = it.now, []
    for end in (retry_jobs, snooze_jobs, retry_jobs, snooze_jobs, complete_jobs):
        now += timedelta(days=1)  # after every delay of this story
        assert claim_batch(it, now=now).published == 1
        (taken,) = take_batch(it, now=now)
        item = RETRY if end is not complete_jobs else None
        assert end(it, **{ITEMS[end]: {taken.lease_id: item}, "now": now}) == {taken.lease_id}
        job = it.job
        seen.append((job.attempt, job.lease_token, job.attempt_limit, job.seq))
    assert seen == [(1, 1, 3, 4), (2, 2, 4, 7), (3, 3, 4, 10), (4, 4, 5, 13), (5, 5, 5, 16)]
