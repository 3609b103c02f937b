"""why: each reason in the state it is about, first where it is what holds the job; and no waiting job without a reason."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from jobs.clock import database_now
from jobs.errors import NotFound
from jobs.models import (
    ConcurrencyLimit,
    DueEntry,
    Handler,
    Job,
    Lane,
    Lease,
    Pause,
    Reserve,
    Route,
    SchedulerNode,
    Shard,
    StartBucket,
    Tenant,
    Worker,
)
from jobs.policies.why import Klass, Reason
from jobs.queries import competition
from jobs.queries.catalog import forget
from jobs.queries.why import why
from jobs.services.dispatch import dispatch
from jobs.services.memory import Memory
from jobs.services.pausing import pause, resume
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.finish import retry_jobs, snooze_jobs
from tests.factories import (
    BOOM,
    SCHEDULER_ID,
    WORKER,
    all_shards,
    lease_of,
    make_handler,
    make_job,
    make_pool,
    make_scheduler,
    make_tenant,
    make_worker,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def scheduler(db):
    make_scheduler()


def reasons(job: Job) -> list[Reason]:
    forget()
    return why(job.pk, job.shard)


def codes(job: Job) -> list[str]:
    return [reason.code for reason in reasons(job)]


def due(job: Job, seconds_ago: float) -> Job:
    moment = Now() - timedelta(seconds=seconds_ago)
    DueEntry.objects.filter(pk=job.pk).update(due_at=moment)
    return job


def stop(kind: str, target: str) -> None:
    pause(kind=Pause.Kind(kind), target=target, actor="user:anna", reason="billing run")


def full_pool(slots: int = 2, **fields: Any) -> None:
    """Its one worker is busy with jobs of another tenant in another lane, unless told otherwise."""
    make_worker(id=WORKER, slots=slots)
    fields = {"tenant": make_tenant("busy"), "lane": "low", **fields}
    for _ in range(slots):
        make_job(place=Place.RUNNING, **fields)


def retried() -> Job:
    job = make_job(place=Place.RUNNING)
    item = {"delay": 60, "error": BOOM, "cause": "error"}
    retry_jobs(shards=[job.shard], worker_id=WORKER, failures={lease_of(job).pk: item})
    return job


def snoozed() -> Job:
    job = make_job(place=Place.RUNNING)
    item = {"delay": 60, "reason": "provider is busy"}
    snooze_jobs(shards=[job.shard], worker_id=WORKER, snoozes={lease_of(job).pk: item})
    return job


def cancelled() -> Job:
    job = make_job()
    cancel_job(shard=job.shard, job_id=job.pk, actor="user:anna", reason="order withdrawn")
    return job


def paused(kind: str) -> Callable[[], Job]:
    def arrange() -> Job:
        make_worker()
        job = make_job()
        names = {"tenant": "acme", "lane": "normal", "pool": "default", "handler": job.handler}
        stop(kind, names[kind])
        return job

    return arrange


def tenant_at_its_limit() -> Job:
    make_worker(slots=9)
    make_job(place=Place.RUNNING)
    Tenant.objects.update(max_running=1)
    return make_job()


def rate_used_up(scope: str) -> Callable[[], Job]:
    def arrange() -> Job:
        make_worker()
        job = make_job()
        rate = {"start_rate": 0.001, "start_burst": 1}
        Tenant.objects.update(**rate) if scope == "tenant" else Handler.objects.update(**rate)
        name = f"tenant:{job.tenant_id}" if scope == "tenant" else f"handler:{job.handler}"
        StartBucket.objects.create(scope=name, tokens=0.0, filled_at=database_now())
        return job

    return arrange


def key_taken() -> Job:
    make_worker(slots=9)
    make_job(place=Place.PUBLISHED)
    Lease.objects.update(concurrency_key="db-7", concurrency_slot=0)
    job = make_job(concurrency_key="db-7")
    DueEntry.objects.filter(pk=job.pk).update(parked=True)
    return job


def pool_gone() -> Job:
    make_worker()
    eu = make_pool("eu", labels={"region": "eu"})
    job = make_job(labels={"region": "eu"}, pool=eu)
    eu.delete()
    return job


def exclusive_pool() -> Job:
    make_worker()
    job = make_job()
    pool = make_pool()
    pool.labels = pool.exclusive_labels = {"gpu": "a100"}
    pool.save()
    return job


def handler_unknown() -> Job:
    make_worker(handlers=("mail.send",))
    return make_job()


def worker_silent() -> Job:
    make_worker(last_seen_at=database_now() - timedelta(minutes=5))
    return make_job()


def draining() -> Job:
    make_worker(state="draining")
    return make_job()


def without_scheduler() -> Job:
    make_worker()
    SchedulerNode.objects.update(expires_at=Now() - timedelta(minutes=1))
    Shard.objects.update(expires_at=Now() - timedelta(minutes=1))
    return make_job()


def shard_without_owner() -> Job:
    make_worker()
    job = make_job()
    Shard.objects.filter(number=job.shard).update(owner=None, expires_at=None)
    return job


def overdue() -> Job:
    make_worker()
    return due(make_job(), 60)


def saturated() -> Job:
    full_pool()
    due(make_job(), 20)
    return due(make_job(), 10)


def overtaken() -> Job:
    full_pool()
    job = due(make_job(lane="background"), 10)
    for _ in range(3):
        make_job(lane="urgent")
    return job


def over_its_share() -> Job:
    make_worker(id=WORKER, slots=2)
    for _ in range(2):
        make_job(place=Place.RUNNING)
    due(make_job(tenant=make_tenant("globex")), 20)
    return due(make_job(), 30)


def reserved() -> Job:
    make_worker(id=WORKER, slots=2)
    make_job(place=Place.RUNNING)
    Reserve.objects.create(pool=make_pool(), lane=Lane.objects.get(name="urgent"), slots=1)
    return make_job()


def published() -> Job:
    make_worker()
    return make_job(place=Place.PUBLISHED)


def silent_lease() -> Job:
    make_worker(id=WORKER)
    job = make_job(place=Place.RUNNING)
    past = Now() - timedelta(seconds=25)
    Lease.objects.update(started_at=past, heartbeat_at=past, published_at=past)
    return job


def ready() -> Job:
    make_worker()
    return make_job()


def no_labels() -> Job:
    make_worker()
    job = make_job()
    Route.objects.update(labels=["region"])
    return job


def entry_lost() -> Job:
    job = make_job()
    DueEntry.objects.filter(pk=job.pk).delete()
    return job


# (what is arranged, code of the first reason, class, figures in its evidence)
CASES: list[tuple[Callable[[], Job], str, Klass, dict[str, Any]]] = [
    (lambda: make_job(delay_seconds=600), "not_due", Klass.INELIGIBLE, {}),
    (retried, "retry_backoff", Klass.INELIGIBLE, {"attempt": 1, "attempts": 3, "policy": "fixed"}),
    (snoozed, "snoozed", Klass.INELIGIBLE, {}),
    (cancelled, "cancelled", Klass.FINISHED, {"reason": "order withdrawn"}),
    (lambda: make_job(place=Place.FINISHED), "finished", Klass.FINISHED, {"attempt": 1}),
    (lambda: make_job(place=Place.DEAD_LETTER), "dead", Klass.FINISHED,
     {"error_type": "ValueError"}),
    (paused("tenant"), "tenant_paused", Klass.INELIGIBLE, {"tenant": "acme"}),
    (paused("lane"), "lane_paused", Klass.INELIGIBLE, {"lane": "normal"}),
    (paused("pool"), "pool_paused", Klass.INELIGIBLE, {"pool": "default"}),
    (paused("handler"), "handler_paused", Klass.INELIGIBLE, {"handler": "billing.charge"}),
    (tenant_at_its_limit, "tenant_max_running", Klass.INELIGIBLE, {"used": 1, "limit": 1}),
    (rate_used_up("tenant"), "tenant_rate", Klass.INELIGIBLE, {"starts_per_second": 0.001}),
    (rate_used_up("handler"), "handler_rate", Klass.INELIGIBLE, {"starts_per_second": 0.001}),
    (key_taken, "concurrency_key", Klass.INELIGIBLE, {"used": 1, "limit": 1}),
    (pool_gone, "no_pool", Klass.INELIGIBLE, {"nearest": "default", "lacks": {"region": "eu"}}),
    (exclusive_pool, "pool_exclusive", Klass.INELIGIBLE, {"must_ask_for": {"gpu": "a100"}}),
    (handler_unknown, "handler_unknown", Klass.INELIGIBLE, {"workers": 1}),
    (worker_silent, "no_live_worker", Klass.INELIGIBLE, {"pools": ["default"]}),
    (draining, "pool_draining", Klass.INELIGIBLE, {"draining": 1}),
    (without_scheduler, "scheduler_down", Klass.ELIGIBLE, {"schedulers": 0}),
    (shard_without_owner, "shard_unowned", Klass.ELIGIBLE, {}),
    (overdue, "shard_lagging", Klass.ELIGIBLE, {"tick_seconds": 1.0}),
    (saturated, "pool_saturated", Klass.ELIGIBLE, {"busy": 2, "slots": 2, "position": 2}),
    (overtaken, "lower_rank", Klass.ELIGIBLE, {"overtaking_by_lane": {"urgent": 3}, "ahead": 3}),
    (over_its_share, "fair_share", Klass.ELIGIBLE,
     {"held": 2, "share": 1, "tenants_waiting": 1}),
    (reserved, "reserved_for_others", Klass.ELIGIBLE, {"free": 1, "lanes": ["urgent"]}),
    (published, "published_waiting", Klass.LEASED, {"pool": "default"}),
    (silent_lease, "lease_silent", Klass.LEASED, {"attempt": 1}),
    (lambda: make_job(place=Place.RUNNING), "running", Klass.LEASED, {"attempt": 1}),
    (ready, "next_turn", Klass.ELIGIBLE, {}),
    (no_labels, "no_pool", Klass.INELIGIBLE, {}),
    (entry_lost, "not_in_calendar", Klass.SYSTEM, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arrange", "code", "klass", "evidence"),
    CASES,
    ids=[f"{number}-{case[1]}" for number, case in enumerate(CASES)],
)
def test_what_holds_the_job_comes_first_with_its_evidence(arrange, code, klass, evidence):
    job = arrange()
    found = reasons(job)
    assert (found[0].code, found[0].klass) == (code, klass)
    assert {name: found[0].evidence.get(name) for name in evidence} == evidence
    json.dumps([(one.evidence, one.internal) for one in found], allow_nan=False)


def test_holders_of_a_limit_are_named_and_are_the_tenants_own():
    make_worker(slots=9)
    own = make_job(place=Place.RUNNING)
    make_job(place=Place.RUNNING, tenant=make_tenant("globex"))
    Tenant.objects.update(max_running=1)
    first = reasons(make_job())[0]
    assert (first.evidence["used"], first.evidence["holders"]) == (1, [str(own.pk)])


def test_a_key_with_free_slots_is_no_reason():
    job = key_taken()
    ConcurrencyLimit.objects.create(tenant=make_tenant(), key="db-7", slots=2)
    assert "concurrency_key" not in codes(job)


def test_a_pause_tells_who_and_why_to_those_who_run_the_system_only():
    first = reasons(paused("lane")())[0]
    assert first.internal == {"by": "user:anna", "reason": "billing run"}
    assert "anna" not in first.sentence + json.dumps(first.evidence)


def test_kf42_a_job_that_no_worker_may_run_says_what_no_worker_advertises():
    mars = make_pool("mars", labels={"region": "mars"})
    make_worker()
    job = make_job(labels={"region": "mars"}, pool=mars)
    assert reasons(job)[0].sentence == "blocked: no worker advertises region=mars"
    assert reasons(job)[0].evidence["needs"] == {"region": "mars"}
    make_worker(mars, pid=2)
    assert codes(job) == ["next_turn"]


def test_kf40_the_reason_of_a_job_behind_a_stream_of_higher_lanes_is_its_priority():
    full_pool()
    job = due(make_job(lane="background", priority=-100), 300)
    for _ in range(5):
        make_job(lane="urgent")
    first = reasons(job)[0]
    assert first.code == "lower_rank"
    assert first.sentence.startswith("waiting: by priority, 5 jobs that came due later go first")
    assert "lane background with priority -100" in first.sentence


def test_f60_labels_that_no_pool_has_any_more_name_the_nearest_pool():
    job = pool_gone()
    sentence = "blocked: no pool offers region=eu; the nearest, default, lacks it"
    assert reasons(job)[0].sentence == sentence


def test_the_skew_of_a_clock_is_told():
    job = ready()
    SchedulerNode.objects.update(clock_skew_seconds=-30)
    found = reasons(job)
    assert (found[-1].code, found[-1].evidence) == ("clock_skew", {"seconds": -30.0})
    assert found[-1].sentence == "the clock of the scheduler of its shard is 30 s behind"
    running = make_job(place=Place.RUNNING)
    Worker.objects.update(id=WORKER, clock_skew_seconds=5)
    assert codes(running) == ["running", "clock_skew"]


def test_a_due_time_before_its_creation_is_told_of_any_job():
    job = make_job(place=Place.FINISHED, due_at="2020-01-01T00:00:00Z")
    assert codes(job) == ["finished", "created_late"]


def test_what_a_claim_had_waited_for_is_told_afterwards():
    job = due(make_job(), 30)
    make_worker(id=WORKER)
    memory, began = Memory(), database_now()
    stop("tenant", "acme")
    for seconds in (0, 1, 2, 3):
        if seconds == 3:
            Pause.objects.all().delete()
        forget()
        dispatch(
            shards=all_shards(),
            memory=memory,
            scheduler_id=SCHEDULER_ID,
            fresh=True,
            now=began + timedelta(seconds=seconds),
        )
    found = reasons(job)
    assert [one.code for one in found] == ["published_waiting", "tenant_paused"]
    assert found[1].klass is Klass.PAST
    assert found[1].evidence == {"attempt": 1, "seconds": 2.0}


def test_a_position_is_counted_up_to_a_cap(monkeypatch):
    full_pool()
    for _ in range(12):
        due(make_job(), 60)
    job = due(make_job(), 10)
    assert reasons(job)[0].evidence["position"] == 13
    monkeypatch.setattr(competition, "POSITION_CAP", 5)
    first = reasons(job)[0]
    assert (first.evidence["position"], first.evidence["position_is_at_least"]) == (6, True)
    assert "at least number 6" in first.sentence


def test_the_number_of_statements_does_not_grow_with_the_backlog():
    full_pool()
    job = make_job()
    forget()
    with CaptureQueriesContext(connection) as few:
        why(job.pk, job.shard)
    for _ in range(30):
        due(make_job(), 60)
    forget()
    with CaptureQueriesContext(connection) as many:
        why(job.pk, job.shard)
    assert len(many) == len(few) < 40


@pytest.mark.parametrize("seed", range(6))
def test_every_job_has_a_reason_in_any_state_of_the_fleet(seed):
    rng = random.Random(seed)
    handlers = ["billing.charge", "mail.send"]
    for name in handlers:
        make_handler(name, start_rate=rng.choice([None, 0.001]))
    pools = [make_pool(), make_pool("eu", labels={"region": "eu"})]
    for number, pool in enumerate(pools):
        for _ in range(rng.randint(0, 2)):
            make_worker(
                pool,
                tuple(rng.sample(handlers, rng.randint(0, 2))),
                slots=rng.randint(0, 3),
                state=rng.choice(["running", "draining", "stopped"]),
                pid=number,
            )
    tenants = [
        make_tenant("acme", max_running=rng.choice([None, 0, 2])),
        make_tenant(
            "globex", start_rate=rng.choice([None, 0.5]), shard_spread=rng.choice([1, 64])
        ),
    ]
    made = [
        make_job(
            place=rng.choice(list(Place)[1:]),
            tenant=rng.choice(tenants),
            pool=rng.choice(pools),
            handler=rng.choice(handlers),
            labels=rng.choice([{}, {"region": "eu"}]),
            lane=rng.choice(["urgent", "normal", "background"]),
            delay_seconds=rng.choice([0, 0, 600]),
        )
        for _ in range(30)
    ]
    for kind, target in (("tenant", "acme"), ("lane", "urgent"), ("pool", "eu")):
        if rng.random() < 0.3:
            stop(kind, target)
    if rng.random() < 0.3:
        Reserve.objects.create(pool=pools[0], lane=Lane.objects.get(name="urgent"), slots=2)
    if rng.random() < 0.3:
        Shard.objects.update(owner=None, expires_at=None)
    for job in made:
        found = reasons(job)
        assert found, job
        assert found[0].klass is not Klass.PAST
        assert all(one.sentence and one.code for one in found)


def test_f65_rows_broken_by_hand_leave_every_job_with_reasons_that_can_be_shown():
    full_pool()
    make_worker(pid=3)
    job, other = make_job(lane="background"), make_job(lane="urgent")
    running = Lease.objects.running().first()
    with connection.cursor() as cursor:
        for sql in (
            "insert into jobs_pause (kind, target, reason, paused_by, paused_at, resume_at)"
            " values ('tenant', 'acme', '', '', '-infinity', 'infinity')",
            "update jobs_worker set last_seen_at = 'infinity', clock_skew_seconds = 'infinity'",
            "update jobs_shard set expires_at = 'infinity'",
            "update jobs_schedulernode set clock_skew_seconds = 'nan'",
        ):
            cursor.execute(sql)
    assert codes(job)[0] == "tenant_paused"
    resume(kind=Pause.Kind.TENANT, target="acme", actor="user:anna")
    assert running is not None
    for job_id, shard in (
        (job.pk, job.shard),
        (other.pk, other.shard),
        (running.job_id, running.shard),
    ):
        forget()
        found = why(job_id, shard)
        assert found
        json.dumps([one.evidence for one in found], allow_nan=False)
    with pytest.raises(NotFound):
        why(job.pk, job.shard + 1)
