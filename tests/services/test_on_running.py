"""on_running: what happens when a schedule fires while an earlier run of it is published or running."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from jobs.clock import database_now
from jobs.errors import ValidationFailed
from jobs.models import DueEntry, Job, JobEvent, Lease, Occurrence, Schedule
from jobs.queries.why import why
from jobs.services.missed import decide_running, judge_missed_jobs, settle_occurrences
from jobs.services.outcomes import AttemptOutcome, Ending, report_outcomes
from jobs.services.schedules import trigger_schedule
from jobs.transitions.claim import claim_batch
from jobs.transitions.limits import Limits
from jobs.transitions.unpark import unpark_jobs
from tests.factories import (
    SCHEDULER,
    WORKER,
    all_shards,
    make_handler,
    make_pool,
    make_scheduler,
    make_tenant,
    make_worker,
    take,
)
from tests.support.recurring import NOON, create, job_of, ledger

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


def claim(job: Job, now: Any) -> bool:
    """As dispatch does; False: its key's slot is taken, and it is parked."""
    limits = Limits(tenants={job.pk: job.tenant_id}, keyed=frozenset({job.pk}))
    done = claim_batch(
        shards=[job.shard],
        job_ids=[job.pk],
        pool=make_pool(),
        actor=SCHEDULER,
        limits=limits,
        now=now,
    )
    return done.published == 1


def jobs_of(schedule: Schedule) -> list[Job]:
    rows = Occurrence.objects.filter(schedule=schedule, job_id__isnull=False).order_by("fire_at")
    return [job_of(row) for row in rows]


def decide(now: Any) -> int:
    return decide_running(shards=all_shards(), actor=SCHEDULER, now=now)


def end(job: Job) -> None:
    report_outcomes(
        shards=all_shards(),
        worker_id=WORKER,
        outcomes=[AttemptOutcome(taken=take(job.pk), ending=Ending.SUCCEEDED)],
        rng=random.Random(1),
    )


@pytest.mark.parametrize("begun", [False, True])
def test_skip_leaves_out_a_run_that_finds_an_earlier_one(begun: bool) -> None:
    schedule = create(cron="*/10 * * * *", on_running="skip")
    first, second, third = jobs_of(schedule)[:3]
    assert claim(first, NOON + 10 * MINUTE)
    if begun:
        take(first.pk)
    late = NOON + 20 * MINUTE
    assert not claim(second, late)
    assert decide(late) == 1
    assert ledger(schedule)[1] == ("05-03T12:20", "skipped", "running")
    second.refresh_from_db()
    assert (second.status, second.cancel_reason) == ("cancelled", "running")
    assert [one.kind for one in JobEvent.objects.filter(job_id=second.pk).order_by("seq")] == [
        "created",
        "cancelled",
    ]
    first.refresh_from_db()
    assert first.status == "leased"
    if not begun:
        end(first)
        assert claim(third, NOON + 30 * MINUTE)


def test_skip_runs_when_the_earlier_one_has_ended_meanwhile() -> None:
    schedule = create(cron="*/10 * * * *", on_running="skip")
    first, second = jobs_of(schedule)[:2]
    assert claim(first, NOON + 10 * MINUTE)
    late = NOON + 20 * MINUTE
    assert not claim(second, late)
    end(first)
    assert decide(late) == 0
    assert unpark_jobs(shards=all_shards(), now=late) == 1
    assert claim(second, late)


def test_queue_waits_for_its_turn_and_the_misfire_policy_keeps_the_queue_short() -> None:
    schedule = create(cron="*/10 * * * *", on_running="queue")
    first, second, third = jobs_of(schedule)[:3]
    assert claim(first, NOON + 10 * MINUTE)
    assert not claim(second, NOON + 20 * MINUTE)
    assert decide(NOON + 20 * MINUTE) == 0
    # A minute later it is late and goes on waiting; ten minutes later the next one has overtaken it.
    judge: dict[str, Any] = {"shards": all_shards(), "actor": SCHEDULER}
    assert judge_missed_jobs(**judge, now=NOON + 21 * MINUTE) == 1
    assert ledger(schedule)[1] == ("05-03T12:20", "pending", "")
    assert DueEntry.objects.get(pk=second.pk).misfire_at == NOON + 22 * MINUTE
    assert judge_missed_jobs(**judge, now=NOON + 30 * MINUTE) == 1
    assert ledger(schedule)[1] == ("05-03T12:20", "skipped", "misfire")
    end(first)
    assert claim(third, NOON + 30 * MINUTE)


