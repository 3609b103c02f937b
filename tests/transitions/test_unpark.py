"""unpark_jobs: parked entries come back by due time, as many as their key has free slots, and nothing else changes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import ConcurrencyLimit, DueEntry, Job, JobEvent
from jobs.states import Place
from jobs.transitions.unpark import unpark_jobs
from tests.factories import all_shards, make_job, make_tenant

pytestmark = pytest.mark.django_db


def parked(*, key: str = "k", minutes_ago: float = 1.0, tenant: str = "acme") -> Job:
    job = make_job(tenant=make_tenant(tenant), concurrency_key=key)
    due_at = database_now() - timedelta(minutes=minutes_ago)
    DueEntry.objects.filter(pk=job.pk).update(parked=True, due_at=due_at)
    return job


def still_parked() -> set[object]:
    return set(DueEntry.objects.filter(parked=True).values_list("pk", flat=True))


def test_the_earliest_of_each_key_and_tenant_comes_back_and_tells_nothing():
    late, early, other_key = parked(), parked(minutes_ago=5), parked(key="other")
    of_another = parked(tenant="globex")
    events = JobEvent.objects.count()
    assert unpark_jobs(shards=all_shards()) == 3
    assert still_parked() == {late.pk}
    assert unpark_jobs(shards=all_shards()) == 1  # nobody has claimed the first one
    assert JobEvent.objects.count() == events
    assert set(Job.objects.values_list("status", flat=True)) == {"scheduled"}
    assert {early.pk, other_key.pk, of_another.pk}.isdisjoint(still_parked())


def test_as_many_come_back_as_the_key_has_free_slots():
    for minutes in range(6):
        parked(minutes_ago=minutes + 1)
    make_job(place=Place.RUNNING, concurrency_key="k")
    assert unpark_jobs(shards=all_shards()) == 0  # one slot without a row, and it is taken
    ConcurrencyLimit.objects.create(tenant=make_tenant(), key="k", slots=4)
    assert unpark_jobs(shards=all_shards()) == 3
    assert len(still_parked()) == 3


def test_what_is_not_due_or_of_another_scheduler_stays_parked():
    job = parked(minutes_ago=-10)
    assert unpark_jobs(shards=all_shards()) == 0
    others = [shard for shard in all_shards() if shard != job.shard]
    later = database_now() + timedelta(minutes=11)
    assert unpark_jobs(shards=others, now=later) == 0
    assert len(others) == conf().shards - 1
    assert unpark_jobs(shards=[job.shard], now=later) == 1
    assert still_parked() == set()
