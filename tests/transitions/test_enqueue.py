"""create_jobs: nothing → scheduled, unless the request key is in use."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import DueEntry, Job
from jobs.policies.sharding import bucket_of, new_job_id
from jobs.states import EventKind, JobStatus
from tests.factories import make_tenant
from tests.support.moves import create_jobs, new_job
from tests.support.places import (
    New,
    Start,
    due_row,
    event,
    moved,
    stand,
    starting_anywhere_but,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db


def test_a_new_job_has_its_row_its_due_entry_and_its_first_event():
    it = stand(Start.MISSING)
    asked = new_job(
        it,
        priority=7,
        lane_id=2,
        payload={"text": "Zürich 💥", "n": [1, 2.5, None]},
        max_attempts=4,
        retry={"kind": "list", "delays": [1, 5]},
        timeout_seconds=12.5,
        request_hash=b"\x01" * 32,
        reference="cus_431",
        tags=("vip", "eu"),
        concurrency_key="account-7",
        created_by="token:test0001",
    )
    with watching() as change:
        assert create_jobs(it, jobs=[asked]) == {it.job_id}
    expected = {
        "id": it.job_id,
        "shard": it.shard,
        "tenant_id": it.tenant_id,
        "handler": "billing.charge",
        "payload": {"text": "Zürich 💥", "n": [1, 2.5, None]},
        "payload_ref": None,
        "due_at": it.now,
        "bucket": bucket_of(it.now),
        "lane_id": 2,
        "priority": 7,
        "route_id": it.route_id,
        "status": "scheduled",
        "attempt": 0,
        "max_attempts": 4,
        "attempt_limit": 4,
        "retry": {"kind": "list", "delays": [1, 5]},
        "timeout_seconds": 12.5,
        "seq": 1,
        "lease_token": 0,
        "request_key": "order-8812",
        "request_hash": b"\x01" * 32,
        "reference": "cus_431",
        "tags": ["vip", "eu"],
        "concurrency_key": "account-7",
        "schedule_id": None,
        "fire_at": None,
        "cancel_requested_at": None,
        "cancel_requested_by": "",
        "cancel_reason": "",
        "result": None,
        "last_error": None,
        "created_by": "token:test0001",
        "created_at": it.now,
        "updated_at": it.now,
        "finished_at": None,
    }
    assert change.rows == moved(it, Job=New(expected), DueEntry=due_row(it, it.now))
    assert change.events == [
        event(
            it,
            EventKind.CREATED,
            None,
            JobStatus.SCHEDULED,
            seq=1,
            attempt=0,
            actor="token:test0001",
            due_at=it.now,
        )
    ]


@starting_anywhere_but(Start.MISSING)
def test_a_request_key_in_use_creates_nothing_wherever_its_job_is(start):
    it = stand(start)
    with unchanged():
        assert create_jobs(it) == set()


def test_creating_the_same_job_a_second_time_changes_nothing():
    it = stand(Start.MISSING)
    asked = new_job(it)
    assert create_jobs(it, jobs=[asked]) == {it.job_id}
    with unchanged():
        assert create_jobs(it, jobs=[asked]) == set()


def test_a_batch_creates_the_rows_whose_key_is_free_and_skips_the_others():
    it = stand(Start.SUCCEEDED)
    ids = [new_job_id(shard=it.shard, unix_ms=1, rand_b=number) for number in range(4)]
    keys = ["order-8812", "order-8813", "order-8813", None]
    batch = [
        new_job(it, id=job_id, request_key=key) for job_id, key in zip(ids, keys, strict=True)
    ]
    with watching() as change:
        made = create_jobs(it, jobs=batch)
    assert len(made) == 2
    assert ids[3] in made  # without a key it is never "the same job"
    assert len(made & set(ids[1:3])) == 1  # of two with one key in the batch, one
    assert change.rows.keys() == {(table, job) for job in made for table in ("Job", "DueEntry")}
    assert {told["job_id"] for told in change.events} == made


def test_another_tenant_may_use_the_same_key():
    it = stand(Start.DUE)
    other = make_tenant("globex")
    with watching() as change:
        assert len(create_jobs(it, jobs=[new_job(it, tenant_id=other.pk)])) == 1
    assert [told["tenant_id"] for told in change.events] == [other.pk]


def test_a_delay_counts_from_now_and_a_due_time_is_taken_as_it_is():
    it = stand(Start.MISSING)
    later = it.now + timedelta(days=400)
    delayed = new_job(it, delay_seconds=90.5)
    dated = new_job(
        it,
        id=new_job_id(shard=it.shard, unix_ms=1, rand_b=9),
        request_key=None,
        due_at=later,
        delay_seconds=90.5,
    )
    create_jobs(it, jobs=[delayed, dated])
    expected = {delayed.id: it.now + timedelta(seconds=90.5), dated.id: later}
    for job_id, due_at in expected.items():
        assert Job.objects.get(pk=job_id).due_at == due_at
        assert DueEntry.objects.get(pk=job_id).due_at == due_at


def test_an_empty_batch_changes_nothing():
    it = stand(Start.DUE)
    with unchanged():
        assert create_jobs(it, jobs=[]) == set()


@pytest.mark.parametrize(("delay", "hints"), [(0.0, 1), (2.0, 1), (2.1, 0)])
def test_schedulers_are_woken_only_for_work_that_is_due_soon(
    delay, hints, django_capture_on_commit_callbacks
):
    it = stand(Start.MISSING)
    with django_capture_on_commit_callbacks() as planned:
        create_jobs(it, jobs=[new_job(it, delay_seconds=delay)])
    assert len(planned) == hints


def test_a_key_that_is_taken_wakes_nobody(django_capture_on_commit_callbacks):
    it = stand(Start.DUE)
    with django_capture_on_commit_callbacks() as planned:
        create_jobs(it)
    assert planned == []
