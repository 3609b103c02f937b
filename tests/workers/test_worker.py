"""The worker: takes, runs, reports; what ends in one attempt never touches its neighbours."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from functools import partial

import pytest
from django.db import OperationalError, connection

from jobs.clock import Skew
from jobs.conf import conf
from jobs.models import DueEntry, Handler, Job, JobEvent, Lease, Worker
from jobs.policies.cleaning import MESSAGE_BYTES
from jobs.services.outcomes import report_outcomes
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.lease import expire_started
from jobs.transitions.take import take_batch
from tests.factories import BOOM, SCHEDULER, make_pool
from tests.support.books import assert_balanced
from tests.support.crowd import make_crowd
from tests.workers.stage import (
    CHARGE,
    expire_lease,
    finished,
    is_running,
    left_its_lease,
    publish,
    spec,
    status,
    story,
    until,
)
from workers.handlers import PermanentFailure, RetryAfter, Snooze

RAN = ["created", "leased", "started"]


def error_of(job_id):
    error = Job.objects.get(pk=job_id).last_error
    assert error is not None
    return error


def row_of(worker) -> Worker:
    return Worker.objects.get(pk=worker.id)


# --- the way through ------------------------------------------------------------------------------------------------


def test_a_published_job_is_run_and_recorded_in_this_workers_name(stage):
    worker = stage.worker(lambda ctx: {"charged": ctx.payload["amount"]})
    job = publish(payload={"amount": 1299})
    until(lambda: finished(job), "the job is finished")
    found = Job.objects.get(pk=job)
    assert (found.status, found.attempt, found.result) == ("succeeded", 1, {"charged": 1299})
    assert story(job) == [*RAN, "succeeded"]
    told = JobEvent.objects.filter(job_id=job, kind__in=["started", "succeeded"])
    assert set(told.values_list("actor", flat=True)) == {f"worker:{worker.id}"}
    assert_balanced()


def test_it_makes_itself_and_its_handlers_known(stage):
    slow = spec(lambda ctx: None, "reports.weekly", timeout_seconds=77.0, max_attempts=9)
    worker = stage.worker_with([spec(lambda ctx: None), slow], slots=3)
    until(lambda: Worker.objects.filter(pk=worker.id).exists(), "it is registered")
    row = row_of(worker)
    assert (row.slots, row.state, row.handlers) == (3, "running", [CHARGE, "reports.weekly"])
    assert row.pool_id == make_pool().pk
    stored = Handler.objects.get(pk="reports.weekly")
    assert (stored.timeout_seconds, stored.max_attempts) == (77.0, 9)


def test_a_crowd_is_run_once_each_in_batches(stage):
    ran: Counter[object] = Counter()
    make_crowd(300, place=Place.PUBLISHED)
    stage.worker(lambda ctx: ran.update([ctx.job_id]), slots=4)
    until(lambda: Job.objects.filter(status="succeeded").count() == 300, "all have succeeded")
    assert set(ran.values()) == {1}
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_balanced()


def test_work_that_comes_while_it_sleeps_wakes_it(stage, settings):
    stage.worker(lambda ctx: None)
    until(lambda: Worker.objects.exists(), "it is at work")
    for number in range(5):
        job = publish(request_key=f"k{number}")
        until(partial(finished, job), "the job is finished")


def test_kf43_it_takes_nothing_that_it_has_no_handler_for(stage):
    foreign = publish("reports.weekly")
    own = publish(request_key="own")
    stage.worker(lambda ctx: None)
    until(lambda: finished(own), "its own job is finished")
    assert story(foreign) == ["created", "leased"]


def test_it_takes_nothing_of_another_pool(stage):
    foreign = publish(request_key="foreign", pool=make_pool("other"))
    own = publish(request_key="own")
    stage.worker(lambda ctx: None)
    until(lambda: finished(own), "its own job is finished")
    assert story(foreign) == ["created", "leased"]


def test_it_takes_nothing_whose_cancel_was_asked(stage):
    asked = publish(request_key="asked")
    Lease.objects.filter(job_id=asked).update(cancel_requested=True)
    own = publish(request_key="own")
    stage.worker(lambda ctx: None)
    until(lambda: finished(own), "its own job is finished")
    assert not is_running(asked)


def test_the_most_urgent_is_run_first(stage):
    order: list[int] = []
    for number, priority in enumerate((0, 100, 50, -100)):
        publish(priority=priority, request_key=f"p{number}", payload=priority, lane="normal")
    stage.worker(lambda ctx: order.append(ctx.payload), slots=1)
    until(lambda: len(order) == 4, "all have run")
    assert order == [100, 50, 0, -100]


def test_it_ends_after_as_many_attempts_as_it_was_given(stage):
    for number in range(5):
        publish(request_key=f"k{number}")
    worker = stage.worker(lambda ctx: None, max_jobs=3)
    until(lambda: Worker.objects.filter(state="stopped").exists(), "it has ended")
    assert worker.taken_total == 3
    assert Job.objects.filter(status="succeeded").count() == 3
    assert Lease.objects.published().count() == 2


def test_once_runs_what_is_published_and_ends(stage):
    for number in range(5):
        publish(request_key=f"k{number}")
    stage.worker(lambda ctx: None, once=True)
    until(lambda: Worker.objects.filter(state="stopped").exists(), "it has ended")
    assert Job.objects.filter(status="succeeded").count() == 5


def test_a_clock_off_by_more_than_the_tolerance_is_stored_and_warned_of(
    stage, monkeypatch, caplog
):
    monkeypatch.setattr("workers.skew.measure_skew", lambda: Skew(-300.0, 0.01))
    with caplog.at_level(logging.WARNING):
        worker = stage.worker(lambda ctx: None)
        until(lambda: Worker.objects.filter(pk=worker.id).exists(), "it is registered")
    assert row_of(worker).clock_skew_seconds == -300.0
    assert "clock.skewed" in [one.message for one in caplog.records]


# --- attempts that end badly ----------------------------------------------------------------------------------------


def test_a_failed_attempt_is_planned_again_by_its_policy(stage):
    def function(ctx):
        raise ValueError("boom")

    stage.worker(function)
    job = publish(max_attempts=3, retry={"kind": "fixed", "base_seconds": 120, "jitter": 0})
    until(lambda: left_its_lease(job), "the attempt is recorded")
    assert story(job) == [*RAN, "failed"]
    entry, told = DueEntry.objects.get(pk=job), JobEvent.objects.get(job_id=job, kind="failed")
    assert (entry.due_at - told.at).total_seconds() == pytest.approx(120, abs=0.1)
    assert error_of(job)["message"] == "boom"
    assert_balanced()


@pytest.mark.parametrize(
    ("error", "told", "reason"),
    [
        (PermanentFailure("no such card"), "dead", "permanent_error"),
        (RetryAfter(30, "later"), "failed", None),
        (Snooze(30, "closed"), "snoozed", None),
    ],
)
def test_a_handler_steers_what_comes_of_its_attempt(stage, error, told, reason):
    def function(ctx):
        raise error

    stage.worker(function)
    job = publish(max_attempts=3)
    until(lambda: left_its_lease(job), "the attempt is recorded")
    assert story(job) == [*RAN, told]
    assert (JobEvent.objects.get(job_id=job, kind=told).detail or {}).get("reason") in (
        reason,
        "closed",
    )
    assert_balanced()


def test_a_spent_budget_ends_in_the_dead_letters(stage):
    def function(ctx):
        raise ValueError("boom")

    stage.worker(function)
    job = publish(max_attempts=1)
    until(lambda: finished(job), "the job is dead")
    assert story(job) == [*RAN, "dead"]
    assert_balanced()


TEXTS = {"emoji": "💥" * 10, "long": "x" * 5_000_000, "nul": "a\x00b", "surrogate": "a\ud800b"}


@pytest.mark.parametrize("name", TEXTS)
def test_kf33_an_odd_error_text_is_recorded_and_the_next_job_taken(stage, name):
    text = TEXTS[name]

    def function(ctx):
        if ctx.payload == "bad":
            raise ValueError(text)
        return "fine"

    worker = stage.worker(function, slots=1)
    bad = publish(payload="bad", request_key="bad", max_attempts=3)
    until(lambda: left_its_lease(bad), "the attempt is recorded")
    job = Job.objects.get(pk=bad)
    assert (job.status, job.attempt) == ("scheduled", 1)
    assert DueEntry.objects.filter(pk=bad).exists()
    message = error_of(bad)["message"]
    assert "\x00" not in message
    assert 0 < len(message.encode()) <= MESSAGE_BYTES
    if name == "emoji":
        assert message == text
    good = publish(payload="good", request_key="good")
    until(lambda: finished(good), "the next job is finished", within=10)
    next_start = JobEvent.objects.get(job_id=good, kind="started")
    assert next_start.actor == f"worker:{worker.id}"
    published = JobEvent.objects.get(job_id=good, kind="leased")
    assert (next_start.at - published.at).total_seconds() <= 2.0
    assert_balanced()


class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)

    def __str__(self):
        raise RuntimeError("no text for you")

    def __reduce__(self):
        raise RuntimeError("no copy for you")


def deep(ctx):
    return deep(ctx)


def raising(error):
    def function(ctx):
        raise error

    return function


ODD = {
    "NeedsTwo": raising(NeedsTwo(1, 2)),
    "ExceptionGroup": raising(ExceptionGroup("all", [ValueError(str(n)) for n in range(1000)])),
    "SystemExit": raising(SystemExit(1)),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "RecursionError": deep,
}


@pytest.mark.parametrize("name", ODD)
def test_kf34_an_odd_exception_is_recorded_by_its_class_and_the_worker_goes_on(stage, name):
    stage.worker({"odd.one": ODD[name], CHARGE: lambda ctx: None}, slots=1)
    odd = publish("odd.one", request_key="odd", max_attempts=3)
    until(lambda: left_its_lease(odd), "the attempt is recorded")
    assert error_of(odd)["type"] == name
    assert story(odd) == [*RAN, "failed"]
    good = publish(request_key="good")
    until(lambda: finished(good), "the next job is finished", within=5)
    assert_balanced()


def test_kf33_contents_that_the_database_refuses_cost_only_themselves(stage, monkeypatch):
    """As if the cleaning had a hole: the outcome counts without its contents, and its neighbours keep theirs."""
    monkeypatch.setattr("workers.execution.clean_json", lambda value, limit: value)
    gate = threading.Event()

    def function(ctx):
        gate.wait(20)
        return {"text": "a\x00b"} if ctx.payload == "bad" else {"text": "fine"}

    jobs = [publish(payload=one, request_key=f"k{n}") for n, one in enumerate(("a", "bad", "b"))]
    stage.worker(function, slots=3)
    until(lambda: Lease.objects.running().count() == 3, "all run")
    gate.set()
    until(lambda: finished(*jobs), "all are finished")
    fine = {"text": "fine"}
    assert [Job.objects.get(pk=job).result for job in jobs] == [fine, None, fine]
    assert {status(job) for job in jobs} == {"succeeded"}
    assert_balanced()


def test_a_job_whose_row_names_another_handler_than_its_route_dies_alone(stage):
    damaged, fine = publish(request_key="damaged"), publish(request_key="fine")
    Job.objects.filter(pk=damaged).update(handler="nobody.knows")
    stage.worker(lambda ctx: None, slots=1)
    until(lambda: finished(damaged, fine), "both are finished")
    assert (status(damaged), status(fine)) == ("dead", "succeeded")


def test_a_payload_that_is_no_json_any_more_fails_its_own_attempt(stage):
    poison = publish(payload="[" * 30 + "]" * 30, request_key="poison")
    fine = publish(payload={"amount": 1}, request_key="fine")
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_job set payload = (repeat('[', 5000) || repeat(']', 5000))::jsonb"
            " where id = %s",
            [poison],
        )
    stage.worker(lambda ctx: {"seen": bool(ctx.payload)}, slots=1)
    until(lambda: left_its_lease(poison) and left_its_lease(fine), "both are recorded")
    assert status(fine) == "succeeded"
    assert story(poison)[:3] == RAN


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_handler_out_of_time_that_looks_is_stopped_and_fails_by_timeout(stage):
    def function(ctx):
        ctx.wait(20)
        ctx.raise_if_cancelled()

    stage.worker(function)
    job = publish(timeout_seconds=0.3, max_attempts=3)
    until(lambda: left_its_lease(job), "the attempt is recorded")
    told = JobEvent.objects.get(job_id=job, kind="failed")
    assert told.detail is not None
    assert told.detail["cause"] == "timeout"
    assert_balanced()


def test_f09_a_handler_that_never_looks_loses_its_slot_and_the_next_job_gets_it(stage, caplog):
    worker = stage.worker(
        {"deaf.one": lambda ctx: stage.gate.wait(20), CHARGE: lambda ctx: None}, slots=1
    )
    deaf = publish("deaf.one", timeout_seconds=0.3, max_attempts=3, request_key="deaf")
    until(lambda: is_running(deaf), "it runs")
    after = publish(request_key="after")
    with caplog.at_level(logging.ERROR):
        until(lambda: finished(after), "the next job is finished")
    assert story(deaf) == [*RAN, "failed"]
    assert error_of(deaf)["type"] == "JobTimeout"
    assert "handler.abandoned" in [one.message for one in caplog.records]
    assert worker.abandons == 1
    stage.gate.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "slot"][1:], "it has ended")
    assert story(deaf) == [*RAN, "failed"]  # what it returned in the end was dropped
    assert_balanced()


def test_kf23_a_job_of_several_leases_is_kept_alive_and_never_expires(stage, settings):
    """The reaper looks as often as it can; a job as long as two leases is never taken back."""
    settings.JOBS = {**settings.JOBS, "lease_ttl_seconds": 2.0}
    conf.cache_clear()
    stage.worker(lambda ctx: ctx.wait(4.5))
    job = publish()
    until(lambda: is_running(job), "it runs")
    lease = Lease.objects.get(job_id=job)
    while not finished(job):
        failure = {"delay": 0.0, "cause": "lease_expired", "error": BOOM}
        expired = expire_started(
            shards=[lease.shard], actor=SCHEDULER, retries={lease.pk: failure}, deaths={}
        )
        assert not expired
        time.sleep(0.02)
    assert story(job) == [*RAN, "succeeded"]
    assert_balanced()


def test_no_alarm_is_raised_over_leases_that_this_worker_ended_itself(stage, caplog, settings):
    """Beats that overtake reports under load find leases gone that were reported a moment ago."""
    settings.JOBS = {**settings.JOBS, "heartbeat_seconds": 0.005}
    conf.cache_clear()
    make_crowd(1500, place=Place.PUBLISHED)
    with caplog.at_level(logging.WARNING):
        stage.worker(lambda ctx: None, slots=4)
        until(lambda: Job.objects.filter(status="succeeded").count() == 1500, "all succeeded")
    assert "lease.lost" not in [one.message for one in caplog.records]


# --- cancel and lost leases ------------------------------------------------------------------------------------------


def test_kf31_a_running_handler_hears_of_its_cancel_at_once(stage):
    heard: list[float] = []

    def function(ctx):
        ctx.wait(20)
        heard.append(time.monotonic())
        ctx.raise_if_cancelled()

    stage.worker(function)
    job = publish()
    until(lambda: is_running(job), "it runs")
    shard = Job.objects.get(pk=job).shard
    asked = time.monotonic()
    answer = cancel_job(shard=shard, job_id=job, actor="user:anna", reason="withdrawn")
    assert answer.outcome == "cancel_requested"
    until(lambda: finished(job), "the job is cancelled")
    assert heard[0] - asked <= 3.0
    assert story(job) == [*RAN, "cancel_requested", "cancelled"]
    assert (JobEvent.objects.get(job_id=job, kind="cancelled").detail or {})[
        "cancel"
    ] == "honoured"
    assert_balanced()


@pytest.mark.parametrize(
    ("end", "told"),
    [(ValueError("boom"), "cancelled"), (Snooze(60), "cancelled"), (None, "succeeded")],
)
def test_kf29_however_a_cancelled_attempt_ends_it_is_not_tried_again(stage, end, told):
    def function(ctx):
        ctx.wait(20)
        if end is not None:
            raise end

    stage.worker(function)
    job = publish(max_attempts=5)
    until(lambda: is_running(job), "it runs")
    cancel_job(shard=Job.objects.get(pk=job).shard, job_id=job, actor="user:anna", reason="")
    until(lambda: finished(job), "the job is finished")
    assert story(job) == [*RAN, "cancel_requested", told]
    assert not DueEntry.objects.exists()
    if isinstance(end, ValueError):
        assert error_of(job)["message"] == "boom"
    assert_balanced()


def test_kf25_an_attempt_whose_lease_was_lost_is_told_and_its_report_refused(stage):
    told = threading.Event()

    def function(ctx):
        if ctx.wait(20):
            told.set()
        return "too late"

    stage.worker(function)
    job = publish(max_attempts=3)
    until(lambda: is_running(job), "it runs")
    lease = Lease.objects.get(job_id=job)
    expire_lease(job)
    failure = {"delay": 3600.0, "cause": "lease_expired", "error": BOOM}
    while not expire_started(
        shards=[lease.shard], actor=SCHEDULER, retries={lease.pk: failure}, deaths={}
    ):
        expire_lease(job)  # a beat came in between
    assert told.wait(10)
    until(lambda: "completion_rejected" in story(job), "the late report is refused")
    assert story(job) == [*RAN, "failed", "completion_rejected"]
    assert status(job) == "scheduled"
    assert_balanced()


# --- a database that is away -------------------------------------------------------------------------------------------


def failing(times: int, call):
    """The call, which the first so many times does not reach the database."""
    left = [OperationalError("server closed the connection unexpectedly")] * times

    def sometimes(**given):
        if left:
            raise left.pop()
        return call(**given)

    return sometimes


def test_kf55_a_report_is_kept_until_the_database_is_back_and_the_handler_not_run_again(
    stage, monkeypatch
):
    ran: Counter[object] = Counter()
    monkeypatch.setattr("workers.outbox.report_outcomes", failing(4, report_outcomes))
    stage.worker(lambda ctx: ran.update([ctx.job_id]))
    job = publish()
    until(lambda: finished(job), "the job is finished")
    assert ran == {job: 1}
    assert story(job) == [*RAN, "succeeded"]


def test_kf55_a_take_that_fails_is_tried_again(stage, monkeypatch):
    monkeypatch.setattr("workers.intake.take_batch", failing(3, take_batch))
    stage.worker(lambda ctx: None)
    job = publish()
    until(lambda: finished(job), "the job is finished")
    assert story(job) == [*RAN, "succeeded"]


def test_kf55_all_its_sessions_being_ended_while_a_job_runs_costs_nothing(stage):
    worker = stage.worker(lambda ctx: stage.gate.wait(20))
    job = publish()
    until(lambda: is_running(job), "it runs")
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    stage.gate.set()
    until(lambda: finished(job), "the job is finished")
    assert story(job) == [*RAN, "succeeded"]
    after = publish(request_key="after")
    until(lambda: finished(after), "the next job is finished")
    assert JobEvent.objects.get(job_id=after, kind="started").actor == f"worker:{worker.id}"
    assert_balanced()
