"""due_candidates and seconds_to_next_due: what may be claimed now, in which order, and when to look again."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection

from jobs.clock import database_now
from jobs.models import DueEntry, Lane, Route
from jobs.policies.priority import rank
from jobs.queries.candidates import due_candidates, seconds_to_next_due
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.states import Place
from tests.factories import all_shards, make_handler, make_job, make_pool, make_tenant, route_of

pytestmark = pytest.mark.django_db

LANES = ["urgent", "high", "normal", "low", "background"]


def candidates(*, shards=None, route_ids=None, limit=1000, now=None) -> list[UUID]:
    return due_candidates(
        shards=all_shards() if shards is None else shards,
        route_ids=list(Route.objects.values_list("pk", flat=True))
        if route_ids is None
        else route_ids,
        limit=limit,
        now=now,
    )


def make_random_rows(rng: random.Random, count: int) -> None:
    """Waiting jobs of all lanes and priorities, due within 20 minutes around now, a part of them at one moment."""
    make_handler()
    make_pool()
    requests = [
        parse_request(
            {
                "handler": "billing.charge",
                "lane": rng.choice(LANES),
                "priority": rng.randint(-100, 100),
            }
        )
        for _ in range(count)
    ]
    made = submit_jobs(
        tenant=make_tenant("spread", shard_spread=64), requests=requests, actor="token:test0001"
    )
    now = database_now()
    for job in made:
        offset = rng.choice([rng.randint(-900, 300), 0, -600])
        DueEntry.objects.filter(pk=job.job_id).update(due_at=now + timedelta(seconds=offset))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_is_that_of_the_policy_on_random_rows(seed):
    rng = random.Random(seed)
    for lane in Lane.objects.all():
        lane.head_start_seconds = rng.choice([0, 0.5, 60, 333.25, 1000])
        lane.save()
    make_random_rows(rng, 200)
    now = database_now()
    due = DueEntry.objects.filter(due_at__lte=now).select_related("lane")
    expected = sorted(
        due,
        key=lambda entry: (
            rank(
                due_at=entry.due_at,
                head_start_seconds=entry.lane.head_start_seconds,
                priority=entry.priority,
            ),
            entry.pk.bytes,
        ),
    )
    assert 50 < len(expected) < 200
    found = candidates(now=now)
    assert found == [entry.pk for entry in expected]
    assert candidates(now=now, limit=17) == found[:17]


def test_only_due_entries_are_candidates_and_one_is_from_its_due_moment_on():
    job = make_job(delay_seconds=600)
    for place in (Place.PUBLISHED, Place.RUNNING, Place.FINISHED, Place.DEAD_LETTER):
        make_job(place=place)
    due_at = DueEntry.objects.get(pk=job.pk).due_at
    assert candidates() == []
    assert candidates(now=due_at - timedelta(microseconds=1)) == []
    assert candidates(now=due_at) == [job.pk]


def test_only_the_named_shards_and_routes_are_read():
    make_pool("eu", labels={"region": "eu"})
    mine = make_job()
    theirs = make_job(tenant=make_tenant("globex"))
    labelled = make_job(labels={"region": "eu"})
    assert mine.shard == labelled.shard != theirs.shard
    assert set(candidates()) == {mine.pk, theirs.pk, labelled.pk}
    assert set(candidates(shards=[mine.shard])) == {mine.pk, labelled.pk}
    assert candidates(shards=[theirs.shard]) == [theirs.pk]
    assert candidates(route_ids=[route_of(labelled).pk]) == [labelled.pk]
    assert candidates(shards=[]) == candidates(route_ids=[]) == candidates(limit=0) == []


def test_a_job_whose_lane_row_is_gone_gets_its_turn_without_a_head_start():
    job = make_job(lane="urgent")
    other = make_job(lane="normal", due_at=job.due_at + timedelta(seconds=60))
    now = job.due_at + timedelta(seconds=300)
    assert candidates(now=now) == [job.pk, other.pk]
    Lane.objects.filter(name="urgent").delete()
    assert candidates(now=now) == [other.pk, job.pk]


def test_a_row_that_another_scheduler_has_locked_still_shows(committed):
    job = make_job()
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                "select 1 from jobs_dueentry where job_id = %s for update", [str(job.pk)]
            )
            assert candidates() == [job.pk]
        other.rollback()
    finally:
        other.close()


def test_the_next_due_time_is_the_earliest_of_the_named_shards():
    now = database_now()
    assert seconds_to_next_due(shards=all_shards(), now=now) is None
    soon = make_job(due_at=now + timedelta(seconds=40))
    make_job(due_at=now + timedelta(seconds=50))
    late = make_job(due_at=now + timedelta(seconds=70), tenant=make_tenant("globex"))
    assert soon.shard != late.shard
    assert seconds_to_next_due(shards=all_shards(), now=now) == 40
    assert seconds_to_next_due(shards=[late.shard], now=now) == 70
    assert seconds_to_next_due(shards=[], now=now) is None


def test_work_that_is_due_already_gives_a_negative_wait():
    now = database_now()
    make_job(due_at=now - timedelta(seconds=5))
    assert seconds_to_next_due(shards=all_shards(), now=now) == -5


def test_leases_and_finished_jobs_have_no_next_due_time():
    for place in (Place.PUBLISHED, Place.RUNNING, Place.FINISHED, Place.DEAD_LETTER):
        make_job(place=place)
    assert seconds_to_next_due(shards=all_shards()) is None


def test_without_a_given_time_the_clock_of_the_database_decides():
    due, later = make_job(), make_job(delay_seconds=3600)
    assert candidates() == [due.pk]
    wait = seconds_to_next_due(shards=[later.shard])
    assert wait is not None
    assert -60 < wait <= 0
