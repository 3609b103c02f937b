"""dispatch when there is more due work than room: tenants, limits, reserves, lending, several schedulers, deep backlogs."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import (
    ConcurrencyLimit,
    DueEntry,
    Handler,
    JobEvent,
    Lane,
    Lease,
    Pause,
    Pool,
    Reserve,
    SchedulerNode,
    StartBucket,
    Tenant,
    Worker,
)
from jobs.policies.demand import to_json
from jobs.queries.catalog import forget
from jobs.services import backlog as backlogs
from jobs.services.dispatch import Dispatched, dispatch
from jobs.services.memory import Memory
from jobs.transitions.finish import complete_jobs
from jobs.transitions.take import take_batch
from jobs.transitions.unpark import unpark_jobs
from tests.factories import (
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_handler,
    make_job,
    make_pool,
    make_tenant,
    make_worker,
)
from tests.services.test_dispatch import make_many
from tests.support.books import assert_balanced

pytestmark = pytest.mark.django_db

CROWD = int(os.environ.get("CROWD") or 10_000)  # 100,000 in a long run


def turn(memory: Memory | None = None, **given: object) -> Dispatched:
    forget()
    given = {"shards": all_shards(), "scheduler_id": SCHEDULER_ID, **given}
    return dispatch(memory=memory or Memory(), **given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_work_ahead(settings):
    """Turns come at once here: the measured rate would let any amount of work be published ahead."""
    settings.JOBS = {**settings.JOBS, "publish_ahead_seconds": 1e-9}
    conf.cache_clear()


def end(count: int) -> Counter[int]:
    """Workers take all that is published, and the oldest so many attempts succeed; tenant → how many."""
    for pool in Pool.objects.all():
        take_batch(
            shards=all_shards(),
            pool_id=pool.pk,
            handlers=["billing.charge"],
            worker_id=WORKER,
            limit=1000,
        )
    ended = list(Lease.objects.running().order_by("started_at", "rank")[:count])
    results = {one.pk: None for one in ended}
    assert complete_jobs(shards=all_shards(), worker_id=WORKER, results=results) == set(results)
    return Counter(one.tenant_id for one in ended)


def published_by_tenant() -> Counter[int]:
    return Counter(Lease.objects.values_list("tenant_id", flat=True))


def set_due(minutes_ago: float, **of: object) -> None:
    DueEntry.objects.filter(**of).update(due_at=database_now() - timedelta(minutes=minutes_ago))


# Tenants


def test_kf41_a_tenant_with_one_job_is_served_within_two_turns_of_one_with_ten_thousand():
    crowd, single = make_tenant("crowd"), make_tenant("single")
    make_many(CROWD, tenant=crowd)
    set_due(30, tenant=crowd)
    make_worker(id=WORKER, slots=8)
    memory = Memory()
    turn(memory)
    make_many(1, tenant=single)
    for _ in range(2):
        memory.backlog.groups.clear()  # a tick later: then it looks again, however dear the last look was
        end(1)
        turn(memory)
    assert JobEvent.objects.filter(tenant_id=single.pk, kind="leased").exists()


@pytest.mark.parametrize("deep", [False, True], ids=["read as a whole", "read by groups"])
@pytest.mark.parametrize("weights", [(1, 1), (3, 1)], ids=["1 to 1", "3 to 1"])
def test_kf41_two_tenants_share_eight_slots_by_weight(weights, deep, monkeypatch):
    monkeypatch.setattr(backlogs, "SHALLOW_ROWS", 20 if deep else 10_000)
    tenants = [make_tenant(f"t{n}", weight=weight) for n, weight in enumerate(weights)]
    for tenant in tenants:
        make_many(400, tenant=tenant)
    set_due(30, tenant=tenants[0])  # however long one has waited
    make_worker(id=WORKER, slots=8)
    memory, started = Memory(), Counter[int]()
    while sum(started.values()) < 400:
        turn(memory)
        started += end(4)
    share = started[tenants[0].pk] / sum(started.values())
    assert abs(share - weights[0] / sum(weights)) <= 0.05
    assert_balanced()


def test_kf41_a_tenant_alone_gets_every_slot():
    make_many(100)
    make_worker(id=WORKER, slots=8)
    make_tenant("idle", weight=100)
    turn()
    assert Lease.objects.count() == 8


def started_by_schedulers(parts: list[list[int]]) -> Counter[int]:
    """400 starts on eight slots by one scheduler for each of these parts of the shards; tenant → how many."""
    nodes = [(uuid4(), Memory(), part) for part in parts]
    for node, _, _ in nodes:
        SchedulerNode.objects.create(
            id=node, host="h", pid=1, expires_at=database_now() + timedelta(hours=1)
        )
    make_worker(id=WORKER, slots=8)
    started: Counter[int] = Counter()
    while sum(started.values()) < 400:
        for node, memory, shards in nodes:
            done = turn(memory, scheduler_id=node, shards=shards)
            SchedulerNode.objects.filter(pk=node).update(
                demand=to_json(done.demand, memory.published)
            )
        assert Lease.objects.count() <= 8 + 2
        started += end(4)
    return started


@pytest.mark.parametrize("schedulers", [2, 3])
def test_several_schedulers_split_a_pool_by_the_weights_of_what_waits_in_their_shards(schedulers):
    """3 to 1 within 5 %, though each tenant's jobs are claimed by another process that knows only its own shards."""
    heavy, light = make_tenant("heavy", weight=3), make_tenant("light")
    make_many(400, tenant=heavy)
    make_many(400, tenant=light)
    homes = {
        tenant.pk: DueEntry.objects.filter(tenant=tenant).values_list("shard", flat=True)[0]
        for tenant in (heavy, light)
    }
    assert len(set(homes.values())) == 2
    parts = [[homes[heavy.pk]], [homes[light.pk]]]
    rest = [shard for shard in all_shards() if shard not in homes.values()]
    parts = [*parts, rest] if schedulers == 3 else [parts[0], parts[1] + rest]
    started = started_by_schedulers(parts)
    share = started[heavy.pk] / sum(started.values())
    assert 0.70 <= share <= 0.80
    assert_balanced()


