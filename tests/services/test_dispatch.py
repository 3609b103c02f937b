"""dispatch: the best due jobs go to the pools that may run them, as far as each pool has room."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import DueEntry, Job, Lane, Lease, Pool, Route, Worker
from jobs.policies.priority import rank
from jobs.policies.window import PublishWindow
from jobs.queries.candidates import due_rows
from jobs.services import backlog, publishing
from jobs.services import dispatch as dispatching
from jobs.services.dispatch import Dispatched, dispatch
from jobs.services.memory import Memory
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.states import Place
from jobs.transitions.claim import claim_batch
from jobs.transitions.take import take_batch
from tests.factories import (
    SCHEDULER,
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_handler,
    make_job,
    make_pool,
    make_tenant,
    make_worker,
)
from tests.support.places import unchanged, watching

pytestmark = pytest.mark.django_db


def turn(*, shards=None, memory=None, now=None, fresh=False) -> Dispatched:
    return dispatch(
        shards=all_shards() if shards is None else shards,
        memory=memory or Memory(),
        scheduler_id=SCHEDULER_ID,
        fresh=fresh,
        now=now,
    )


def make_many(count, *, tenant=None, **fields):
    make_handler(fields.setdefault("handler", "billing.charge"))
    make_pool()
    request = parse_request(fields)
    return submit_jobs(
        tenant=tenant or make_tenant(), requests=[request] * count, actor="token:test0001"
    )


def published_in(pool):
    return set(Lease.objects.published().filter(pool=pool).values_list("job_id", flat=True))


def test_a_due_job_is_published_to_the_pool_of_a_live_worker():
    job, pool = make_job(), make_pool()
    make_worker(pool)
    with watching() as change:
        assert turn() == Dispatched(published=1)
    assert published_in(pool) == {job.pk}
    assert [(told["kind"], told["actor"]) for told in change.events] == [("leased", SCHEDULER)]
    with unchanged():
        assert turn() == Dispatched()


def test_work_that_is_not_due_yet_stays_untouched():
    make_job(delay_seconds=3600)
    make_worker()
    with unchanged():
        assert turn() == Dispatched()
    assert turn(now=database_now() + timedelta(seconds=20)) == Dispatched()


def test_only_the_schedulers_own_shards_are_dispatched():
    mine, theirs = make_job(), make_job(tenant=make_tenant("globex"))
    assert mine.shard != theirs.shard
    make_worker()
    assert turn(shards=[theirs.shard]) == Dispatched(published=1)
    assert published_in(make_pool()) == {theirs.pk}
    with unchanged():
        assert turn(shards=[]) == Dispatched()


# Order


@pytest.mark.parametrize("seed", [1, 2])
def test_jobs_are_published_in_the_order_of_the_policy_across_lanes_and_priorities(seed):
    rng = random.Random(seed)
    lanes = list(Lane.objects.values_list("name", flat=True))
    jobs = [make_job(lane=rng.choice(lanes), priority=rng.randint(-100, 100)) for _ in range(40)]
    now = database_now()
    for job in jobs:
        due_at = now - timedelta(seconds=rng.randint(0, 900))
        DueEntry.objects.filter(pk=job.pk).update(due_at=due_at)
    entries = DueEntry.objects.select_related("lane")
    ranks = {
        entry.pk: rank(
            due_at=entry.due_at,
            head_start_seconds=entry.lane.head_start_seconds,
            priority=entry.priority,
        )
        for entry in entries
    }
    order = sorted(ranks, key=lambda job_id: (ranks[job_id], job_id.bytes))
    pool, worker = make_pool(), make_worker(slots=7)
    assert turn() == Dispatched(published=7, blocked=True)
    assert published_in(pool) == set(order[:7])
    Worker.objects.filter(pk=worker.pk).update(slots=20)
    assert turn() == Dispatched(published=13, blocked=True)
    assert published_in(pool) == set(order[:20])
    leases = Lease.objects.all()
    assert {lease.job_id: lease.rank for lease in leases} == {
        key: ranks[key] for key in order[:20]
    }


# Room


def test_a_pool_gets_as_much_as_its_free_slots_and_says_that_it_is_full():
    make_many(10)
    make_worker(slots=4)
    assert turn() == Dispatched(published=4, blocked=True)
    with unchanged():
        assert turn() == Dispatched(blocked=True)


def test_running_work_and_published_work_both_take_room():
    make_job(place=Place.RUNNING)
    make_job(place=Place.PUBLISHED)
    make_many(10)
    make_worker(id=WORKER, slots=5)
    assert turn() == Dispatched(published=3, blocked=True)


@pytest.mark.parametrize("state", ["draining", "stopped", "silent", "unknown"])
def test_what_a_worker_holds_that_takes_no_work_any_more_takes_no_room_of_the_others(state):
    """Otherwise a crash of one worker would idle the others until its leases run out."""
    for _ in range(5):
        make_job(place=Place.RUNNING)
    if state == "silent":
        make_worker(id=WORKER, slots=5, last_seen_at=database_now() - timedelta(minutes=5))
    elif state != "unknown":
        make_worker(id=WORKER, slots=5, state=state)
    make_many(10)
    make_worker(slots=4, pid=2)
    assert turn() == Dispatched(published=4, blocked=True)


def test_what_a_worker_holds_beyond_its_slots_takes_no_room_of_the_others():
    for _ in range(5):
        make_job(place=Place.RUNNING)
    make_worker(id=WORKER, slots=2)
    make_many(10)
    make_worker(slots=4, pid=2)
    assert turn() == Dispatched(published=4, blocked=True)


def test_the_slots_of_all_live_workers_of_a_pool_count():
    make_many(10)
    make_worker(slots=2)
    make_worker(slots=3, pid=2)
    make_worker(slots=100, pid=3, state="draining")
    make_worker(slots=100, pid=4, last_seen_at=database_now() - timedelta(minutes=5))
    assert turn() == Dispatched(published=5, blocked=True)


def test_a_fast_pool_gets_a_quarter_second_of_its_measured_rate_in_advance():
    make_many(100)
    make_worker(slots=8)
    memory = Memory(windows={make_pool().pk: PublishWindow(0.25, rate=200.0)})
    assert turn(memory=memory) == Dispatched(published=58, blocked=True)


def test_a_pool_that_starts_its_work_is_seen_to_be_fast():
    make_many(40)
    make_worker(slots=4)
    memory = Memory()
    turn(memory=memory)
    Lease.objects.update(worker=WORKER, started_at=database_now())
    turn(memory=memory)
    assert memory.windows[make_pool().pk].rate > 0


def test_a_turn_claims_in_batches_until_the_room_is_filled(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "claim_batch": 3}
    conf.cache_clear()
    claims: list[int] = []

    def counted(**given):
        claims.append(len(given["job_ids"]))
        return claim_batch(**given)

    monkeypatch.setattr(publishing, "claim_batch", counted)
    make_many(10)
    make_worker(slots=8)
    assert turn() == Dispatched(published=8, blocked=True)
    assert claims == [3, 3, 2]


def test_a_shard_that_becomes_deep_hides_nothing_behind_what_was_known_of_it():
    memory = Memory()
    make_many(60, lane="urgent")  # read as a whole
    worker = make_worker(slots=1)
    assert turn(memory=memory).published == 1
    make_many(100, lane="urgent")  # and now by groups
    late = make_job(lane="background")
    Worker.objects.filter(pk=worker.pk).update(slots=80)
    assert turn(memory=memory).published == 79
    assert not Lease.objects.filter(job_id=late.pk).exists()


def test_kf39_lending_is_reached_however_long_a_round_takes(monkeypatch):
    monkeypatch.setattr(dispatching, "TURN_SECONDS", -1.0)  # over as soon as it begins
    busy = [make_pool(f"busy-{n}", labels={"kind": f"k{n}"}) for n in range(3)]
    idle = make_pool("idle", labels={"kind": "k0", "spare": "yes"})
    for number, pool in enumerate(busy):
        make_many(20, labels={"kind": f"k{number}"})
        make_worker(pool, slots=2)
    make_worker(idle, slots=3)
    memory = Memory()
    for _ in range(8):
        turn(memory=memory)
    assert [len(published_in(pool)) for pool in (*busy, idle)] == [2, 2, 2, 3]


def test_a_long_turn_ends_and_the_next_goes_on_with_the_pool_it_had_come_to(settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "claim_batch": 3}
    conf.cache_clear()
    monkeypatch.setattr(dispatching, "TURN_SECONDS", -1.0)  # over as soon as it begins
    pools = [make_pool(name, labels={"kind": name}) for name in ("a", "b", "c")]
    for pool in pools:
        make_many(4, labels={"kind": pool.name})
        make_worker(pool, slots=8)
    memory, seen = Memory(), []
    while (done := turn(memory=memory)).more:
        seen.append([len(published_in(pool)) for pool in pools])
        assert done.published
        assert len(seen) < 20
    assert seen[:3] == [[3, 0, 0], [3, 3, 0], [3, 3, 3]]
    assert [len(published_in(pool)) for pool in pools] == [4, 4, 4]


def test_kf39_a_full_pool_never_stands_before_an_idle_one(settings):
    settings.JOBS = {**settings.JOBS, "claim_batch": 32}
    conf.cache_clear()
    full, idle = make_pool("full", labels={"kind": "full"}), make_pool("idle", labels={"k": "i"})
    make_many(1000, lane="urgent", labels={"kind": "full"})
    make_many(100, lane="background", labels={"k": "i"})
    make_worker(full, slots=5)
    make_worker(idle, id=WORKER, slots=20)
    assert turn() == Dispatched(published=25, blocked=True)
    Lease.objects.filter(pool=idle).update(worker=WORKER, started_at=database_now())
    Worker.objects.filter(pool=idle).update(slots=30)
    assert turn() == Dispatched(published=10, blocked=True)
    assert (len(published_in(full)), len(published_in(idle))) == (5, 10)


# Routing


def test_work_goes_only_where_its_labels_allow_it():
    eu, us = (make_pool(region, labels={"region": region}) for region in ("eu", "us"))
    for pool in (eu, us):
        make_worker(pool)
    here = make_job(labels={"region": "eu"}, pool=eu)
    there = make_job(labels={"region": "us"}, pool=us)
    assert turn() == Dispatched(published=2)
    assert (published_in(eu), published_in(us)) == ({here.pk}, {there.pk})


def test_the_tightest_match_is_home_so_that_special_machines_stay_free():
    plain, big = make_pool("plain"), make_pool("big", labels={"gpu": "a100", "region": "eu"})
    for pool in (plain, big):
        make_worker(pool)
    jobs = {make_job().pk, make_job().pk}
    assert turn() == Dispatched(published=2)
    assert (published_in(plain), published_in(big)) == (jobs, set())


def test_a_pool_with_exclusive_labels_takes_only_work_that_asks_for_them():
    gpu = make_pool("gpu", labels={"gpu": "a100"}, exclusive_labels={"gpu": "a100"})
    make_pool("plain")  # stored, but nobody works there
    make_worker(gpu)
    plain, asks = make_job(), make_job(labels={"gpu": "a100"})
    assert turn() == Dispatched(published=1)
    assert published_in(gpu) == {asks.pk}
    assert DueEntry.objects.get().pk == plain.pk


def test_kf42_work_for_a_stored_pool_without_workers_waits_and_runs_nowhere_else():
    mars = make_pool("mars", labels={"region": "mars"})
    make_worker(make_pool("earth"))
    job = make_job(labels={"region": "mars"})
    with unchanged():
        assert turn() == Dispatched()
    make_worker(mars, pid=2)
    assert turn() == Dispatched(published=1)
    assert published_in(mars) == {job.pk}


def test_kf43_work_goes_only_to_a_pool_whose_workers_know_its_handler():
    old, new = make_pool("old"), make_pool("new", labels={"release": "2"})
    make_worker(old, handlers=("billing.charge",))
    job = make_job(handler="billing.refund")
    with unchanged():
        assert turn() == Dispatched()
    make_worker(new, handlers=("billing.charge", "billing.refund"), pid=2)
    assert turn() == Dispatched(published=1)
    assert published_in(new) == {job.pk}


# Races and poison


def test_candidates_that_went_to_somebody_else_are_counted_as_lost(monkeypatch):
    make_job()
    gone = make_job(place=Place.FINISHED)
    make_worker()
    row = due_rows(shards=all_shards(), limit=1)[0]
    stale = [row, row._replace(job_id=gone.pk)]
    monkeypatch.setattr(backlog, "due_rows", lambda **kwargs: stale)
    assert turn() == Dispatched(published=1, lost=1)


@pytest.mark.parametrize(
    "sql",
    [
        f"update {table} set {column} = '{number}'"
        for table, column in (
            ("jobs_lane", "head_start_seconds"),
            ("jobs_lane", "target_start_seconds"),
            ("jobs_tenant", "start_rate"),
            ("jobs_handler", "start_rate"),
        )
        for number in ("nan", "infinity", "1e15", "-1")
    ],
)
def test_f65_settings_that_no_turn_could_work_with_are_refused_by_the_database(sql):
    make_job()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


def test_f65_rows_broken_by_hand_do_not_keep_others_from_being_dispatched():
    job = make_job()
    pool = make_pool()
    make_worker(pool)
    Pool.objects.create(name="bad-labels", labels=["region", "eu"])
    Pool.objects.create(name="bad-exclusive", exclusive_labels=7)
    Route.objects.create(handler="billing.charge", labels="region=eu", labels_text="bad")
    for number, handlers in enumerate((7, {"a": 1}, [1, ["billing.charge"]], "billing")):
        worker = make_worker(pool, pid=10 + number)
        Worker.objects.filter(pk=worker.pk).update(handlers=handlers)
    assert turn() == Dispatched(published=1)
    assert published_in(pool) == {job.pk}


# KF-18: a claim takes what it was asked to take, whatever plan the planner picks

TABLES = ["jobs_job", "jobs_dueentry", "jobs_lease", "jobs_lane"]


@pytest.fixture
def worst_plans():
    """No statistics, and none of the plans that read a sub-select only once. Ends with the test's transaction."""
    with connection.cursor() as cursor:
        for name in ("hashjoin", "mergejoin", "material", "hashagg", "sort"):
            cursor.execute(f"set local enable_{name} = off")
        cursor.execute("select count(*) from pg_stats where tablename = any(%s)", [TABLES])
        if cursor.fetchone() != (0,):  # somebody analysed; forgotten until the rollback
            cursor.execute(
                "delete from pg_statistic where starelid = any(%s::text[]::regclass[])", [TABLES]
            )


