"""extend_leases: the holder's heartbeat. It moves no job and leaves no event."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from jobs.conf import conf
from jobs.models import Lease
from jobs.states import Place
from tests.factories import OTHER_WORKER, all_shards, lease_of, make_job
from tests.support.moves import extend_leases
from tests.support.places import (
    HELD,
    Start,
    moved,
    stand,
    starting,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db


@starting(*HELD)
def test_the_holder_gets_a_new_expiry_and_hears_of_a_cancel(start):
    it = stand(start)
    with watching() as change:
        assert extend_leases(it) == {it.lease_id: start is Start.STOPPING}
    ttl = timedelta(seconds=conf().lease_ttl_seconds)
    assert change.rows == moved(it, Lease={"heartbeat_at": it.now, "expires_at": it.now + ttl})
    assert change.events == []


@starting_anywhere_but(*HELD)
def test_a_lease_that_is_not_held_is_not_returned(start):
    it = stand(start)
    with unchanged():
        assert extend_leases(it) == {}


def test_another_worker_cannot_extend_the_lease():
    it = stand(Start.RUNNING)
    with unchanged():
        assert extend_leases(it, worker_id=OTHER_WORKER) == {}


def test_a_lease_id_of_an_earlier_claim_extends_nothing():
    it = stand(Start.RUNNING)
    with unchanged():
        assert extend_leases(it, lease_ids=[uuid4()]) == {}


def test_a_lease_of_another_shard_is_left_alone():
    it = stand(Start.RUNNING)
    others = [shard for shard in all_shards() if shard != it.shard]
    with unchanged():
        assert extend_leases(it, shards=others) == {}


def test_one_heartbeat_serves_all_leases_of_a_worker_and_returns_those_it_lost():
    it = stand(Start.RUNNING)
    second = lease_of(make_job(request_key="second", place=Place.RUNNING)).pk
    theirs = make_job(request_key="theirs", place=Place.RUNNING, worker_id=OTHER_WORKER)
    named = [it.lease_id, second, lease_of(theirs).pk, uuid4()]
    assert extend_leases(it, lease_ids=named) == {it.lease_id: False, second: False}


def test_progress_is_stored_for_the_leases_that_report_it_and_kept_for_the_others():
    it = stand(Start.RUNNING)
    second = lease_of(make_job(request_key="second", place=Place.RUNNING)).pk
    named = [it.lease_id, second]
    half = {"fraction": 0.5, "note": "half the pages"}
    extend_leases(it, lease_ids=named, progress={it.lease_id: half, second: {"fraction": 0.1}})
    with watching() as change:
        extend_leases(it, lease_ids=named, progress={second: {"fraction": 0.2}})
    assert change.rows.keys() == {("Lease", Lease.objects.get(pk=second).job_id)}
    assert Lease.objects.get(pk=it.lease_id).progress == half
    assert Lease.objects.get(pk=second).progress == {"fraction": 0.2}


def test_a_lease_past_its_expiry_that_nobody_took_back_is_still_the_holders():
    it = stand(Start.RUNNING)
    assert Lease.objects.get(pk=it.lease_id).expires_at < it.now
    assert extend_leases(it) == {it.lease_id: False}
    assert Lease.objects.get(pk=it.lease_id).expires_at > it.now