def test_a_tenant_of_two_shards_weighs_as_much_as_one_of_one():
    """Both shards of the first lie with one scheduler, that of the second with another, and a third has neither."""
    wide, narrow = make_tenant("wide", shard_spread=2), make_tenant("narrow")
    make_many(400, tenant=wide)
    make_many(400, tenant=narrow)
    homes = {
        tenant.pk: set(DueEntry.objects.filter(tenant=tenant).values_list("shard", flat=True))
        for tenant in (wide, narrow)
    }
    assert homes[wide.pk].isdisjoint(homes[narrow.pk])
    rest = [shard for shard in all_shards() if shard not in homes[wide.pk] | homes[narrow.pk]]
    parts = [sorted(homes[wide.pk]), sorted(homes[narrow.pk]), rest]
    started = started_by_schedulers(parts)
    assert 0.45 <= started[wide.pk] / sum(started.values()) <= 0.55


def test_what_another_scheduler_wrote_cannot_stop_this_one():
    make_many(3)
    shard = DueEntry.objects.values_list("shard", flat=True)[0]
    make_worker(id=WORKER, slots=8)
    odd = {str(make_pool().pk): {"a": [1], "3": [None, "x", {}]}}
    for demand in (7, "x", {"due": 3, "published": 3}, {"due": odd, "published": odd}):
        SchedulerNode.objects.create(
            id=uuid4(),
            host="h",
            pid=1,
            expires_at=database_now() + timedelta(hours=1),
            demand=demand,
        )
    assert turn(shards=[shard]).published == 3


# Limits


def test_a_tenant_never_has_more_than_its_most_running_jobs():
    limited, other = make_tenant("limited", max_running=3), make_tenant("other")
    make_many(20, tenant=limited)
    make_many(20, tenant=other)
    make_worker(id=WORKER, slots=10)
    memory = Memory()
    assert turn(memory).published == 10
    assert published_by_tenant() == {limited.pk: 3, other.pk: 7}
    for _ in range(5):
        end(2)
        turn(memory)
        assert published_by_tenant()[limited.pk] <= 3
        assert Lease.objects.count() == 10  # others take what it may not


def test_a_limit_counts_what_another_scheduler_has_just_claimed(monkeypatch):
    """The hint is stale; the claim counts under the tenant's lock."""
    limited = make_tenant("limited", max_running=3)
    make_many(20, tenant=limited)
    make_worker(id=WORKER, slots=10)
    monkeypatch.setattr("jobs.services.terms.held_leases", lambda **kwargs: [])
    memory = Memory()
    assert [turn(memory).published for _ in range(3)] == [3, 0, 0]