def test_queue_with_all_runs_every_one_in_turn() -> None:
    schedule = create(cron="*/10 * * * *", on_running="queue", misfire="all")
    first, second, third = jobs_of(schedule)[:3]
    assert claim(first, NOON + 10 * MINUTE)
    late = NOON + 31 * MINUTE
    assert judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=late) == 2
    assert not claim(second, late)
    end(first)
    unpark_jobs(shards=all_shards(), now=late)
    assert claim(second, late)
    assert not claim(third, late)
    assert {verdict for _, verdict, _ in ledger(schedule)} == {"pending"}


def test_cancel_running_asks_the_earlier_one_to_stop_and_waits_for_its_end() -> None:
    schedule = create(cron="*/10 * * * *", on_running="cancel_running")
    first, second = jobs_of(schedule)[:2]
    assert claim(first, NOON + 10 * MINUTE)
    take(first.pk)
    late = NOON + 20 * MINUTE
    assert not claim(second, late)
    assert decide(late) == 1
    first.refresh_from_db()
    assert (first.status, first.cancel_requested_by) == ("leased", SCHEDULER)
    assert Lease.objects.get(job=first.pk).cancel_requested
    assert not claim(second, late)  # never two at once
    assert decide(late) == 1  # and the first one is not asked twice
    kinds = [one.kind for one in JobEvent.objects.filter(job_id=first.pk).order_by("seq")]
    assert kinds.count("cancel_requested") == 1


def test_cancel_running_ends_what_no_worker_has_begun() -> None:
    schedule = create(cron="*/10 * * * *", on_running="cancel_running")
    first, second = jobs_of(schedule)[:2]
    assert claim(first, NOON + 10 * MINUTE)
    late = NOON + 20 * MINUTE
    assert not claim(second, late)
    decide(late)
    first.refresh_from_db()
    assert first.status == "cancelled"
    unpark_jobs(shards=all_shards(), now=late)
    assert claim(second, late)
    settle_occurrences(shards=all_shards(), now=late)
    assert [verdict for _, verdict, _ in ledger(schedule)][:2] == ["ran", "ran"]


def test_the_one_that_waits_says_for_what() -> None:
    make_scheduler()
    schedule = create(database_now() - 30 * MINUTE, cron="*/10 * * * *", on_running="queue")
    first, second = jobs_of(schedule)[:2]
    late = database_now()
    DueEntry.objects.update(misfire_at=late + 10 * MINUTE)
    assert claim(first, late)
    assert not claim(second, late)
    told = why(shard=second.shard, job_id=second.pk)
    (reason,) = [one for one in told if one.code == "concurrency_key"]
    assert reason.sentence == "blocked: an earlier run of its schedule is still under way"


def test_allow_runs_beside_the_earlier_one() -> None:
    schedule = create(cron="*/10 * * * *")
    first, second = jobs_of(schedule)[:2]
    assert (first.concurrency_key, second.concurrency_key) == (None, None)
    assert claim(first, NOON + 10 * MINUTE)
    assert claim(second, NOON + 20 * MINUTE)


def test_a_run_by_hand_waits_like_the_others() -> None:
    schedule = create(cron="*/10 * * * *", on_running="queue")
    (first, *_) = jobs_of(schedule)
    assert claim(first, NOON + 10 * MINUTE)
    made = trigger_schedule(tenant=make_tenant(), schedule_id=schedule.pk, actor="user:anna")
    by_hand = Job.objects.get(pk=made.job_id)
    assert (by_hand.schedule_id, by_hand.fire_at) == (schedule.pk, None)
    assert not claim(by_hand, NOON + 10 * MINUTE)


def test_kf16_a_key_of_its_own_and_a_key_of_a_schedule_are_refused() -> None:
    job = {"handler": "billing.charge", "concurrency_key": "db-7"}
    with pytest.raises(ValidationFailed) as refused:
        create(job=job, on_running="skip")
    assert [one.pointer for one in refused.value.errors] == ["/on_running"]
    job["concurrency_key"] = "schedule:4711"
    with pytest.raises(ValidationFailed) as refused:
        create(job=job)
    assert [(one.pointer, one.field_code) for one in refused.value.errors] == [
        ("/job/concurrency_key", "reserved")
    ]
    with pytest.raises(ValidationFailed):
        create(on_running="perhaps")
