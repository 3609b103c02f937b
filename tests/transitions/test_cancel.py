"""cancel_job and acknowledge_cancels: nobody runs a cancelled job; whoever runs one is asked to stop."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.errors import AlreadyFinished, JobRunning, NotFound
from jobs.models import DueEntry, Job
from jobs.states import EventKind, JobStatus, Place
from jobs.transitions.cancel import CancelOutcome
from tests.factories import BOOM, OTHER_WORKER, WORKER, all_shards, lease_of, make_job
from tests.support.moves import (
    acknowledge_cancels,
    acknowledge_own,
    cancel_job,
    claim_batch,
    complete_jobs,
    retry_jobs,
    take_batch,
)
from tests.support.places import (
    GONE,
    HELD,
    WAITING,
    Start,
    event,
    moved,
    stand,
    starting,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db

IF_RUNNING = pytest.mark.parametrize("if_running", ["ask", "refuse"])


def asked(it, **columns):
    """Columns of the job that tell who asked."""
    who = {"cancel_requested_at": it.now, "cancel_requested_by": "user:otto"}
    return {**who, "cancel_reason": "sold out", "updated_at": it.now, **columns}


@IF_RUNNING
@starting(*WAITING)
def test_a_waiting_job_is_cancelled_and_never_runs(start, if_running):
    it = stand(start)
    seq, attempt = (2, 0) if start is Start.DUE else (5, 1)
    with watching() as change:
        assert cancel_job(it, if_running=if_running) == CancelOutcome("cancelled")
    job = asked(it, status="cancelled", finished_at=it.now, seq=seq)
    assert change.rows == moved(it, Job=job, DueEntry=GONE)
    assert change.events == [
        event(
            it,
            EventKind.CANCELLED,
            JobStatus.SCHEDULED,
            JobStatus.CANCELLED,
            seq=seq,
            attempt=attempt,
            actor="user:otto",
            detail={"reason": "sold out", "was": "waiting"},
        )
    ]


@IF_RUNNING
def test_a_published_job_is_cancelled_and_never_runs(if_running):
    it = stand(Start.PUBLISHED)
    with watching() as change:
        assert cancel_job(it, if_running=if_running) == CancelOutcome("cancelled")
    job = asked(it, status="cancelled", finished_at=it.now, seq=3)
    assert change.rows == moved(it, Job=job, Lease=GONE)
    assert change.events == [
        event(
            it,
            EventKind.CANCELLED,
            JobStatus.LEASED,
            JobStatus.CANCELLED,
            seq=3,
            attempt=1,
            actor="user:otto",
            lease=it.lease_id,
            token=1,
            detail={"reason": "sold out", "was": "published"},
        )
    ]


def test_the_worker_of_a_running_job_is_asked_and_the_job_stays_leased():
    it = stand(Start.RUNNING)
    with watching() as change:
        assert cancel_job(it) == CancelOutcome("cancel_requested")
    lease = {"cancel_requested": True, "seq": 4}
    assert change.rows == moved(it, Job=asked(it), Lease=lease)
    assert change.events == [
        event(
            it,
            EventKind.CANCEL_REQUESTED,
            JobStatus.LEASED,
            JobStatus.LEASED,
            seq=4,
            attempt=1,
            actor="user:otto",
            lease=it.lease_id,
            token=1,
            detail={"reason": "sold out", "was": "running"},
        )
    ]


@starting(*HELD)
def test_a_caller_who_does_not_want_to_interrupt_is_refused(start):
    it = stand(start)
    with unchanged(), pytest.raises(JobRunning) as refused:
        cancel_job(it, if_running="refuse")
    assert refused.value.current == "leased"


def test_asking_a_second_time_changes_nothing_and_says_so():
    it = stand(Start.STOPPING)
    with unchanged():
        assert cancel_job(it) == CancelOutcome("cancel_requested", already=True)


@IF_RUNNING
def test_a_cancelled_job_is_cancelled_already(if_running):
    it = stand(Start.CANCELLED)
    with unchanged():
        assert cancel_job(it, if_running=if_running) == CancelOutcome("cancelled", already=True)


@IF_RUNNING
@starting(Start.SUCCEEDED, Start.DEAD, Start.DISCARDED)
def test_a_finished_job_cannot_be_cancelled(start, if_running):
    it = stand(start)
    with unchanged(), pytest.raises(AlreadyFinished) as refused:
        cancel_job(it, if_running=if_running)
    assert refused.value.current == ("succeeded" if start is Start.SUCCEEDED else "dead")


@IF_RUNNING
def test_an_unknown_job_cannot_be_cancelled(if_running):
    it = stand(Start.MISSING)
    with unchanged(), pytest.raises(NotFound):
        cancel_job(it, if_running=if_running)


@starting_anywhere_but(Start.MISSING)
def test_a_job_is_looked_for_in_its_own_shard_only(start):
    it = stand(start)
    with unchanged(), pytest.raises(NotFound):
        cancel_job(it, shard=(it.shard + 1) % len(all_shards()))


def test_the_worker_that_has_the_job_is_told_at_once(django_capture_on_commit_callbacks):
    it = stand(Start.RUNNING)
    for hints in (1, 0):  # the second request is no news
        with django_capture_on_commit_callbacks() as planned:
            cancel_job(it)
        assert len(planned) == hints


# acknowledge_cancels


def ended(it, seq, **detail):
    return event(
        it,
        EventKind.CANCELLED,
        JobStatus.LEASED,
        JobStatus.CANCELLED,
        seq=seq,
        attempt=1,
        actor=f"worker:{WORKER}",
        lease=it.lease_id,
        token=1,
        detail=detail,
    )


def test_an_attempt_that_stopped_as_asked_is_cancelled():
    it = stand(Start.STOPPING)
    with watching() as change:
        assert acknowledge_cancels(it) == {it.lease_id}
    job = {"status": "cancelled", "finished_at": it.now, "seq": 5, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, Lease=GONE)
    assert change.events == [ended(it, 5, cancel="honoured")]


def test_the_error_of_a_stopped_attempt_is_kept():
    it = stand(Start.STOPPING)
    with watching() as change:
        acknowledge_cancels(it, stopped={it.lease_id: {"cancel": "honoured", "error": BOOM}})
    job = {"status": "cancelled", "finished_at": it.now, "seq": 5, "updated_at": it.now}
    assert change.rows == moved(it, Job={**job, "last_error": BOOM}, Lease=GONE)
    assert change.events == [ended(it, 5, cancel="honoured", error=BOOM)]


def test_an_earlier_error_stays_when_the_stopped_attempt_had_none():
    it = stand(Start.RETRYING)
    claim_batch(it)
    (taken,) = take_batch(it)
    cancel_job(it)
    acknowledge_cancels(it, stopped={taken.lease_id: {"cancel": "honoured"}})
    assert (it.job.status, it.job.last_error) == ("cancelled", BOOM)


@starting_anywhere_but(Start.STOPPING)
def test_nothing_is_acknowledged_that_nobody_asked_for(start):
    it = stand(start)
    with unchanged():
        assert acknowledge_cancels(it) == set()


@starting(*HELD)
def test_a_handler_may_declare_its_own_job_void(start):
    it = stand(start)
    seq = 4 if start is Start.RUNNING else 5
    with watching() as change:
        assert acknowledge_own(it) == {it.lease_id}
    job = {"status": "cancelled", "finished_at": it.now, "seq": seq, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, Lease=GONE)
    assert change.events == [ended(it, seq, cancel="by_handler", reason="order gone")]


@starting_anywhere_but(*HELD)
def test_a_job_that_is_not_held_cannot_be_declared_void(start):
    it = stand(start)
    with unchanged():
        assert acknowledge_own(it) == set()


@pytest.mark.parametrize("acknowledge", [acknowledge_cancels, acknowledge_own])
def test_another_worker_lease_or_shard_acknowledges_nothing(acknowledge):
    it = stand(Start.STOPPING)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert acknowledge(it, worker_id=OTHER_WORKER) == set()
        assert acknowledge(it, shards=others) == set()
    with unchanged():
        assert acknowledge_cancels(it, stopped={uuid4(): {"cancel": "honoured"}}) == set()


def test_a_second_acknowledgement_changes_nothing():
    it = stand(Start.STOPPING)
    acknowledge_cancels(it)
    with unchanged():
        assert acknowledge_cancels(it) == set()
        assert acknowledge_own(it) == set()


def test_only_the_stopped_attempts_of_a_batch_end():
    it = stand(Start.STOPPING)
    running = lease_of(make_job(request_key="running", place=Place.RUNNING))
    stopped = {it.lease_id: {"cancel": "honoured"}, running.pk: {"cancel": "honoured"}}
    assert acknowledge_cancels(it, stopped=stopped) == {it.lease_id}


@starting(*WAITING, Start.PUBLISHED)
def test_kf30_after_cancelled_was_answered_no_claim_and_no_take_can_start_the_job(start):
    it = stand(start)
    assert cancel_job(it).outcome == "cancelled"
    with unchanged():
        assert claim_batch(it).published == 0
        assert take_batch(it) == []
        assert complete_jobs(it) == set()


def test_kf31_a_job_asked_to_stop_is_not_cancelled_until_it_stops_and_ends_once():
    it = stand(Start.RUNNING)
    cancel_job(it)
    assert it.job.status == "leased"
    assert complete_jobs(it) == {it.lease_id}  # the handler was faster
    with unchanged():
        assert acknowledge_cancels(it) == set()
        with pytest.raises(AlreadyFinished):
            cancel_job(it)


def test_kf29_a_cancelled_job_has_no_due_time_left_and_no_retry_brings_it_back():
    it = stand(Start.STOPPING)
    with unchanged():
        assert retry_jobs(it) == set()
    acknowledge_cancels(it, stopped={it.lease_id: {"cancel": "honoured", "error": BOOM}})
    with unchanged():
        assert retry_jobs(it) == set()
    assert not DueEntry.objects.filter(pk=it.job_id).exists()
    assert Job.objects.get(pk=it.job_id).status == "cancelled"