@pytest.mark.parametrize("scope", ["tenant", "handler"])
def test_starts_are_limited_to_a_rate_with_a_burst(scope):
    tenant = make_tenant("rated")
    make_many(50, tenant=tenant)
    if scope == "tenant":
        Tenant.objects.filter(pk=tenant.pk).update(start_rate=2.0, start_burst=5)
    else:
        Handler.objects.filter(name="billing.charge").update(start_rate=2.0, start_burst=5)
    make_worker(id=WORKER, slots=50)
    memory, began = Memory(), database_now()

    def published(after_seconds: float) -> int:
        Worker.objects.update(last_seen_at=began + timedelta(seconds=after_seconds))
        return turn(memory, now=began + timedelta(seconds=after_seconds)).published

    assert [published(at) for at in (0, 0.1, 0.6, 1.6, 100)] == [5, 0, 1, 2, 5]
    done = turn(memory, now=began + timedelta(seconds=100))
    assert (done.published, done.wake_seconds) == (0, 0.5)
    assert StartBucket.objects.get().tokens < 1


def test_a_rate_that_binds_one_handler_holds_nothing_else_back():
    make_handler("slow.lane", start_rate=0.001, start_burst=1)
    make_many(10, handler="slow.lane")
    make_many(10, handler="billing.charge")
    make_worker(id=WORKER, slots=20, handlers=("slow.lane", "billing.charge"))
    assert turn().published == 11


def keys_running() -> Counter[str]:
    return Counter(str(key) for key in Lease.objects.values_list("concurrency_key", flat=True))


@pytest.mark.parametrize("spread", [1, 64], ids=["in one shard", "in all shards"])
def test_a_concurrency_key_runs_one_job_at_a_time_and_nothing_else_waits_for_it(spread):
    tenant = make_tenant("keyed", shard_spread=spread)
    make_many(30, tenant=tenant, concurrency_key="invoice-7")
    set_due(10)
    make_many(5, tenant=tenant)
    make_worker(id=WORKER, slots=10)
    memory = Memory()
    assert turn(memory).published == 6
    assert keys_running() == {"invoice-7": 1, "None": 5}
    assert DueEntry.objects.filter(parked=True).count() >= 1
    end(6)
    for _ in range(4):
        assert unpark_jobs(shards=all_shards()) >= 1
        assert turn(memory).published == 1
        assert keys_running() == {"invoice-7": 1}
        end(1)
    unpark_jobs(shards=all_shards())
    turn(memory)
    assert unpark_jobs(shards=all_shards()) == 0  # its slot is taken
    assert_balanced()


def test_a_concurrency_key_has_as_many_slots_as_its_limit_says():
    tenant = make_tenant("keyed")
    ConcurrencyLimit.objects.create(tenant=tenant, key="k", slots=3)
    make_many(10, tenant=tenant, concurrency_key="k")
    make_many(10, tenant=make_tenant("other"), concurrency_key="k")
    make_worker(id=WORKER, slots=20)
    memory = Memory()
    turn(memory)
    assert Counter(Lease.objects.values_list("tenant__slug", flat=True)) == {
        "keyed": 3,
        "other": 1,
    }
    slots = Lease.objects.filter(tenant=tenant).values_list("concurrency_slot", flat=True)
    assert set(slots) == {0, 1, 2}
    ConcurrencyLimit.objects.update(slots=5)
    unpark_jobs(shards=all_shards())
    turn(memory)
    assert Lease.objects.filter(tenant=tenant).count() == 5


# Reserves and lanes


def test_reserved_slots_stay_free_for_their_lane_and_are_filled_first():
    pool = make_pool()
    Reserve.objects.create(pool=pool, lane=Lane.objects.get(name="urgent"), slots=2)
    Reserve.objects.create(pool=pool, lane=Lane.objects.get(name="background"), slots=1)
    make_many(20, lane="normal")
    make_worker(id=WORKER, slots=8)
    memory = Memory()
    assert turn(memory) == Dispatched(published=5, blocked=True)
    make_many(9, lane="background")
    make_many(9, lane="urgent")
    turn(memory)
    assert Counter(Lease.objects.values_list("lane__name", flat=True)) == {
        "normal": 5,
        "urgent": 2,
        "background": 1,
    }
    first = Lease.objects.order_by("rank")[0]
    assert first.lane.name in ("urgent", "background")  # taken before what fills no reserve
    told = JobEvent.objects.filter(kind="leased", detail__reserve=True)
    assert told.count() == 3