def test_kf18_these_plans_do_make_a_limited_sub_select_take_too_many(worst_plans):
    pool = make_pool()
    ids = [job.job_id for job in make_many(100)]
    claim_batch(shards=all_shards(), job_ids=ids, pool=pool, actor=SCHEDULER)
    with connection.cursor() as cursor:
        cursor.execute(
            """update jobs_lease set worker = %s, started_at = now() where shard = any(%s) and id in (
                select id from jobs_lease where shard = any(%s) and pool_id = %s and worker is null
                order by rank limit 10 for update skip locked)""",
            [str(WORKER), all_shards(), all_shards(), pool.pk],
        )
        assert cursor.rowcount > 10


def test_kf18_a_claim_never_takes_more_than_its_batch(worst_plans):
    make_many(1000, tenant=make_tenant("spread", shard_spread=64))
    pool = make_pool()
    leased = 0
    for _ in range(100):
        ids = [row.job_id for row in due_rows(shards=all_shards(), limit=10)][:10]
        claimed = claim_batch(shards=all_shards(), job_ids=ids, pool=pool, actor=SCHEDULER)
        now_leased = Lease.objects.count()
        assert len(ids) == claimed.published == now_leased - leased == 10
        leased = now_leased
    assert not DueEntry.objects.exists()
    assert Job.objects.filter(status="leased", attempt=1, lease_token=1).count() == 1000


def test_kf18_a_take_never_takes_more_than_its_limit(worst_plans):
    pool = make_pool()
    jobs = make_many(300)
    ids = [job.job_id for job in jobs]
    claim_batch(shards=all_shards(), job_ids=ids, pool=pool, actor=SCHEDULER)
    running = 0
    for _ in range(30):
        taken = take_batch(
            shards=all_shards(),
            pool_id=pool.pk,
            handlers=["billing.charge"],
            worker_id=WORKER,
            limit=10,
        )
        now_running = Lease.objects.running().count()
        assert len({each.lease_id for each in taken}) == now_running - running == 10
        running = now_running


def test_kf18_the_other_rows_of_a_shard_stay_when_one_is_claimed(worst_plans):
    pool = make_pool()
    jobs = make_many(300)  # of one tenant with spread one: all in one shard
    shard = jobs[0].shard
    done = claim_batch(shards=[shard], job_ids=[jobs[0].job_id], pool=pool, actor=SCHEDULER)
    assert (done.published, done.lost) == (1, 0)
    assert (DueEntry.objects.count(), Lease.objects.count()) == (299, 1)
