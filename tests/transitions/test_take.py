"""take_batch: a published lease of my pool becomes mine; the job stays leased."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs.conf import conf
from jobs.models import Lease
from jobs.states import EventKind, JobStatus, Place
from tests.factories import OTHER_WORKER, WORKER, all_shards, lease_of, make_job, make_pool
from tests.support.moves import take_batch
from tests.support.places import (
    Start,
    event,
    moved,
    stand,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db


def test_a_published_lease_gets_a_worker_and_a_clock():
    it = stand(Start.PUBLISHED)
    with watching() as change:
        (taken,) = take_batch(it)
    assert taken.lease_id == it.lease_id
    lease = {
        "worker": WORKER,
        "started_at": it.now,
        "heartbeat_at": it.now,
        "seq": 3,
        "expires_at": it.now + timedelta(seconds=conf().lease_ttl_seconds),
    }
    assert change.rows == moved(it, Lease=lease)
    assert change.events == [
        event(
            it,
            EventKind.STARTED,
            JobStatus.LEASED,
            JobStatus.LEASED,
            seq=3,
            attempt=1,
            actor=f"worker:{WORKER}",
            lease=it.lease_id,
            token=1,
        )
    ]


@starting_anywhere_but(Start.PUBLISHED)
def test_nothing_but_a_published_lease_can_be_taken(start):
    it = stand(start)
    with unchanged():
        assert take_batch(it) == []


def test_the_worker_receives_all_that_an_attempt_needs():
    it = stand(
        Start.PUBLISHED,
        payload={"invoice": 8812},
        max_attempts=7,
        retry={"kind": "fixed", "base_seconds": 4},
        timeout_seconds=12,
    )
    (taken,) = take_batch(it)
    assert (taken.job_id, taken.shard, taken.tenant_id) == (it.job_id, it.shard, it.tenant_id)
    assert (taken.attempt, taken.token, taken.attempt_limit) == (1, 1, 7)
    assert (taken.handler, taken.route_id) == ("billing.charge", it.route_id)
    assert json.loads(taken.payload or "") == {"invoice": 8812}
    assert taken.payload_ref is None
    assert json.loads(taken.retry)["base_seconds"] == 4
    assert (taken.timeout_seconds, taken.request_key) == (12.0, "order-8812")


def test_a_lease_is_taken_once():
    it = stand(Start.PUBLISHED)
    assert len(take_batch(it)) == 1
    for worker in (WORKER, OTHER_WORKER):
        with unchanged():
            assert take_batch(it, worker_id=worker) == []


def test_a_lease_with_a_cancel_asked_is_not_taken():
    it = stand(Start.PUBLISHED)
    Lease.objects.filter(pk=it.lease_id).update(cancel_requested=True)
    with unchanged():
        assert take_batch(it) == []


def test_work_of_another_pool_is_left_alone():
    it = stand(Start.PUBLISHED, bystanders=False)
    with unchanged():
        assert take_batch(it, pool_id=make_pool("reports").pk) == []


def test_a_handler_that_this_worker_does_not_know_is_left_alone():
    it = stand(Start.PUBLISHED)
    for known in ([], ["billing.refund", "billing"]):
        with unchanged():
            assert take_batch(it, handlers=known) == []


def test_a_lease_of_another_shard_is_left_alone():
    it = stand(Start.PUBLISHED)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert take_batch(it, shards=others) == []


def test_the_best_ranks_are_taken_and_no_more_than_the_limit():
    it = stand(Start.PUBLISHED, lane="background")
    lanes = ["low", "urgent", "normal", "high"]
    made = {
        lane: make_job(request_key=lane, lane=lane, place=Place.PUBLISHED).pk for lane in lanes
    }
    assert take_batch(it, limit=0) == []
    first = [taken.job_id for taken in take_batch(it, limit=2)]
    assert set(first) == {made["urgent"], made["high"]}
    then = [taken.job_id for taken in take_batch(it, limit=10)]
    assert set(then) == {made["normal"], made["low"], it.job_id}


def test_a_lease_whose_job_is_gone_does_not_keep_the_others_from_their_worker():
    it = stand(Start.PUBLISHED)
    orphan = make_job(request_key="orphan", place=Place.PUBLISHED, lane="urgent")
    lost = lease_of(orphan)
    orphan.delete()
    assert [taken.job_id for taken in take_batch(it)] == [it.job_id]
    assert Lease.objects.get(pk=lost.pk).worker == WORKER  # until the reaper finds it silent
