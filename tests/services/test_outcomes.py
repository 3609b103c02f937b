"""report_outcomes: every way in which an attempt can end, through the one transition it calls for."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from jobs.models import DeadLetter, DueEntry, Job, Lease
from jobs.policies.retry import DEFAULT_POLICY, delay_seconds
from jobs.services.outcomes import AttemptOutcome, Ending, failure_plan, report_outcomes
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.lease import expire_started
from tests.factories import OTHER_WORKER, SCHEDULER, WORKER, all_shards, make_job, publish, take
from tests.support.moves import EXPIRED_RETRY
from tests.support.places import story, unchanged, watching

pytestmark = pytest.mark.django_db

ERROR = {"type": "ValueError", "message": "order 17 is closed", "where": "shop.tills:close:12"}


def attempt(worker_id=WORKER, *, cancel_asked=False, **fields: Any):
    """A job whose first attempt this worker has begun."""
    made = make_job(place=Place.PUBLISHED, **fields)
    taken = take(made.pk, worker_id)
    if cancel_asked:
        ask_to_stop(taken)
    return taken


def ask_to_stop(taken):
    cancel_job(shard=taken.shard, job_id=taken.job_id, actor="user:anna", reason="withdrawn")


def expire(taken):
    """Take the lease back, as if its worker had been silent for too long."""
    late = Lease.objects.get(pk=taken.lease_id).expires_at + timedelta(minutes=1)
    plan = {taken.lease_id: EXPIRED_RETRY}
    ended = expire_started(
        shards=[taken.shard], actor=SCHEDULER, retries=plan, deaths={}, now=late
    )
    assert ended == {taken.lease_id}


def report(*outcomes, worker_id=WORKER):
    return report_outcomes(
        shards=all_shards(), worker_id=worker_id, outcomes=outcomes, rng=random.Random(1)
    )


def failed(taken, **more: Any):
    return AttemptOutcome(taken=taken, ending=Ending.FAILED, error=ERROR, **more)


def last_event(taken):
    return story(taken.job_id)[-1]


def job_of(taken):
    return Job.objects.get(pk=taken.job_id)


def wait_of(taken):
    """Seconds from the end of the attempt to the next due time."""
    due_at = DueEntry.objects.get(pk=taken.job_id).due_at
    return (due_at - last_event(taken).at).total_seconds()


def test_a_success_stores_its_result():
    taken = attempt()
    outcome = AttemptOutcome(taken=taken, ending=Ending.SUCCEEDED, result={"receipt": "r-17"})
    assert report(outcome) == []
    job = job_of(taken)
    assert (job.status, job.result) == ("succeeded", {"receipt": "r-17"})


def test_a_failure_is_retried_after_the_delay_of_the_jobs_own_policy():
    taken = attempt(retry={"kind": "fixed", "base_seconds": 77, "jitter": 0})
    assert report(failed(taken)) == []
    assert job_of(taken).status == "scheduled"
    assert wait_of(taken) == 77
    told = last_event(taken)
    assert (told.kind, told.detail["cause"]) == ("failed", "error")


def test_the_stored_error_names_the_attempt_and_groups_with_its_like():
    errors = []
    for number in (17, 18):
        taken = attempt()
        error = {**ERROR, "message": f"order {number} is closed"}
        report(AttemptOutcome(taken=taken, ending=Ending.FAILED, error=error))
        errors.append(job_of(taken).last_error)
        assert last_event(taken).detail["error"] == errors[-1]
    assert [error["message"] for error in errors] == ["order 17 is closed", "order 18 is closed"]
    assert errors[0]["attempt"] == 1
    assert errors[0]["fingerprint"] == errors[1]["fingerprint"]
    assert len(errors[0]["fingerprint"]) == 16


def test_the_last_attempt_leaves_a_dead_letter():
    taken = attempt(max_attempts=1)
    assert report(failed(taken)) == []
    assert job_of(taken).status == "dead"
    letter = DeadLetter.objects.get(job_id=taken.job_id)
    assert (letter.reason, letter.attempts) == ("attempts_exhausted", 1)
    assert (letter.error_type, letter.message) == ("ValueError", "order 17 is closed")


def test_a_permanent_failure_is_dead_at_once():
    taken = attempt(max_attempts=5)
    report(failed(taken, permanent=True))
    assert DeadLetter.objects.get(job_id=taken.job_id).reason == "permanent_error"


def test_a_handler_may_ask_for_its_own_delay_and_still_uses_up_the_attempt():
    taken = attempt(retry={"kind": "fixed", "base_seconds": 1, "jitter": 0}, max_attempts=2)
    report(failed(taken, delay_seconds=500.0))
    assert wait_of(taken) == 500
    publish(taken.job_id, taken.shard)
    again = take(taken.job_id)
    report(failed(again, delay_seconds=500.0))
    assert job_of(taken).status == "dead"


@pytest.mark.parametrize("cause", ["error", "timeout", "worker_lost"])
def test_the_cause_of_a_failure_is_told(cause):
    taken = attempt()
    report(failed(taken, cause=cause))
    assert last_event(taken).detail["cause"] == cause


def test_a_snooze_waits_as_asked_and_gives_the_attempt_back():
    taken = attempt(max_attempts=1)
    outcome = AttemptOutcome(
        taken=taken, ending=Ending.SNOOZED, delay_seconds=3600.0, reason="bank closed"
    )
    assert report(outcome) == []
    assert wait_of(taken) == 3600
    job = job_of(taken)
    assert (job.status, job.attempt, job.attempt_limit) == ("scheduled", 1, 2)
    assert last_event(taken).detail["reason"] == "bank closed"


def test_a_release_is_due_at_once_and_gives_the_attempt_back():
    taken = attempt(max_attempts=1)
    assert report(AttemptOutcome(taken=taken, ending=Ending.RELEASED, reason="drain")) == []
    assert wait_of(taken) == 0
    assert (job_of(taken).attempt, job_of(taken).attempt_limit) == (1, 2)


@pytest.mark.parametrize("cancel_asked", [True, False])
def test_a_handler_may_end_its_job_as_void(cancel_asked):
    taken = attempt(cancel_asked=cancel_asked)
    outcome = AttemptOutcome(
        taken=taken, ending=Ending.CANCELLED, by_handler=True, reason="order gone"
    )
    assert report(outcome) == []
    assert job_of(taken).status == "cancelled"
    assert last_event(taken).detail == {"cancel": "by_handler", "reason": "order gone"}


def test_an_attempt_that_stopped_as_asked_ends_cancelled():
    taken = attempt(cancel_asked=True)
    assert report(AttemptOutcome(taken=taken, ending=Ending.CANCELLED)) == []
    assert job_of(taken).status == "cancelled"
    assert last_event(taken).detail == {"cancel": "honoured"}


def test_kf31_a_success_beats_a_cancel_that_was_asked_too_late():
    taken = attempt(cancel_asked=True)
    assert report(AttemptOutcome(taken=taken, ending=Ending.SUCCEEDED)) == []
    assert job_of(taken).status == "succeeded"
    assert last_event(taken).detail == {"cancel": "too_late"}
    finals = {"succeeded", "cancelled", "dead"}
    assert [told.kind for told in story(taken.job_id) if told.kind in finals] == ["succeeded"]


@pytest.mark.parametrize("more", [{}, {"permanent": True}, {"delay_seconds": 5.0}])
def test_kf29_a_job_that_fails_after_its_cancel_was_asked_is_cancelled_with_that_error(more):
    taken = attempt(cancel_asked=True, max_attempts=5)
    assert report(failed(taken, **more)) == []
    job = job_of(taken)
    assert (job.status, job.attempt) == ("cancelled", 1)
    assert job.last_error["message"] == "order 17 is closed"
    assert not DueEntry.objects.filter(pk=job.pk).exists()
    assert not DeadLetter.objects.exists()
    asked, ended = story(job.pk)[-2:]
    assert (asked.kind, asked.actor) == ("cancel_requested", "user:anna")
    assert (ended.kind, ended.actor) == ("cancelled", f"worker:{WORKER}")
    assert ended.detail["error"]["type"] == "ValueError"


@pytest.mark.parametrize("ending", [Ending.SNOOZED, Ending.RELEASED])
def test_kf29_a_job_that_would_wait_again_is_cancelled_when_that_was_asked(ending):
    taken = attempt(cancel_asked=True)
    outcome = AttemptOutcome(taken=taken, ending=ending, delay_seconds=5.0, reason="later")
    assert report(outcome) == []
    assert job_of(taken).status == "cancelled"
    assert not DueEntry.objects.filter(pk=taken.job_id).exists()


def test_one_batch_may_hold_every_ending():
    taken = [attempt(max_attempts=2) for _ in range(6)]
    stopped = attempt(cancel_asked=True)
    outcomes = [
        AttemptOutcome(taken=taken[0], ending=Ending.SUCCEEDED),
        failed(taken[1]),
        failed(taken[2], permanent=True),
        AttemptOutcome(taken=taken[3], ending=Ending.SNOOZED, delay_seconds=1.0),
        AttemptOutcome(taken=taken[4], ending=Ending.RELEASED),
        AttemptOutcome(taken=taken[5], ending=Ending.CANCELLED, by_handler=True),
        AttemptOutcome(taken=stopped, ending=Ending.CANCELLED),
    ]
    with watching() as change:
        assert report(*outcomes) == []
    kinds = {told["job_id"]: told["kind"] for told in change.events}
    assert [kinds[each.job_id] for each in (*taken, stopped)] == [
        "succeeded",
        "failed",
        "dead",
        "snoozed",
        "released",
        "cancelled",
        "cancelled",
    ]


@pytest.mark.parametrize(
    "outcome",
    [
        {"ending": Ending.SUCCEEDED, "result": 1},
        {"ending": Ending.FAILED, "error": ERROR},
        {"ending": Ending.FAILED, "error": ERROR, "permanent": True},
        {"ending": Ending.SNOOZED, "delay_seconds": 1.0},
        {"ending": Ending.RELEASED},
        {"ending": Ending.CANCELLED, "by_handler": True},
    ],
    ids=str,
)
def test_a_report_that_is_sent_again_changes_nothing_and_is_no_rejection(outcome):
    sent = AttemptOutcome(taken=attempt(), **outcome)
    assert report(sent) == []
    with unchanged():
        assert report(sent) == []


def test_kf25_a_stale_report_is_refused_and_leaves_both_tokens_in_history(caplog):
    stale = attempt()
    expire(stale)
    publish(stale.job_id, stale.shard)
    current = take(stale.job_id, OTHER_WORKER)
    winner = AttemptOutcome(taken=current, ending=Ending.SUCCEEDED, result={"by": "the new owner"})

    for outcome in (
        AttemptOutcome(taken=stale, ending=Ending.SUCCEEDED, result={"by": "the old one"}),
        failed(stale),
    ):
        with watching() as change:
            assert report(outcome) == [outcome]
        (told,) = change.events
        assert told["kind"] == "completion_rejected"
        assert (told["token"], told["lease"]) == (1, stale.lease_id)
        assert told["detail"] == {
            "reported": outcome.ending.value,
            "current_token": 2,
            "current_lease": str(current.lease_id),
        }
        assert set(change.rows) == {("Lease", stale.job_id)}  # only the event number moved
    assert [record.message for record in caplog.records] == ["completion.rejected"] * 2

    assert report(winner, worker_id=OTHER_WORKER) == []
    job = job_of(stale)
    assert (job.status, job.result, job.attempt) == ("succeeded", {"by": "the new owner"}, 2)
    assert [told.kind for told in story(job.pk)].count("succeeded") == 1


def test_kf25_the_same_lease_reported_by_another_process_of_that_name_is_refused():
    taken = attempt()
    stolen = AttemptOutcome(taken=taken, ending=Ending.SUCCEEDED)
    assert report(stolen, worker_id=OTHER_WORKER) == [stolen]
    assert job_of(taken).status == "leased"
    assert last_event(taken).kind == "completion_rejected"
    assert report(stolen) == []


def test_a_stale_report_in_a_batch_does_not_hold_up_the_others():
    stale = AttemptOutcome(taken=attempt(), ending=Ending.SUCCEEDED)
    expire(stale.taken)
    good = AttemptOutcome(taken=attempt(), ending=Ending.SUCCEEDED)
    assert report(stale, good) == [stale]
    assert job_of(good.taken).status == "succeeded"


# Outcomes that are odd, and rows that a hand wrote


def test_kf34_a_class_name_longer_than_its_column_is_cut_and_not_lost():
    taken = attempt(max_attempts=1)
    error = {**ERROR, "type": "Very" * 60 + "LongError"}
    assert report(AttemptOutcome(taken=taken, ending=Ending.FAILED, error=error)) == []
    letter = DeadLetter.objects.get(job_id=taken.job_id)
    assert letter.error_type == error["type"][:200]
    assert job_of(taken).last_error["type"] == error["type"]


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_kf33_a_failure_without_any_error_is_recorded_all_the_same(max_attempts):
    taken = attempt(max_attempts=max_attempts)
    assert report(AttemptOutcome(taken=taken, ending=Ending.FAILED)) == []
    assert job_of(taken).status == ("dead" if max_attempts == 1 else "scheduled")
    assert job_of(taken).last_error["message"] == ""


@pytest.mark.parametrize(
    "retry",
    [
        "null",
        "17",
        '"fixed"',
        "[]",
        "{}",
        '{"kind": "never"}',
        '{"kind": ["fixed"]}',
        '{"kind": "fixed", "base_seconds": "soon"}',
        '{"kind": "fixed", "base_seconds": -5}',
        '{"kind": "list", "delays": {}}',
        '{"kind": "fixed", "base_seconds": 1' + "0" * 5000 + "}",
        "[" * 5000 + "]" * 5000,
        "[" * 200_000 + "]" * 200_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_stored_policy_that_cannot_be_read_becomes_the_default(retry):
    again, item = failure_plan(
        attempt=1,
        attempt_limit=3,
        retry=retry,
        handler="h",
        error=ERROR,
        cause="error",
        rng=random.Random(7),
    )
    assert again
    assert item["delay"] == delay_seconds(DEFAULT_POLICY, 1, random.Random(7))


def test_an_empty_report_does_nothing():
    with unchanged():
        assert report() == []
