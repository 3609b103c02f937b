"""Which scheduler owns which shard: shared evenly, taken over from the dead, and harmless when two own the same."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db.models import F
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from jobs.clock import Skew, database_now
from jobs.conf import conf
from jobs.models import JobEvent, SchedulerNode, Shard
from jobs.services.dispatch import dispatch
from jobs.services.memory import Memory
from tests.factories import make_job, make_worker
from tests.support.books import assert_balanced
from tests.support.race import Team
from workers.ownership import Ownership

pytestmark = pytest.mark.django_db


def numbers() -> list[int]:
    return list(range(conf().shards))


def owner(part: list[int] | None = None) -> Ownership:
    return Ownership(uuid4(), numbers() if part is None else part)


def settle(*owners: Ownership, rounds: int = 3) -> list[int]:
    """Refresh all of them a few times, as their loops would; how many shards each owns then."""
    for _ in range(rounds):
        for one in owners:
            one.refresh()
    return [len(one.shards) for one in owners]


def dies(one: Ownership) -> None:
    """Its process is gone, and the time of its leases is over."""
    past = Now() - timedelta(seconds=1)
    SchedulerNode.objects.filter(pk=one.id).update(expires_at=past)
    Shard.objects.filter(owner=one.id).update(expires_at=past)


def stored(one: Ownership) -> list[int]:
    return list(Shard.objects.filter(owner=one.id).values_list("number", flat=True))


def test_a_single_scheduler_takes_every_shard_at_once():
    alone = owner()
    assert alone.refresh() == numbers()
    assert stored(alone) == alone.shards == numbers()
    assert set(Shard.objects.values_list("epoch", flat=True)) == {1}
    lease = Shard.objects.values_list("expires_at", flat=True)[0]
    assert lease is not None
    left = (lease - database_now()).total_seconds()
    assert 0 < left <= conf().shard_lease_seconds


@pytest.mark.parametrize(
    ("count", "shares"), [(2, [32, 32]), (3, [21, 21, 22]), (5, [12, 13, 13, 13, 13])]
)
def test_live_schedulers_share_evenly_and_disjointly(count, shares):
    owners = [owner() for _ in range(count)]
    assert sorted(settle(*owners)) == shares
    owned = [number for one in owners for number in one.shards]
    assert sorted(owned) == numbers()
    assert all(stored(one) == one.shards for one in owners)


def test_the_surplus_is_given_up_when_another_joins_and_the_newcomer_takes_it():
    first, second = owner(), owner()
    first.refresh()
    assert second.refresh() == []  # nothing is taken away from a live owner
    assert len(first.refresh()) == 32
    assert Shard.objects.unowned().count() == 32
    assert len(second.refresh()) == 32
    assert not Shard.objects.unowned().exists()


def test_what_is_kept_is_renewed_and_keeps_its_epoch():
    alone = owner()
    alone.refresh()
    Shard.objects.update(expires_at=Now() + timedelta(milliseconds=500))
    before = database_now()
    alone.refresh()
    leases = Shard.objects.values_list("expires_at", "epoch")
    assert {epoch for _, epoch in leases} == {1}
    assert all(lease is not None and lease > before + timedelta(seconds=1) for lease, _ in leases)


def test_a_dead_schedulers_shards_are_taken_over_after_their_lease_and_not_before():
    dead, alive = owner(), owner()
    settle(dead, alive)
    held = set(dead.shards)
    assert len(alive.refresh()) == 32  # the other one may only be slow
    dies(dead)
    assert alive.refresh() == numbers()
    epochs = dict(Shard.objects.values_list("number", "epoch"))
    assert all(epochs[number] > 1 for number in held)
    assert stored(dead) == []


@pytest.fixture
def unhurried(settings: Settings) -> None:
    """Ticks so long that none is over by itself between two lines of a test."""
    settings.JOBS = {"tick_seconds": 100.0, "shard_lease_seconds": 1000.0}
    conf.cache_clear()


def passes(seconds: float) -> None:
    """So much time goes by for whatever belongs to nobody."""
    Shard.objects.unowned().update(expires_at=F("expires_at") - timedelta(seconds=seconds))


def test_i8_shards_given_up_for_a_newcomer_that_died_before_it_took_them_are_taken_back(unhurried):
    alone = owner()
    alone.refresh()
    for _ in range(3):  # a process that dies again and again as soon as it has started
        owner().refresh()
    assert len(alone.refresh()) == 16
    passes(1.5 * conf().tick_seconds)
    assert len(alone.refresh()) == 16  # a newcomer may still come for them
    passes(0.6 * conf().tick_seconds)
    assert alone.refresh() == numbers()
    assert alone.refresh() == numbers()  # and are kept, for nobody has come
    assert stored(alone) == numbers()


def test_i8_an_heir_takes_what_is_over_its_share_if_nobody_else_does(unhurried):
    dead, alive, died_later = owner(), owner(), owner()
    settle(dead, alive)
    died_later.refresh()  # counts, and owns nothing
    Shard.objects.filter(owner=dead.id).update(expires_at=Now() - timedelta(milliseconds=1))
    SchedulerNode.objects.filter(pk=dead.id).update(expires_at=Now())
    assert len(alive.refresh()) == 32
    passes(conf().tick_seconds)
    assert alive.refresh() == numbers()


def test_i8_what_was_adopted_is_shared_again_after_a_lease(unhurried, monkeypatch):
    alone, late = owner(), owner()
    alone.refresh(), late.refresh(), alone.refresh()
    passes(3 * conf().tick_seconds)
    assert alone.refresh() == numbers()
    assert late.refresh() == []
    monkeypatch.setattr(alone, "_keeps_until", 0.0)
    assert settle(alone, late) == [32, 32]


def test_each_change_of_owner_counts_up_the_epoch():
    first, second = owner(), owner()
    first.refresh()
    dies(first)
    second.refresh()
    assert set(Shard.objects.values_list("epoch", flat=True)) == {2}


def test_a_scheduler_that_was_frozen_past_its_lease_comes_back_for_its_share():
    frozen, other = owner(), owner()
    settle(frozen, other)
    dies(frozen)
    assert other.refresh() == numbers()
    assert frozen.shards != []  # it does not know yet
    assert frozen.refresh() == []
    assert settle(other, frozen) == [32, 32]


def test_a_stop_in_good_order_frees_everything_at_once():
    leaving, staying = owner(), owner()
    settle(leaving, staying)
    leaving.give_up()
    assert leaving.shards == []
    assert not SchedulerNode.objects.filter(pk=leaving.id).exists()
    assert staying.refresh() == numbers()


def test_rows_of_processes_that_died_long_ago_are_cleared_away():
    SchedulerNode.objects.create(
        id=uuid4(), host="host-a", pid=1, expires_at=Now() - timedelta(days=1)
    )
    recent = SchedulerNode.objects.create(
        id=uuid4(), host="host-a", pid=2, expires_at=Now() - timedelta(seconds=1)
    )
    alone = owner()
    alone.refresh()
    assert set(SchedulerNode.objects.values_list("pk", flat=True)) == {recent.pk, alone.id}


def test_two_owners_of_the_same_shards_are_harmless():
    """One was frozen, does not know that it lost its shards, and dispatches beside the new owner."""
    stale, fresh = owner(), owner()
    stale.refresh()
    dies(stale)
    fresh.refresh()
    assert stale.shards == fresh.shards == numbers()
    make_worker(slots=100)
    for number in range(20):
        make_job(request_key=f"k{number}")
    published = [
        dispatch(shards=one.shards, memory=Memory(), scheduler_id=one.id, fresh=True).published
        for one in (stale, fresh)
    ]
    assert published == [20, 0]
    assert JobEvent.objects.filter(kind="leased").count() == 20
    assert_balanced()


def test_parts_that_an_operator_gave_are_scanned_entirely():
    low, high = owner(numbers()[:20]), owner(numbers()[20:])
    assert settle(low, high) == [20, 44]
    assert low.shards == stored(low) == numbers()[:20]
    assert high.shards == stored(high) == numbers()[20:]


def test_a_part_takes_nothing_from_the_sharing_of_the_others():
    sharing = [owner(), owner()]
    assert settle(*sharing) == [32, 32]
    part = owner(numbers()[10:20])
    assert settle(*sharing, part) == [32, 32, 10]  # scanned twice rather than by nobody
    dies(sharing[0])
    assert settle(part, sharing[1])[0] == 10
    assert set(stored(part)) <= set(numbers()[10:20])
    assert not Shard.objects.unowned().exists()


@pytest.mark.parametrize(("ahead", "warned"), [(0.5, False), (-30.0, True), (1.5, True)])
def test_a_clock_off_by_more_than_the_tolerance_is_stored_and_warned_of(
    monkeypatch, caplog, ahead, warned
):
    monkeypatch.setattr("workers.skew.measure_skew", lambda: Skew(ahead, 0.01))
    alone = owner()
    with caplog.at_level(logging.WARNING):
        alone.refresh()
    assert SchedulerNode.objects.get(pk=alone.id).clock_skew_seconds == ahead
    assert ("clock.skewed" in [one.message for one in caplog.records]) == warned


@pytest.mark.race
def test_four_schedulers_that_start_together_never_own_a_shard_twice(committed):
    owners = [owner() for _ in range(4)]
    with Team(4) as team:
        for _ in range(20):
            Shard.objects.update(owner=None, expires_at=None, epoch=F("epoch") + 1)
            SchedulerNode.objects.all().delete()
            team.together(*[one.refresh for one in owners])
            shares: list[UUID | None] = list(Shard.objects.values_list("owner", flat=True))
            assert len(shares) == conf().shards  # one row a shard, so one owner a shard
            for one in owners:
                assert stored(one) == one.shards
            for _ in range(2):
                team.together(*[one.refresh for one in owners])
            assert sorted(number for one in owners for number in one.shards) == numbers()
            assert [len(one.shards) for one in owners] == [16] * 4