def test_kf40_background_work_starts_within_the_head_start_of_an_endless_urgent_stream():
    """One slot, an urgent job of a second every second, gap 100 s: the background job starts after 110 s at most."""
    Lane.objects.filter(name="urgent").update(head_start_seconds=100.0)
    make_worker(id=WORKER, slots=1)
    began = database_now() - timedelta(minutes=10)
    background = make_job(lane="background", due_at=began)
    memory = Memory()
    for second in range(111):
        now = began + timedelta(seconds=second)
        make_job(lane="urgent", due_at=now, request_key=f"u{second}")
        Worker.objects.update(last_seen_at=now)
        turn(memory, now=now)
        if Lease.objects.filter(job=background).exists():
            assert 95 <= second <= 110
            return
        end(1)
    pytest.fail("the background job never started")


# Pools


def test_a_full_pool_borrows_free_slots_of_another_one_whose_labels_allow_it():
    home, big = make_pool("home", labels={"k": "a"}), make_pool("big", labels={"k": "a", "x": "y"})
    make_many(12, labels={"k": "a"})
    make_many(3, labels={"k": "a", "x": "y"})
    make_worker(home, id=WORKER, slots=4)
    make_worker(big, pid=2, slots=5)
    assert turn().published == 9
    assert Counter(Lease.objects.values_list("pool__name", flat=True)) == {"home": 4, "big": 5}
    lent = JobEvent.objects.filter(kind="leased", detail__home="home")
    assert set(lent.values_list("detail__pool", flat=True)) == {"big"}
    assert lent.count() == 2  # its own three went first


def test_i14_nothing_is_lent_by_a_pool_that_wants_to_be_asked_for():
    home = make_pool("home")
    gpu = make_pool("gpu", labels={"gpu": "a100"}, exclusive_labels={"gpu": "a100"})
    make_many(12)
    make_worker(home, id=WORKER, slots=2)
    make_worker(gpu, pid=2, slots=5)
    assert turn().published == 2
    assert not Lease.objects.filter(pool=gpu).exists()


@pytest.mark.parametrize("kind", ["tenant", "lane", "pool", "handler"])
def test_what_is_paused_is_not_claimed_and_all_else_goes_on(kind):
    make_pool("other", labels={"k": "v"})
    paused, goes_on = make_tenant("paused"), make_tenant("goes-on")
    make_many(5, tenant=paused, lane="low", handler="mail.send")
    make_many(5, tenant=goes_on, labels={"k": "v"})
    make_worker(id=WORKER, slots=20, handlers=("mail.send", "billing.charge"))
    make_worker(Pool.objects.get(name="other"), pid=2, slots=20)
    target = {"tenant": "paused", "lane": "low", "pool": "default", "handler": "mail.send"}[kind]
    pause = Pause.objects.create(kind=kind, target=target, reason="r", paused_by="user:7")
    memory = Memory()
    assert turn(memory).published == 5
    assert set(Lease.objects.values_list("tenant__slug", flat=True)) == {"goes-on"}
    Pause.objects.filter(pk=pause.pk).update(resume_at=database_now() - timedelta(seconds=1))
    assert turn(memory).published == 5


def test_a_late_claim_tells_what_the_job_waited_for():
    tenant = make_tenant("acme", max_running=1)
    make_many(2, tenant=tenant)
    began = database_now()
    DueEntry.objects.update(due_at=began)
    make_worker(id=WORKER, slots=4)
    memory = Memory()

    def at(seconds: float) -> datetime:
        Worker.objects.update(last_seen_at=began + timedelta(seconds=seconds))
        return began + timedelta(seconds=seconds)

    for second in range(8):
        turn(memory, now=at(second))
    end(1)
    Pause.objects.create(kind="tenant", target="acme", reason="r", paused_by="user:7")
    for second in range(8, 12):
        turn(memory, now=at(second))
    Pause.objects.all().delete()
    turn(memory, now=at(12))
    leased = JobEvent.objects.filter(kind="leased").order_by("at")
    first, second_waited = leased.values_list("detail__waited", flat=True)
    assert first is None
    assert second_waited == {
        "tenant_max_running": pytest.approx(7, abs=1.1),
        "tenant_paused": pytest.approx(4, abs=1.1),
    }
