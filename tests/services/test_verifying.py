"""The verification of whole histories: what it reads, what it names, and that no row can stop it."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models.functions import Now

from jobs.conf import conf
from jobs.models import DeadLetter, DueEntry, Job, JobEvent, Lease, Shard
from jobs.policies.deliveries import Delivery, Receiver
from jobs.services.reaping import reap
from jobs.services.verifying import verify_history
from jobs.states import Place
from tests.console.test_poison import COLUMNS, JSON_VALUES, KINDS, ODD_TEXT, write
from tests.factories import (
    OTHER_WORKER,
    SCHEDULER,
    all_shards,
    lease_of,
    make_job,
    make_tenant,
)

pytestmark = pytest.mark.usefixtures("committed")  # the snapshot is a transaction of its own


@pytest.fixture
def jobs() -> dict[str, Job]:
    return {
        "healthy": make_job(place=Place.FINISHED),
        "waiting": make_job(request_key="k1"),
        "running": make_job(place=Place.RUNNING, cancel_asked=True),
        "dead": make_job(place=Place.DEAD_LETTER),
        "succeeded": make_job(place=Place.FINISHED),
    }


def found(**how: object) -> set[tuple[UUID | None, str]]:
    """(job, invariant) of every violation."""
    return {(job, one.invariant) for job, one in verify_history(**how).violations}  # type: ignore[arg-type]


def lapse(seconds: float, **which: object) -> None:
    """Let leases be over for so long."""
    past = Now() - timedelta(seconds=seconds)
    Lease.objects.filter(**which).update(expires_at=past, published_at=past)


def test_healthy_rows_are_clean(jobs):
    verdict = verify_history()
    assert verdict.clean
    assert (verdict.jobs, verdict.events) == (5, JobEvent.objects.count())


def test_the_first_offending_job_is_told_with_all_its_events_in_order(jobs):
    first, second = sorted((jobs["succeeded"], jobs["dead"]), key=lambda job: job.pk)
    Job.objects.filter(pk__in=[first.pk, second.pk]).update(attempt=7)
    Lease.objects.filter(job=jobs["running"]).update(job_id=uuid4())
    verdict = verify_history()
    offenders = [job for job, _ in verdict.violations]
    assert verdict.first_job == offenders[0]
    kinds = list(
        JobEvent.objects.filter(job_id=str(verdict.first_job))
        .order_by("seq")
        .values_list("seq", "kind")
    )
    assert [(event.seq, event.kind) for event in verdict.first_story] == kinds


def test_only_the_chosen_jobs_are_checked(jobs):
    other = make_job(handler="billing.refund", tenant=make_tenant("other"))
    Job.objects.filter(pk__in=[other.pk, jobs["dead"].pk]).update(attempt=7)
    assert found(handler="billing.refund") == {(other.pk, "I18")}
    assert found(tenant_id=other.tenant_id) == {(other.pk, "I18")}
    assert found(job_id=other.pk) == {(other.pk, "I18")}
    assert found(job_id=jobs["healthy"].pk) == set()
    assert verify_history(handler="no.such").jobs == 0


# Rows that the events do not explain: each column that is compared, read from its table


LEASE_CHANGES = {
    "id": {"id": UUID(int=7)},
    "token": {"token": 9},
    "attempt": {"attempt": 9},
    "worker": {"worker": OTHER_WORKER},
    "worker and start": {"worker": None, "started_at": None},
    "start": {"started_at": Now() - timedelta(hours=1)},
    "cancel flag": {"cancel_requested": False},
    "counter of events": {"seq": 9},
}
JOB_CHANGES = {
    "attempt": {"attempt": 9},
    "budget": {"attempt_limit": 9},
    "token": {"lease_token": 9},
    "cancel": {"cancel_requested_at": None},
    "status": {"status": "scheduled"},
}


@pytest.mark.parametrize("changes", LEASE_CHANGES.values(), ids=LEASE_CHANGES)
def test_i18_a_lease_that_its_events_do_not_explain_is_told(jobs, changes):
    Lease.objects.filter(job=jobs["running"]).update(**changes)
    assert found() == {(jobs["running"].pk, "I18")}


@pytest.mark.parametrize("changes", JOB_CHANGES.values(), ids=JOB_CHANGES)
def test_i18_a_job_that_its_events_do_not_explain_is_told(jobs, changes):
    Job.objects.filter(pk=jobs["running"].pk).update(**changes)
    expected = {"I18", "I1"} if "status" in changes else {"I18"}
    assert found() == {(jobs["running"].pk, rule) for rule in expected}


@pytest.mark.parametrize("name", ["running", "succeeded", "dead"])
def test_i1_a_due_entry_of_a_job_that_does_not_wait_is_told(jobs, name):
    DueEntry.objects.filter(job=jobs["waiting"]).update(job_id=jobs[name].pk)
    assert found() == {(jobs["waiting"].pk, "I1"), (jobs[name].pk, "I1")}


def test_i1_a_lease_of_a_job_that_is_finished_is_told(jobs):
    lease = lease_of(jobs["running"])
    lease.pk, lease.job_id = uuid4(), jobs["succeeded"].pk
    lease.save(force_insert=True)
    assert (jobs["succeeded"].pk, "I1") in found()
    assert {job for job, _ in found()} == {jobs["succeeded"].pk}


def test_i5_an_event_after_the_end_is_told(jobs):
    job = jobs["succeeded"]
    last = JobEvent.objects.filter(job=job).order_by("-seq")[0]
    last.pk, last.seq, last.kind = last.pk + 1, last.seq + 1, "cancelled"
    last.from_status, last.to_status = "succeeded", "cancelled"
    last.save(force_insert=True)
    assert (job.pk, "I5") in found()


def test_i11_a_success_that_says_nothing_of_the_cancel_before_it_is_told():
    job = make_job(place=Place.FINISHED, cancel_asked=True)
    assert found() == set()
    JobEvent.objects.filter(job=job, kind="succeeded").update(detail=None)
    assert found() == {(job.pk, "I11")}


@pytest.mark.parametrize("place", [Place.PUBLISHED, Place.RUNNING])
def test_i7_an_expiry_before_the_expiry_in_force_is_told(place):
    job = make_job(place=place)
    lapse(60.0, job=job)
    assert reap(shards=all_shards(), actor=SCHEDULER, rng=random.Random(1)).expired == 1
    assert found() == set()
    event = JobEvent.objects.get(job=job, kind__in=["failed", "publish_expired"])
    tolerance = timedelta(seconds=conf().clock_tolerance_seconds)
    early = event.at - tolerance + timedelta(seconds=0.1)
    event.detail = {**(event.detail or {}), "expires_at": early.isoformat()}
    event.save(update_fields=["detail"])
    assert found() == {(job.pk, "I7")}


# I8: somebody was there to take things back


@pytest.fixture
def long_tick(settings) -> float:
    """A tick so long that a slow moment of the machine is small beside it."""
    settings.JOBS = {**settings.JOBS, "tick_seconds": 200.0}
    conf.cache_clear()
    return 200.0


def test_i8_a_lease_that_ran_out_is_late_only_beside_a_live_scheduler(jobs, long_tick):
    job, bound = jobs["running"], conf().clock_tolerance_seconds + long_tick + 1.0
    lapse(bound - 50.0, job=job)
    assert found(scheduler_alive=True) == set()
    lapse(bound + 0.5, job=job)
    assert found() == set()
    assert found(scheduler_alive=True) == {(job.pk, "I8")}


def test_i8_a_shard_whose_owner_fell_silent_is_taken_over_by_a_live_scheduler(jobs, long_tick):
    silent = Now() - timedelta(seconds=long_tick + 60)
    Shard.objects.filter(number=3).update(owner=uuid4(), expires_at=silent)
    assert found() == set()
    assert found(scheduler_alive=True) == {(None, "I8")}
    Shard.objects.filter(number=3).update(expires_at=Now() - timedelta(seconds=0.5))
    assert found(scheduler_alive=True) == set()


# I16, I17: what the receiver says


def test_i16_a_receiver_that_applied_each_success_once_is_clean(jobs):
    once = {jobs[name].pk: [Delivery(name, 1, applied=True)] for name in ("healthy", "succeeded")}
    assert found(deliveries=once) == set()
    assert (
        found(deliveries={**once, jobs["running"].pk: [Delivery("r", 1, applied=True)]}) == set()
    )


def test_i16_an_effect_that_is_missing_or_there_twice_is_told(jobs):
    missing, twice = jobs["healthy"].pk, jobs["succeeded"].pk
    assert found(deliveries={twice: [Delivery("s", 1, applied=True)] * 2}) == {
        (missing, "I16"),
        (twice, "I16"),
    }


def test_i16_an_effect_for_no_job_is_told_unless_only_some_are_checked(jobs):
    once = {
        **{jobs[name].pk: [Delivery(name, 1, applied=True)] for name in ("healthy", "succeeded")},
        UUID(int=5): [Delivery("lost", 1, applied=True)],
    }
    assert found(deliveries=once) == {(UUID(int=5), "I16")}
    assert found(deliveries=once, tenant_id=jobs["healthy"].tenant_id) == set()


def test_i17_a_stale_token_that_was_accepted_is_told(jobs):
    job = jobs["healthy"]
    stale = [Delivery("h", 2, applied=True), Delivery("h", 1, applied=True)]
    JobEvent.objects.filter(job=job, kind="leased").update(token=2)
    assert (job.pk, "I17") in found(deliveries={job.pk: stale}, receiver=Receiver.FENCING)
    assert found(deliveries={}, receiver=Receiver.FENCING) == found()


# F65: rows written past validation


def check_neighbour(jobs: dict[str, Job]) -> None:
    """The verification comes to its end, and of the healthy job it tells the truth: nobody heard of its effect."""
    verdict = verify_history(at_rest=True, scheduler_alive=True, deliveries={})
    assert verdict.jobs == Job.objects.count()
    told = {one.invariant for job, one in verdict.violations if job == jobs["healthy"].pk}
    assert told == {"I16"}


def test_f65_json_of_any_shape_is_no_obstacle(jobs):
    others = [job.pk for key, job in jobs.items() if key != "healthy"]
    for value in JSON_VALUES.values():
        write("update jobs_job set retry = %s::jsonb where id = any(%s)", value, others)
        write("update jobs_jobevent set detail = %s::jsonb where job_id = any(%s)", value, others)
        check_neighbour(jobs)


def test_f65_no_kind_of_event_is_an_obstacle_whatever_its_detail(jobs):
    others = [job.pk for key, job in jobs.items() if key != "healthy"]
    for value in (JSON_VALUES["list"], JSON_VALUES["objects where texts belong"]):
        write("update jobs_jobevent set detail = %s::jsonb where job_id = any(%s)", value, others)
        for kind in KINDS:
            write("update jobs_jobevent set kind = %s where job_id = any(%s)", kind, others)
            check_neighbour(jobs)


def test_f65_a_detail_that_is_no_object_is_told(jobs):
    job = jobs["dead"]
    JobEvent.objects.filter(job=job, kind="leased").update(detail=[1, 2])
    assert found() == {(job.pk, "I18")}


def test_f65_an_event_of_an_unknown_kind_is_told(jobs):
    job = jobs["dead"]
    JobEvent.objects.filter(job=job, kind="dead").update(kind="exploded")
    assert (job.pk, "I18") in found()
    assert {job for job, _ in found()} == {job.pk}


OF_JOBS = ("jobs_job", "jobs_jobevent", "jobs_lease", "jobs_dueentry", "jobs_deadletter")


@pytest.mark.parametrize("table", OF_JOBS)
def test_f65_absurd_columns_are_no_obstacle(jobs, table):
    key = "id" if table == "jobs_job" else "job_id"
    for change in COLUMNS[table]:
        where = f" where {key} <> '{jobs['healthy'].pk}'"
        if "request_key" in change:  # no two jobs may have the same
            where += f" and id = '{jobs['waiting'].pk}'"
        write(f"update {table} set {change}{where}")
        check_neighbour(jobs)


def test_f65_rows_whose_job_is_gone_are_told(jobs):
    gone: dict[Any, UUID] = {DueEntry: UUID(int=1), Lease: UUID(int=2), DeadLetter: UUID(int=3)}
    for model, job_id in gone.items():
        model.objects.update(job_id=job_id)
    told = found()
    assert {(job_id, "I1") for job_id in gone.values()} <= told
    assert jobs["healthy"].pk not in {job for job, _ in told}


def test_f65_odd_text_is_no_obstacle(jobs):
    JobEvent.objects.filter(job=jobs["dead"]).update(actor=ODD_TEXT, detail={ODD_TEXT: ODD_TEXT})
    check_neighbour(jobs)
