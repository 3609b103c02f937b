"""edit_job: due time, lane and tags of a job that waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.errors import NotFound, NotWaiting
from jobs.models import DueEntry
from jobs.policies.sharding import bucket_of
from jobs.states import EventKind, JobStatus
from tests.factories import all_shards
from tests.support.moves import claim_batch, edit_job
from tests.support.places import (
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

NORMAL, URGENT = 3, 1


def edited(it, entry, seq, attempt, due_at=None, **detail):
    same = {"old_due_at": entry.due_at, "old_lane": NORMAL, "lane": NORMAL, "tags": None}
    return event(
        it,
        EventKind.EDITED,
        JobStatus.SCHEDULED,
        JobStatus.SCHEDULED,
        seq=seq,
        attempt=attempt,
        actor="user:otto",
        due_at=due_at or entry.due_at,
        detail={**same, **detail},
    )


@starting(*WAITING)
def test_a_waiting_job_gets_another_due_time_lane_and_tags(start):
    it = stand(start, tags=["old"])
    entry = DueEntry.objects.get(pk=it.job_id)
    later = it.now + timedelta(days=3, minutes=7)
    seq, attempt = (2, 0) if start is Start.DUE else (5, 1)
    with watching() as change:
        edit_job(it, due_at=later, lane_id=URGENT, tags=["vip", "eu"])
    both = {"due_at": later, "bucket": bucket_of(later), "lane_id": URGENT}
    job = {**both, "tags": ["vip", "eu"], "seq": seq, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, DueEntry=both)
    detail = {"due_at": later, "lane": URGENT, "tags": ["vip", "eu"]}
    assert change.events == [edited(it, entry, seq, attempt, **detail)]


@starting_anywhere_but(*WAITING, Start.MISSING)
def test_nothing_but_a_waiting_job_can_be_edited(start):
    it = stand(start)
    with unchanged(), pytest.raises(NotWaiting) as refused:
        edit_job(it)
    assert refused.value.current == it.job.status


def test_an_unknown_job_cannot_be_edited():
    it = stand(Start.MISSING)
    with unchanged(), pytest.raises(NotFound):
        edit_job(it)


def test_a_job_is_looked_for_in_its_own_shard_only():
    it = stand(Start.DUE)
    with unchanged(), pytest.raises(NotFound):
        edit_job(it, shard=(it.shard + 1) % len(all_shards()))


def test_what_is_not_named_stays_as_it_is():
    it = stand(Start.DUE, tags=["old"])
    entry = DueEntry.objects.get(pk=it.job_id)
    with watching() as change:
        edit_job(it, tags=None, lane_id=URGENT)
    job = {"lane_id": URGENT, "seq": 2, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, DueEntry={"lane_id": URGENT})
    assert change.events == [edited(it, entry, 2, 0, lane=URGENT)]
    with watching() as change:
        edit_job(it, tags=[])
    assert change.rows == moved(it, Job={"tags": [], "seq": 3})


@pytest.mark.parametrize("moved_by", [timedelta(days=-1), timedelta(days=1)])
def test_the_new_due_time_decides_when_the_job_is_claimed(moved_by):
    it = stand(Start.DUE, delay_seconds=60)
    edit_job(it, due_at=it.now + moved_by)
    assert claim_batch(it).published == (1 if moved_by < timedelta() else 0)


def test_editing_twice_writes_an_event_each_time():
    it = stand(Start.DUE)
    with watching() as change:
        edit_job(it, tags=["one"])
        edit_job(it, tags=["two"])
    assert [told["detail"]["tags"] for told in change.events] == [["one"], ["two"]]


def test_schedulers_are_woken_by_an_edit_and_not_by_a_refused_one(
    django_capture_on_commit_callbacks,
):
    it = stand(Start.DUE)
    with django_capture_on_commit_callbacks() as planned:
        edit_job(it)
    assert len(planned) == 1
    claim_batch(it)
    with django_capture_on_commit_callbacks() as planned, pytest.raises(NotWaiting):
        edit_job(it)
    assert planned == []
