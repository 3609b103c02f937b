"""expire_published and expire_started: a lease whose time is over, by the database's clock and the tolerance."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.conf import conf
from jobs.models import Lease
from jobs.states import EventKind, JobStatus, Place
from tests.factories import BOOM, SCHEDULER, WORKER, all_shards, lease_of, make_job
from tests.support.moves import (
    EXPIRED_DEATH,
    EXPIRED_RETRY,
    claim_batch,
    expire_exhausted,
    expire_published,
    expire_started,
    extend_leases,
)
from tests.support.places import (
    GONE,
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

EXPIRE_STARTED = pytest.mark.parametrize("expire", [expire_started, expire_exhausted])


def expiry_of(it: Standing):
    """The last moment at which the lease must not be taken back."""
    tolerance = timedelta(seconds=conf().clock_tolerance_seconds)
    return Lease.objects.get(pk=it.lease_id).expires_at + tolerance


def test_published_work_that_nobody_took_is_due_again_with_its_attempt_refunded():
    it = stand(Start.PUBLISHED)
    lease = Lease.objects.get(pk=it.lease_id)
    with watching() as change:
        assert expire_published(it) == {it.lease_id}
    job = {"status": "scheduled", "attempt_limit": 4, "seq": 3, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, DueEntry=due_row(it, it.now), Lease=GONE)
    assert change.events == [
        event(
            it,
            EventKind.PUBLISH_EXPIRED,
            JobStatus.LEASED,
            JobStatus.SCHEDULED,
            seq=3,
            attempt=1,
            actor=SCHEDULER,
            lease=it.lease_id,
            token=1,
            due_at=it.now,
            detail={"expires_at": lease.expires_at},
        )
    ]


@starting_anywhere_but(Start.PUBLISHED)
def test_nothing_but_published_work_expires_unstarted(start):
    it = stand(start)
    with unchanged():
        assert expire_published(it) == set()


def lost(it: Standing, lease: Lease, **more):
    """What the event tells of the worker that went silent."""
    return {
        "cause": "lease_expired",
        "error": BOOM,
        "worker": str(WORKER),
        "expires_at": lease.expires_at,
        "heartbeat_at": lease.heartbeat_at,
        **more,
    }


def test_a_silent_workers_job_waits_for_its_next_attempt():
    it = stand(Start.RUNNING)
    lease = Lease.objects.get(pk=it.lease_id)
    with watching() as change:
        assert expire_started(it) == {it.lease_id}
    job = {"status": "scheduled", "last_error": BOOM, "seq": 4, "updated_at": it.now}
    due = due_row(it, it.now + timedelta(seconds=90))
    assert change.rows == moved(it, Job=job, DueEntry=due, Lease=GONE)
    assert change.events == [
        event(
            it,
            EventKind.FAILED,
            JobStatus.LEASED,
            JobStatus.SCHEDULED,
            seq=4,
            attempt=1,
            actor=SCHEDULER,
            lease=it.lease_id,
            token=1,
            due_at=it.now + timedelta(seconds=90),
            detail=lost(it, lease, delay=90.0),
        )
    ]


def test_a_silent_workers_job_is_dead_when_its_budget_is_spent():
    it = stand(Start.RUNNING)
    lease = Lease.objects.get(pk=it.lease_id)
    with watching() as change:
        assert expire_exhausted(it) == {it.lease_id}
    letter, row = dead_letter_row(
        it,
        lease.due_at,
        reason="attempts_exhausted",
        error_type="ValueError",
        fingerprint="00ff00ff00ff00ff",
        message="boom",
        attempts=1,
    )
    job = {
        "status": "dead",
        "last_error": BOOM,
        "seq": 4,
        "finished_at": it.now,
        "updated_at": it.now,
    }
    assert change.rows == {**moved(it, Job=job, Lease=GONE), ("DeadLetter", letter): row}
    assert change.events == [
        event(
            it,
            EventKind.DEAD,
            JobStatus.LEASED,
            JobStatus.DEAD,
            seq=4,
            attempt=1,
            actor=SCHEDULER,
            lease=it.lease_id,
            token=1,
            detail=lost(it, lease, reason="attempts_exhausted"),
        )
    ]


@EXPIRE_STARTED
def test_a_cancel_that_was_asked_wins_over_retry_and_death(expire):
    it = stand(Start.STOPPING)
    lease = Lease.objects.get(pk=it.lease_id)
    with watching() as change:
        assert expire(it) == {it.lease_id}
    job = {
        "status": "cancelled",
        "last_error": BOOM,
        "seq": 5,
        "finished_at": it.now,
        "updated_at": it.now,
    }
    assert change.rows == moved(it, Job=job, Lease=GONE)
    (told,) = change.events
    plan = EXPIRED_RETRY if expire is expire_started else EXPIRED_DEATH
    assert told == event(
        it,
        EventKind.CANCELLED,
        JobStatus.LEASED,
        JobStatus.CANCELLED,
        seq=5,
        attempt=1,
        actor=SCHEDULER,
        lease=it.lease_id,
        token=1,
        detail={**plan, **lost(it, lease, cancel="lease_lost")},
    )


@EXPIRE_STARTED
@starting_anywhere_but(Start.RUNNING, Start.STOPPING)
def test_nothing_but_a_held_lease_expires_as_started(expire, start):
    it = stand(start)
    with unchanged():
        assert expire(it) == set()


@pytest.mark.parametrize("expire", [expire_published, expire_started, expire_exhausted])
@starting(Start.PUBLISHED, Start.RUNNING, Start.STOPPING)
def test_no_lease_expires_before_its_expiry_and_the_tolerance_have_passed(expire, start):
    it = stand(start)
    with unchanged():
        assert expire(it, now=expiry_of(it)) == set()
    is_published = start is Start.PUBLISHED
    if is_published == (expire is expire_published):
        assert len(expire(it, now=expiry_of(it) + timedelta(microseconds=1))) == 1


@pytest.mark.parametrize("expire", [expire_published, expire_started, expire_exhausted])
def test_leases_of_another_shard_are_left_alone(expire):
    it = stand(Start.PUBLISHED if expire is expire_published else Start.RUNNING)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert expire(it, shards=others) == set()


@pytest.mark.parametrize("expire", [expire_published, expire_started, expire_exhausted])
def test_a_second_sweep_finds_nothing(expire):
    it = stand(Start.PUBLISHED if expire is expire_published else Start.RUNNING)
    assert expire(it) == {it.lease_id}
    with unchanged():
        assert expire(it) == set()


@EXPIRE_STARTED
def test_a_heartbeat_that_came_first_keeps_the_lease(expire):
    it = stand(Start.RUNNING)
    extend_leases(it)
    with unchanged():
        assert expire(it) == set()


def test_a_started_lease_that_expired_has_used_its_attempt_and_the_next_token_is_larger():
    it = stand(Start.RUNNING)
    expire_started(it)
    claim_batch(it, now=it.now + timedelta(seconds=90))
    job = it.job
    assert (job.attempt, job.attempt_limit, job.lease_token) == (2, 3, 2)
    assert lease_of(job).pk != it.lease_id


def test_one_sweep_ends_each_lease_in_its_own_way():
    it = stand(Start.RUNNING)
    dying = lease_of(make_job(request_key="dying", place=Place.RUNNING))
    stopping = lease_of(make_job(request_key="stop", place=Place.RUNNING, cancel_asked=True))
    with watching() as change:
        ended = expire_started(
            it,
            retries={it.lease_id: EXPIRED_RETRY, stopping.pk: EXPIRED_RETRY},
            deaths={dying.pk: EXPIRED_DEATH},
        )
    assert ended == {it.lease_id, dying.pk, stopping.pk}
    kinds = {told["lease"]: told["kind"] for told in change.events}
    assert kinds == {it.lease_id: "failed", dying.pk: "dead", stopping.pk: "cancelled"}
