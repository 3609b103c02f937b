"""due_rows, due_groups, group_rows, seconds_to_next_due: what may be claimed now, and when to look again."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection

from jobs.clock import database_now
from jobs.models import DueEntry
from jobs.queries.candidates import (
    GroupKey,
    due_groups,
    due_rows,
    group_rows,
    seconds_to_next_due,
)
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.states import Place
from tests.factories import all_shards, make_handler, make_job, make_pool, make_tenant

pytestmark = pytest.mark.django_db

LANES = ["urgent", "high", "normal", "low", "background"]


def candidates(*, shards=None, limit=1000, now=None) -> list[UUID]:
    found = due_rows(shards=all_shards() if shards is None else shards, limit=limit, now=now)
    return [row.job_id for row in found]


def make_random_rows(rng: random.Random, count: int) -> None:
    """Waiting jobs of all lanes, some tenants and few priorities, due within 20 minutes around now, many at one moment."""
    make_handler()
    make_pool()
    for tenant in ("spread", "acme", "globex"):
        requests = [
            parse_request(
                {
                    "handler": "billing.charge",
                    "lane": rng.choice(LANES),
                    "priority": rng.choice([-100, 0, 0, 7, 100]),
                }
            )
            for _ in range(count)
        ]
        owner = make_tenant(tenant, shard_spread=64 if tenant == "spread" else 1)
        now = database_now()
        for job in submit_jobs(tenant=owner, requests=requests, actor="token:test0001"):
            offset = rng.choice([rng.randint(-900, 300), 0, -600])
            DueEntry.objects.filter(pk=job.job_id).update(due_at=now + timedelta(seconds=offset))


def key_of(entry: DueEntry) -> GroupKey:
    return GroupKey(entry.shard, entry.route_id, entry.lane_id, entry.priority, entry.tenant_id)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_groups_and_rows_of_groups_are_those_of_the_table(seed):
    rng = random.Random(seed)
    make_random_rows(rng, 70)
    for entry in rng.sample(list(DueEntry.objects.all()), 20):
        DueEntry.objects.filter(pk=entry.pk).update(parked=True, concurrency_key="k")
    now = database_now()
    due = list(DueEntry.objects.filter(due_at__lte=now, parked=False).order_by("due_at"))
    assert 100 < len(due) < 190
    groups: dict[GroupKey, list[DueEntry]] = {}
    for entry in due:
        groups.setdefault(key_of(entry), []).append(entry)
    assert len(groups) > 20

    rows = due_rows(shards=all_shards(), limit=1000, now=now)
    assert sorted((row.job_id, row.key) for row in rows) == sorted(
        (entry.pk, key_of(entry)) for entry in due
    )
    assert {row.job_id: row.due for row in rows} == pytest.approx(
        {entry.pk: entry.due_at.timestamp() for entry in due}
    )
    heads = due_groups(shards=all_shards(), now=now)
    assert {head.key: head.due for head in heads} == pytest.approx(
        {key: found[0].due_at.timestamp() for key, found in groups.items()}
    )
    assert len(heads) == len(groups)
    limits = {key: rng.randint(1, 4) for key in rng.sample(sorted(groups), 15)}
    of_groups = group_rows(limits=limits, now=now)
    for key, limit in limits.items():
        found = sorted(row.due for row in of_groups if row.key == key)
        assert found == pytest.approx([one.due_at.timestamp() for one in groups[key]][:limit])
    assert {row.key for row in of_groups} == limits.keys()
    assert group_rows(limits={}, now=now) == []


def test_of_a_deep_shard_only_the_earliest_rows_are_read():
    make_random_rows(random.Random(4), 70)
    shards = {entry.shard for entry in DueEntry.objects.all()}
    now = database_now()
    rows = due_rows(shards=all_shards(), limit=3, now=now)
    for shard in shards:
        due = DueEntry.objects.filter(shard=shard, due_at__lte=now).order_by("due_at")
        expected = [entry.due_at.timestamp() for entry in due[:3]]
        found = sorted(row.due for row in rows if row.key.shard == shard)
        assert found == pytest.approx(expected)


def test_only_due_entries_are_candidates_and_one_is_from_its_due_moment_on():
    job = make_job(delay_seconds=600)
    for place in (Place.PUBLISHED, Place.RUNNING, Place.FINISHED, Place.DEAD_LETTER):
        make_job(place=place)
    due_at = DueEntry.objects.get(pk=job.pk).due_at
    assert candidates() == []
    assert candidates(now=due_at - timedelta(microseconds=1)) == []
    assert candidates(now=due_at) == [job.pk]


def test_only_the_named_shards_are_read():
    mine = make_job()
    theirs = make_job(tenant=make_tenant("globex"))
    assert mine.shard != theirs.shard
    assert set(candidates()) == {mine.pk, theirs.pk}
    assert candidates(shards=[mine.shard]) == [mine.pk]
    assert [head.job_id for head in due_groups(shards=[theirs.shard])] == [theirs.pk]
    assert candidates(shards=[]) == due_groups(shards=[]) == []


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
