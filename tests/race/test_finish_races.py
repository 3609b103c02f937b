"""F18 and KF-25: two ends of one lease at the same instant, from every side that can end one. One of them counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models.functions import Now

from jobs.clock import database_now
from jobs.models import Job, JobEvent, Lease
from jobs.states import Place
from jobs.transitions.cancel import acknowledge_cancels
from jobs.transitions.finish import complete_jobs, dead_letter_jobs, retry_jobs, snooze_jobs
from jobs.transitions.lease import expire_started, extend_leases, release_jobs
from tests.factories import BOOM, SCHEDULER, WORKER, all_shards
from tests.support.books import assert_balanced
from tests.support.crowd import Member, make_crowd, publish_all, take_all
from tests.support.race import RACES, ROUNDS, Pace, Team

pytestmark = RACES

ITEM = {"delay": 0.0, "cause": "error", "error": BOOM, "reason": "permanent_error"}


def held(member: Member) -> dict[str, Any]:
    return {"shards": [member.shard], "worker_id": WORKER}


OTHER = uuid4()


def expire(member: Member, *, again: bool) -> set[UUID]:
    plan = {member.lease_id: {**ITEM, "cause": "lease_expired"}}
    return expire_started(
        shards=[member.shard],
        actor=SCHEDULER,
        retries=plan if again else {},
        deaths={} if again else plan,
        now=database_now() + timedelta(hours=1),
    )


ENDS: dict[str, Callable[[Member], set[UUID]]] = {
    "succeeded": lambda m: complete_jobs(results={m.lease_id: {"paid": True}}, **held(m)),
    "failed": lambda m: retry_jobs(failures={m.lease_id: ITEM}, **held(m)),
    "dead": lambda m: dead_letter_jobs(failures={m.lease_id: ITEM}, **held(m)),
    "snoozed": lambda m: snooze_jobs(snoozes={m.lease_id: ITEM}, **held(m)),
    "released": lambda m: release_jobs(reasons={m.lease_id: ITEM}, **held(m)),
    "cancelled": lambda m: acknowledge_cancels(
        stopped={m.lease_id: {"cancel": "by_handler"}}, by_handler=True, **held(m)
    ),
    "expired": partial(expire, again=True),
    "expired, dead": partial(expire, again=False),
}
KINDS = {"expired": "failed", "expired, dead": "dead"}


def make_stale_and_fresh(count: int) -> tuple[list[Member], list[Member]]:
    """Jobs whose first lease expired and whose second one OTHER holds: as members under each lease."""
    stale = make_crowd(count, place=Place.RUNNING)
    long_ago = Now() - timedelta(hours=1)
    Lease.objects.update(published_at=long_ago - timedelta(hours=1), expires_at=long_ago)
    plan = {member.lease_id: {**ITEM, "cause": "lease_expired"} for member in stale}
    expired = expire_started(shards=all_shards(), actor=SCHEDULER, retries=plan, deaths={})
    assert len(expired) == count
    assert publish_all([member.job_id for member in stale]) == count
    second = {taken.job_id: taken for taken in take_all(worker_id=OTHER)}
    fresh = [
        Member(one.shard, one.job_id, second[one.job_id].lease_id, second[one.job_id].token)
        for one in stale
    ]
    return stale, fresh


def race(rounds: int, one: str, other: str) -> list[int]:
    """Both ends on the same lease, round after round; how often each came first, every round having one winner."""
    pace, won = Pace(), {}
    with Team(2) as team:
        for member in make_crowd(rounds, place=Place.RUNNING):
            answers = team.together(
                pace.first(partial(ENDS[one], member)), pace.second(partial(ENDS[other], member))
            )
            assert sorted(map(len, answers)) == [0, 1], answers
            winner = int(bool(answers[1]))
            pace.won(winner)
            won[member.job_id] = KINDS.get(name := (one, other)[winner], name)
    last = dict(JobEvent.objects.order_by("seq").values_list("job_id", "kind"))
    assert last == won
    counts = Counter(JobEvent.objects.values_list("job_id", flat=True))
    assert set(counts.values()) == {4}, "created, leased, started, and one end"
    assert_balanced()
    return pace.wins


@pytest.mark.parametrize("expiry", ["expired", "expired, dead"])
def test_f18_a_lease_is_completed_or_expired_but_never_both(expiry):
    wins = race(ROUNDS, "succeeded", expiry)
    assert min(wins) > 0, f"one side always came first: {wins}"
    statuses = set(Job.objects.values_list("status", flat=True))
    assert statuses == {"succeeded", "scheduled" if expiry == "expired" else "dead"}


@pytest.mark.parametrize("end", [name for name in ENDS if name != "succeeded"])
def test_a_completion_and_any_other_end_of_its_lease_exclude_each_other(end):
    wins = race(max(50, ROUNDS // 4), "succeeded", end)
    assert min(wins) > 0, f"one side always came first: {wins}"


def test_a_heartbeat_and_an_expiry_agree_on_whether_the_lease_lives():
    """Whoever comes first is believed by the other: extended and expired at once would be two owners soon."""
    pace = Pace()
    with Team(2) as team:
        for member in make_crowd(ROUNDS, place=Place.RUNNING):
            now = database_now() + timedelta(seconds=40)  # past the lease, and the beat is late
            beat = partial(extend_leases, lease_ids=[member.lease_id], now=now, **held(member))
            lapse = partial(
                expire_started,
                shards=[member.shard],
                actor=SCHEDULER,
                retries={member.lease_id: {**ITEM, "cause": "lease_expired"}},
                deaths={},
                now=now,
            )
            kept, expired = team.together(pace.first(beat), pace.second(lapse))
            assert (len(kept), len(expired)) in ((1, 0), (0, 1))
            pace.won(int(bool(expired)))
    assert_balanced()
    assert min(pace.wins) > 0, f"one side always came first: {pace.wins}"


def test_kf25_a_stale_owner_and_the_new_one_reporting_together_leave_the_new_ones_result():
    stale, fresh = make_stale_and_fresh(ROUNDS)
    with Team(2) as team:
        for old, new in zip(stale, fresh, strict=True):
            late = partial(
                complete_jobs,
                shards=[old.shard],
                worker_id=WORKER,
                results={old.lease_id: {"by": "stale"}},
            )
            right = partial(
                complete_jobs,
                shards=[new.shard],
                worker_id=OTHER,
                results={new.lease_id: {"by": "fresh"}},
            )
            assert team.together(late, right) == [set(), {new.lease_id}]
    assert set(Job.objects.values_list("result__by", "attempt")) == {("fresh", 2)}
    assert_balanced()
