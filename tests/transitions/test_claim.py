"""claim_batch: scheduled → leased, for due entries of my shards that nobody else holds."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from jobs.conf import conf
from jobs.models import DueEntry, Job, Lane, Lease
from jobs.policies.priority import rank
from jobs.states import EventKind, JobStatus
from tests.factories import SCHEDULER, all_shards, lease_of, make_job, make_tenant
from tests.support.moves import claim_batch
from tests.support.places import (
    GONE,
    WAITING,
    New,
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


@starting(*WAITING)
def test_a_due_job_is_published_with_the_next_attempt_and_token(start):
    it = stand(start)
    attempt, seq = (1, 2) if start is Start.DUE else (2, 5)
    entry = DueEntry.objects.get(pk=it.job_id)
    with watching() as change:
        assert claim_batch(it)[:2] == (1, 0)
    lease = lease_of(it.job)
    expected = {
        "id": lease.pk,
        "job_id": it.job_id,
        "token": attempt,
        "attempt": attempt,
        "seq": seq,
        "shard": it.shard,
        "route_id": it.route_id,
        "pool_id": it.pool_id,
        "lane_id": entry.lane_id,
        "priority": 0,
        "rank": entry.due_at - timedelta(seconds=120),
        "due_at": entry.due_at,
        "tenant_id": it.tenant_id,
        "worker": None,
        "progress": None,
        "published_at": it.now,
        "started_at": None,
        "heartbeat_at": None,
        "expires_at": it.now + timedelta(seconds=conf().publish_ttl_seconds),
        "cancel_requested": False,
        "concurrency_key": None,
        "concurrency_slot": None,
    }
    job = {
        "status": "leased",
        "attempt": attempt,
        "seq": seq,
        "lease_token": attempt,
        "updated_at": it.now,
    }
    assert change.rows == moved(it, Job=job, DueEntry=GONE, Lease=New(expected))
    assert change.events == [
        event(
            it,
            EventKind.LEASED,
            JobStatus.SCHEDULED,
            JobStatus.LEASED,
            seq=seq,
            attempt=attempt,
            actor=SCHEDULER,
            lease=lease.pk,
            token=attempt,
            due_at=entry.due_at,
            detail={"pool": "default", "lane": "normal"},
        )
    ]


@starting_anywhere_but(*WAITING)
def test_nothing_but_a_waiting_job_can_be_claimed(start):
    it = stand(start)
    with unchanged():
        assert claim_batch(it)[:2] == (0, 1)


def test_each_claim_has_a_lease_id_of_its_own():
    it = stand(Start.RETRYING)
    claim_batch(it)
    assert lease_of(it.job).pk != it.lease_id


def test_a_claimed_job_cannot_be_claimed_again():
    it = stand(Start.DUE)
    claim_batch(it)
    with unchanged():
        assert claim_batch(it)[:2] == (0, 1)


def test_a_job_of_another_shard_is_left_alone():
    it = stand(Start.DUE)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert claim_batch(it, shards=others)[:2] == (0, 1)


def test_a_job_is_not_claimed_before_its_due_time_and_is_at_that_moment():
    it = stand(Start.DUE, delay_seconds=7200)
    due_at = DueEntry.objects.get(pk=it.job_id).due_at
    with unchanged():
        assert claim_batch(it, now=due_at - timedelta(microseconds=1))[:2] == (0, 1)
    assert claim_batch(it, now=due_at)[:2] == (1, 0)


def test_the_due_time_in_force_counts_and_not_the_intent():
    it = stand(Start.DUE)
    DueEntry.objects.filter(pk=it.job_id).update(due_at=it.now + timedelta(seconds=1))
    assert it.job.due_at < it.now
    with unchanged():
        assert claim_batch(it)[:2] == (0, 1)


def test_a_batch_moves_exactly_the_named_jobs_and_counts_what_it_lost():
    it = stand(Start.DUE)
    more = [make_job(request_key=f"more-{number}") for number in range(3)]
    left = make_job(request_key="left")
    named = [it.job_id, *(job.pk for job in more), uuid4(), uuid4()]
    with watching() as change:
        assert claim_batch(it, job_ids=named)[:2] == (4, 2)
    assert {told["job_id"] for told in change.events} == set(named[:4])
    assert not Lease.objects.filter(job=left).exists()
    leases = Lease.objects.filter(job__any=named[:4])
    assert len({lease.pk for lease in leases}) == 4


def test_an_empty_batch_changes_nothing():
    it = stand(Start.DUE)
    with unchanged():
        assert claim_batch(it, job_ids=[])[:2] == (0, 0)


@pytest.mark.parametrize("lane", ["urgent", "high", "normal", "low", "background"])
@pytest.mark.parametrize("priority", [-100, 0, 63])
def test_the_published_rank_is_that_of_the_policy(lane, priority):
    it = stand(Start.DUE, bystanders=False, lane=lane, priority=priority)
    claim_batch(it)
    lease = lease_of(it.job)
    head_start = Lane.objects.get(name=lane).head_start_seconds
    assert lease.rank == rank(
        due_at=it.job.due_at, head_start_seconds=head_start, priority=priority
    )


def test_a_lease_carries_the_concurrency_key():
    it = stand(Start.DUE, concurrency_key="account-7")
    claim_batch(it)
    assert lease_of(it.job).concurrency_key == "account-7"


def test_a_pool_is_told_once_for_a_whole_batch(django_capture_on_commit_callbacks):
    it = stand(Start.DUE)
    named = [it.job_id, make_job(request_key="second").pk]
    with django_capture_on_commit_callbacks() as planned:
        claim_batch(it, job_ids=named)
    assert len(planned) == 1
    with django_capture_on_commit_callbacks() as planned:
        claim_batch(it, job_ids=named)
    assert planned == []


def test_a_due_entry_whose_job_is_gone_is_taken_out_and_reported(caplog):
    it = stand(Start.DUE)
    orphan = make_job(request_key="orphan", tenant=make_tenant())
    Job.objects.filter(pk=orphan.pk).delete()
    assert claim_batch(it, job_ids=[it.job_id, orphan.pk])[:2] == (1, 1)
    assert not DueEntry.objects.filter(pk=orphan.pk).exists()
    assert [record.message for record in caplog.records] == ["claim.mismatch"]


def test_a_job_whose_lane_row_is_gone_is_still_published():
    it = stand(Start.DUE, lane="urgent")
    Lane.objects.filter(name="urgent").delete()
    with watching() as change:
        assert claim_batch(it)[:2] == (1, 0)
    lease = lease_of(it.job)
    assert lease.rank == lease.due_at
    assert len(change.events) == 1
