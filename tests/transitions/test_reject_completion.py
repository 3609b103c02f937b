"""reject_completion: a report that came too late leaves a trace and changes nothing else."""

from __future__ import annotations

import pytest

from jobs.models import Job
from jobs.states import EventKind, JobStatus
from tests.factories import OTHER_WORKER, WORKER, lease_of
from tests.support.moves import (
    acknowledge_cancels,
    claim_batch,
    complete_jobs,
    dead_letter_jobs,
    reject_completion,
    release_jobs,
    retry_jobs,
    snooze_jobs,
    take_batch,
)
from tests.support.places import (
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

# Of a job in this place: status, last event number, current token.
ON_LEASE = {
    Start.PUBLISHED: ("leased", 2),
    Start.RUNNING: ("leased", 3),
    Start.STOPPING: ("leased", 4),
}
ON_JOB = {
    Start.DUE: ("scheduled", 1),
    Start.RETRYING: ("scheduled", 4),
    Start.SUCCEEDED: ("succeeded", 4),
    Start.CANCELLED: ("cancelled", 5),
    Start.DEAD: ("dead", 4),
    Start.DISCARDED: ("dead", 5),
}


@starting_anywhere_but(Start.MISSING)
def test_a_refused_report_is_told_with_both_tokens_and_only_the_event_number_moves(start):
    it = stand(start)
    status, seq = (ON_LEASE | ON_JOB)[start]
    job = it.job
    with watching() as change:
        assert reject_completion(it, worker_id=OTHER_WORKER, token=7)
    table = "Lease" if start in ON_LEASE else "Job"
    assert change.rows == moved(it, **{table: {"seq": seq + 1}})
    assert change.events == [
        event(
            it,
            EventKind.COMPLETION_REJECTED,
            JobStatus(status),
            JobStatus(status),
            seq=seq + 1,
            attempt=job.attempt,
            actor=f"worker:{OTHER_WORKER}",
            lease=it.lease_id,
            token=7,
            detail={
                "reported": "succeeded",
                "current_token": job.lease_token,
                "current_lease": str(it.lease_id) if start in ON_LEASE else None,
            },
        )
    ]


def test_a_job_that_does_not_exist_has_no_history_to_write_to():
    it = stand(Start.MISSING)
    with unchanged():
        assert not reject_completion(it)


@pytest.mark.parametrize(
    "end", [complete_jobs, retry_jobs, dead_letter_jobs, snooze_jobs, release_jobs]
)
def test_a_report_that_was_accepted_before_is_no_rejection(end):
    it = stand(Start.RUNNING)
    assert end(it) == {it.lease_id}
    with unchanged():
        assert not reject_completion(it, worker_id=WORKER)


def test_a_cancel_that_was_acknowledged_before_is_no_rejection():
    it = stand(Start.STOPPING)
    assert acknowledge_cancels(it) == {it.lease_id}
    with unchanged():
        assert not reject_completion(it, worker_id=WORKER)


def test_the_accepted_report_of_one_attempt_does_not_excuse_the_late_one_of_another():
    it = stand(Start.RETRYING)
    claim_batch(it)
    take_batch(it, worker_id=OTHER_WORKER)
    current = lease_of(it.job)
    with watching() as change:
        assert reject_completion(it, worker_id=OTHER_WORKER)
    (told,) = change.events
    assert told["detail"] == {
        "reported": "succeeded",
        "current_token": 2,
        "current_lease": str(current.pk),
    }
    assert (told["lease"], told["token"], told["attempt"]) == (it.lease_id, 1, 2)


@starting(*ON_LEASE, *ON_JOB)
def test_transitions_after_a_rejection_go_on_numbering_without_a_gap(start):
    it = stand(start)
    for _ in range(2):
        assert reject_completion(it)
    with watching():  # checks the numbers of every job at its end
        claim_batch(it)
        take_batch(it)
        complete_jobs(it, results=dict.fromkeys(leases_of(it)))


def leases_of(it):
    return [lease_of(it.job).pk] if it.job.status == JobStatus.LEASED else []


def test_a_lease_of_another_shard_is_not_found():
    it = stand(Start.RUNNING)
    with unchanged():
        assert not reject_completion(it, shard=(it.shard + 1) % 64)
    assert Job.objects.filter(pk=it.job_id).exists()
