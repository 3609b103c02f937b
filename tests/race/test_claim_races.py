"""F15, F16 and KF-18: many claimers and takers on few rows. One winner a row; the others get less, never an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import pytest
from django.db import connection, models, transaction

from jobs.models import DueEntry, JobEvent, Lease
from jobs.states import Place
from jobs.transitions.claim import Claimed, claim_batch
from jobs.transitions.events import scheduler_actor
from jobs.transitions.take import take_batch
from tests.factories import all_shards, make_pool
from tests.support.books import assert_balanced
from tests.support.crowd import HANDLER, Member, make_crowd
from tests.support.race import RACES, ROUNDS, Team

pytestmark = RACES

CLAIMERS, ROWS = 32, 8


def rounds_of_eight(place: Place, rounds: int) -> list[list[Member]]:
    crowd = make_crowd(ROWS * rounds, place=place)
    return [crowd[start : start + ROWS] for start in range(0, len(crowd), ROWS)]


def claim(members: list[Member], actor: str) -> Claimed:
    ids = [member.job_id for member in members]
    return claim_batch(shards=all_shards(), job_ids=ids, pool=make_pool(), actor=actor)


def race_to_claim(claimers: int, rounds: int) -> Counter[str]:
    """Everybody wants the same eight rows, round after round; how many each claimer got."""
    actors = [scheduler_actor(uuid4()) for _ in range(claimers)]
    won: Counter[str] = Counter()
    batches = rounds_of_eight(Place.DUE_ENTRY, rounds)
    make_pool()
    with Team(claimers) as team:
        for members in batches:
            answers = team.together(*[partial(claim, members, actor) for actor in actors])
            assert sum(answer.published for answer in answers) == ROWS
            assert all(answer.published + answer.lost == ROWS for answer in answers)
            won.update({a: r.published for a, r in zip(actors, answers, strict=True)})
    return won


def assert_leased_once(rounds: int) -> None:
    assert not DueEntry.objects.exists()
    assert Lease.objects.count() == rounds * ROWS
    assert JobEvent.objects.filter(kind="leased").count() == rounds * ROWS
    assert_balanced()


def test_f15_thirty_two_claimers_of_eight_rows_never_claim_one_twice():
    won = race_to_claim(CLAIMERS, ROUNDS)
    assert_leased_once(ROUNDS)
    assert len([actor for actor, rows in won.items() if rows]) > 1, "nobody competed"


def test_f15_thirty_two_takers_of_eight_leases_never_take_one_twice():
    rounds = max(1, ROUNDS // 4)
    workers = [uuid4() for _ in range(CLAIMERS)]
    crowd = rounds_of_eight(Place.DUE_ENTRY, rounds)
    pool = make_pool()

    def take(worker_id):
        return take_batch(
            shards=all_shards(), pool_id=pool.pk, handlers=[HANDLER], worker_id=worker_id, limit=3
        )

    with Team(CLAIMERS) as team:
        for members in crowd:
            assert claim(members, scheduler_actor(uuid4())).published == ROWS
            answers = team.together(*[partial(take, worker) for worker in workers])
            taken = [one for answer in answers for one in answer]
            assert {one.job_id for one in taken} == {member.job_id for member in members}
            assert len(taken) == ROWS
            assert all(len(answer) <= 3 for answer in answers)
            owners = {one.lease_id: w for w, a in zip(workers, answers, strict=True) for one in a}
            stored = Lease.objects.filter(pk__in=owners).values_list("pk", "worker")
            assert dict(stored) == owners
    assert JobEvent.objects.filter(kind="started").count() == rounds * ROWS
    assert_balanced()


def test_f16_without_skip_locked_the_losers_wait_and_still_get_nothing(monkeypatch):
    """The guard is the row, not the hint that lets losers pass it by."""
    lock = models.QuerySet.select_for_update

    def without_skipping(self, *, skip_locked=False, **kwargs):
        return lock(self, **kwargs)

    monkeypatch.setattr(models.QuerySet, "select_for_update", without_skipping)
    rounds = max(1, ROUNDS // 4)
    race_to_claim(8, rounds)
    assert_leased_once(rounds)


@contextmanager
def plan_without(forbidden: list[str]) -> Iterator[None]:
    """Plan the statements of this transaction without these node types."""
    with connection.cursor() as cursor:
        for name in forbidden:
            cursor.execute(f"set local {name} = off")
    yield


PLANNERS = {
    "as it likes": [],
    "nested loops": ["enable_hashjoin", "enable_mergejoin", "enable_material"],
    "no index": ["enable_indexscan", "enable_bitmapscan", "enable_indexonlyscan"],
}


@pytest.mark.parametrize("forbidden", PLANNERS.values(), ids=PLANNERS)
def test_kf18_a_batch_never_moves_more_than_it_was_asked_for(forbidden):
    """A limit in a sub-select of an UPDATE runs again for each row under some plans; ours is a list fixed before."""
    crowd = make_crowd(1000)
    pool = make_pool()
    worker_id = uuid4()
    for start in range(0, 1000, 10):
        ids = [member.job_id for member in crowd[start : start + 10]]
        with transaction.atomic(), plan_without(forbidden):
            claimed = claim_batch(
                shards=all_shards(), job_ids=ids, pool=pool, actor=scheduler_actor(uuid4())
            )
        assert claimed == Claimed(10, 0)
        assert Lease.objects.count() == start + 10
    for start in range(0, 1000, 10):
        with transaction.atomic(), plan_without(forbidden):
            taken = take_batch(
                shards=all_shards(),
                pool_id=pool.pk,
                handlers=[HANDLER],
                worker_id=worker_id,
                limit=10,
            )
        assert len({one.lease_id for one in taken}) == 10
        assert Lease.objects.running().count() == start + 10
    assert_balanced()
