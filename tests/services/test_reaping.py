"""reap: every lease whose time is over goes where it must, whatever stands beside it."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import DeadLetter, DueEntry, Job, JobEvent, Lease
from jobs.services import reaping
from jobs.services.reaping import Reaped, reap
from jobs.states import Place
from jobs.transitions.requeue import requeue_dead_letter
from tests.factories import (
    SCHEDULER,
    WORKER,
    all_shards,
    dead_letter_of,
    lease_of,
    make_job,
    make_tenant,
    publish,
    take,
)
from tests.support.places import place_of, story, unchanged, watching

pytestmark = pytest.mark.django_db


def sweep(*, shards=None, now=None) -> Reaped:
    """One sweep, late enough for every lease that nobody extended since."""
    return reap(
        shards=all_shards() if shards is None else shards,
        actor=SCHEDULER,
        rng=random.Random(3),
        now=now or database_now() + timedelta(hours=1),
    )


def keep_alive(job: Job) -> None:
    """As if its holder, or the clock, had all the time in the world."""
    Lease.objects.filter(job=job).update(expires_at=database_now() + timedelta(days=1))


@pytest.fixture
def pages_of_two(settings):
    settings.JOBS = {**settings.JOBS, "reap_batch": 2}
    conf.cache_clear()


def last_event(job: Job) -> Any:
    return story(job.pk)[-1]


def test_published_work_is_due_again_and_its_attempt_is_refunded():
    job = make_job(place=Place.PUBLISHED, max_attempts=1)
    assert sweep() == Reaped(seen=1, expired=1)
    job.refresh_from_db()
    assert (job.status, job.attempt, job.attempt_limit) == ("scheduled", 1, 2)
    assert last_event(job).kind == "publish_expired"


def test_the_job_of_a_silent_worker_is_retried_by_its_own_policy_and_says_who_was_lost():
    retry = {"kind": "fixed", "base_seconds": 40, "jitter": 0.25}
    job = make_job(place=Place.RUNNING, retry=retry, max_attempts=2)
    now = database_now() + timedelta(hours=1)
    assert sweep(now=now) == Reaped(seen=1, expired=1)
    job.refresh_from_db()
    assert (job.status, job.attempt, job.attempt_limit) == ("scheduled", 1, 2)
    wait = (DueEntry.objects.get(pk=job.pk).due_at - now).total_seconds()
    assert 30 <= wait <= 50
    told = last_event(job)
    assert (told.kind, told.detail["cause"]) == ("failed", "lease_expired")
    assert told.detail["worker"] == str(WORKER)
    assert (job.last_error or {})["type"] == "WorkerLost"


def test_kf38_a_lost_last_attempt_is_a_dead_letter_after_one_sweep():
    job = make_job(place=Place.RUNNING, max_attempts=1)
    assert sweep() == Reaped(seen=1, expired=1)
    job.refresh_from_db()
    assert (job.status, place_of(job.pk)) == ("dead", Place.DEAD_LETTER)
    letter = dead_letter_of(job)
    assert (letter.reason, letter.error_type) == ("attempts_exhausted", "WorkerLost")
    assert letter.message == "worker lost: lease expired"
    told = last_event(job)
    assert (told.kind, told.detail["cause"]) == ("dead", "lease_expired")
    assert told.detail["reason"] == "attempts_exhausted"


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_job_that_was_asked_to_stop_ends_cancelled_when_its_worker_is_lost(max_attempts):
    job = make_job(place=Place.RUNNING, cancel_asked=True, max_attempts=max_attempts)
    assert sweep() == Reaped(seen=1, expired=1)
    job.refresh_from_db()
    assert (job.status, place_of(job.pk)) == ("cancelled", Place.FINISHED)
    assert last_event(job).detail["cancel"] == "lease_lost"
    assert not DeadLetter.objects.exists()


def test_kf32_each_lost_worker_costs_an_attempt_and_the_last_one_ends_the_job():
    job = make_job(max_attempts=3, retry={"kind": "fixed", "base_seconds": 60, "jitter": 0.5})
    for _ in range(3):
        publish(job.pk, job.shard)
        take(job.pk)
        sweep()
    job.refresh_from_db()
    assert (job.status, job.attempt) == ("dead", 3)
    ends = [told for told in story(job.pk) if told.kind in ("failed", "dead")]
    assert [told.kind for told in ends] == ["failed", "failed", "dead"]
    assert all(told.detail["worker"] == str(WORKER) for told in ends)
    assert all(told.detail["error"]["message"].startswith("worker lost") for told in ends)
    assert all(30 <= told.detail["delay"] <= 90 for told in ends[:2])


@pytest.mark.parametrize("place", [Place.PUBLISHED, Place.RUNNING])
def test_kf22_a_process_that_dies_after_its_commit_leaves_no_job_between_two_places(place):
    job = make_job(place=place, max_attempts=2)  # nobody will ever report on it
    sweep()
    assert place_of(job.pk) is Place.DUE_ENTRY
    job.refresh_from_db()
    assert job.attempt_limit == (3 if place is Place.PUBLISHED else 2)  # refunded if never started
    unfinished = Job.objects.filter(finished_at=None)
    waiting, owned = DueEntry.objects.values("pk"), Lease.objects.values("job_id")
    assert not unfinished.exclude(pk__in=waiting).exclude(pk__in=owned).exists()


def test_live_leases_are_seen_and_left_alone():
    for place in (Place.PUBLISHED, Place.RUNNING):
        keep_alive(make_job(place=place))
    make_job()
    with unchanged():
        assert sweep() == Reaped(seen=2)


def test_a_lease_is_given_the_tolerance_beyond_its_expiry():
    job = make_job(place=Place.RUNNING)
    tolerance = timedelta(seconds=conf().clock_tolerance_seconds)
    last = lease_of(job).expires_at + tolerance
    with unchanged():
        assert sweep(now=last) == Reaped(seen=1)
    assert sweep(now=last + timedelta(microseconds=1)) == Reaped(seen=1, expired=1)


def test_only_the_named_shards_are_swept():
    mine = make_job(place=Place.RUNNING)
    theirs = make_job(place=Place.RUNNING, tenant=make_tenant("globex"))
    assert mine.shard != theirs.shard
    assert sweep(shards=[mine.shard]) == Reaped(seen=1, expired=1)
    assert Lease.objects.get().job_id == theirs.pk
    with unchanged():
        assert sweep(shards=[]) == Reaped()


@pytest.mark.parametrize("leases", [1, 2, 3, 4, 7])
def test_a_sweep_goes_through_all_pages(leases, pages_of_two):
    jobs = [make_job(place=Place.RUNNING) for _ in range(leases)]
    assert sweep() == Reaped(seen=leases, expired=leases)
    assert {place_of(job.pk) for job in jobs} == {Place.DUE_ENTRY}


def test_a_page_of_live_leases_does_not_stop_the_sweep(pages_of_two):
    jobs = [make_job(place=Place.RUNNING) for _ in range(8)]
    by_key = sorted(jobs, key=lambda job: lease_of(job).pk)
    for job in by_key[:6]:
        keep_alive(job)
    assert sweep() == Reaped(seen=8, expired=2)
    assert {place_of(job.pk) for job in by_key[6:]} == {Place.DUE_ENTRY}


def test_a_second_sweep_finds_nothing():
    make_job(place=Place.RUNNING)
    sweep()
    with unchanged():
        assert sweep() == Reaped()


def test_the_neighbours_of_a_job_that_kills_its_worker_come_back_at_different_times():
    jobs = [make_job(place=Place.RUNNING, retry={"kind": "exponential"}) for _ in range(20)]
    now = database_now() + timedelta(hours=1)
    sweep(now=now)
    waits = [DueEntry.objects.get(pk=job.pk).due_at - now for job in jobs]
    assert all(timedelta(seconds=15) <= wait <= timedelta(seconds=45) for wait in waits)
    assert len(set(waits)) == len(jobs)


def test_one_sweep_gives_each_lease_its_own_end_and_is_counted_in_one_log_line(caplog):
    published = make_job(place=Place.PUBLISHED)
    retried = make_job(place=Place.RUNNING)
    dead = make_job(place=Place.RUNNING, max_attempts=1)
    cancelled = make_job(place=Place.RUNNING, cancel_asked=True)
    with watching() as change:
        assert sweep() == Reaped(seen=4, expired=4)
    kinds = {told["job_id"]: told["kind"] for told in change.events}
    assert kinds == {
        published.pk: "publish_expired",
        retried.pk: "failed",
        dead.pk: "dead",
        cancelled.pk: "cancelled",
    }
    assert [(record.message, record.count) for record in caplog.records] == [("leases.expired", 4)]


# Poison: rows that no code of ours writes


def set_retry(job: Job, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("update jobs_job set retry = %s::jsonb where id = %s", [text, job.pk])


POLICIES = {
    "a number": "17",
    "a list": "[]",
    "wrong types": '{"kind": 1}',
    "5,000 digits": '{"kind": "fixed", "base_seconds": 1e5000}',
    "deep": "[" * 2000 + "]" * 2000,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_f65_a_job_whose_stored_policy_cannot_be_read_is_retried_by_the_default_one(policy):
    job = make_job(place=Place.RUNNING)
    neighbour = make_job(place=Place.RUNNING)
    set_retry(job, POLICIES[policy])
    assert sweep() == Reaped(seen=2, expired=2)
    assert {place_of(each.pk) for each in (job, neighbour)} == {Place.DUE_ENTRY}
    assert 15 <= last_event(job).detail["delay"] <= 45


def test_a_lease_whose_attempt_is_no_attempt_number_is_taken_back():
    job = make_job(place=Place.RUNNING)
    Lease.objects.filter(job=job).update(attempt=-3)
    neighbour = make_job(place=Place.RUNNING)
    assert sweep() == Reaped(seen=2, expired=2)
    assert {place_of(each.pk) for each in (job, neighbour)} == {Place.DUE_ENTRY}


def test_a_lease_whose_job_is_gone_does_not_stop_the_sweep_and_does_not_come_back():
    gone = make_job(place=Place.RUNNING)
    Job.objects.filter(pk=gone.pk).delete()
    neighbours = [make_job(place=Place.RUNNING) for _ in range(3)]
    JobEvent.objects.filter(job_id=gone.pk).delete()
    assert sweep() == Reaped(seen=4, expired=3)
    assert {place_of(job.pk) for job in neighbours} == {Place.DUE_ENTRY}
    assert sweep() == Reaped()


def test_f65_leases_that_the_database_refuses_to_end_never_stop_their_neighbours(
    committed, pages_of_two, caplog
):
    refused = [dies_twice(), counts_over()]
    neighbours = [make_job(place=Place.RUNNING) for _ in range(5)]
    neighbours += [make_job(place=Place.PUBLISHED) for _ in range(4)]
    done = sweep()
    assert done == Reaped(seen=11, expired=9, failed=2)
    assert {place_of(job.pk) for job in neighbours} == {Place.DUE_ENTRY}
    failures = [record for record in caplog.records if record.message == "reap.row_failed"]
    assert {record.lease_id for record in failures} == {str(lease_of(job).pk) for job in refused}
    assert sweep() == Reaped(seen=2, failed=2)  # they stay visible and are tried again


def dies_twice() -> Job:
    """A running job, its budget spent, that has an open dead letter already."""
    job = make_job(place=Place.DEAD_LETTER, max_attempts=1)
    letter = dead_letter_of(job)
    requeue_dead_letter(
        shard=job.shard, dead_letter_id=letter.pk, actor="user:anna", note="once more"
    )
    publish(job.pk, job.shard)
    take(job.pk)
    DeadLetter.objects.filter(pk=letter.pk).update(resolution="open", resolved_at=None)
    return job


def counts_over() -> Job:
    """A published job whose budget cannot be refunded: one more does not fit into the column."""
    job = make_job(place=Place.PUBLISHED)
    Job.objects.filter(pk=job.pk).update(attempt_limit=2**31 - 1)
    return job


def test_a_database_that_is_away_ends_the_sweep(monkeypatch):
    make_job(place=Place.RUNNING)

    def away(**kwargs):
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(reaping, "expire_started", away)
    with unchanged(), pytest.raises(OperationalError):
        sweep()
