"""The end of a worker: the first signal drains, the second gives everything back, and neither hangs."""

from __future__ import annotations

import threading
import time

from django.db import OperationalError

from jobs.models import DueEntry, Job, JobEvent, Lease, Worker
from tests.support.books import assert_balanced
from tests.workers.stage import (
    finished,
    is_running,
    left_its_lease,
    publish,
    status,
    story,
    until,
)

RAN = ["created", "leased", "started"]


def ended(worker) -> bool:
    return Worker.objects.filter(pk=worker.id, state="stopped").exists()


def gone() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name == "worker"]


def refund(job_id) -> int:
    job = Job.objects.get(pk=job_id)
    return job.attempt_limit - job.max_attempts


def test_kf24_a_drain_lets_a_running_job_finish_and_takes_nothing_more(stage):
    worker = stage.worker(lambda ctx: stage.gate.wait(20))
    running = publish(request_key="running")
    until(lambda: is_running(running), "it runs")
    worker.stop()
    until(lambda: Worker.objects.get(pk=worker.id).state == "draining", "it says that it drains")
    waiting = publish(request_key="waiting")
    later = Lease.objects.get(job_id=running).expires_at
    until(
        lambda: Lease.objects.get(job_id=running).expires_at > later,
        "the lease of the running job is still extended",
    )
    stage.gate.set()
    until(gone, "it has ended")
    assert ended(worker)
    assert (status(running), story(waiting)) == ("succeeded", ["created", "leased"])
    assert story(running) == [*RAN, "succeeded"]
    assert worker.abandons == 0
    assert_balanced()


def test_a_handler_can_see_the_drain_and_end_at_a_safe_point(stage):
    def function(ctx):
        while not ctx.shutting_down:
            ctx.wait(0.01)
        return "saved"

    worker = stage.worker(function)
    job = publish()
    until(lambda: is_running(job), "it runs")
    worker.stop()
    until(gone, "it has ended")
    assert Job.objects.get(pk=job).result == "saved"


def test_what_it_took_and_has_not_begun_goes_back_with_its_attempt_refunded(stage, monkeypatch):
    monkeypatch.setattr("workers.upkeep.PATIENCE_SECONDS", 3600.0)
    worker = stage.worker(lambda ctx: stage.gate.wait(20), slots=1)
    monkeypatch.setattr(worker._intake, "wanted", lambda: 0 if worker._drain.begun else 10)
    jobs = [publish(request_key=f"k{n}") for n in range(4)]
    until(lambda: Lease.objects.running().count() == 4, "it holds all four")
    worker.stop()
    until(lambda: Lease.objects.count() == 1, "three are given back")
    back = [job for job in jobs if left_its_lease(job)]
    assert all(story(job) == [*RAN, "released"] for job in back)
    assert {refund(job) for job in back} == {1}
    assert DueEntry.objects.count() == 3
    reasons = JobEvent.objects.filter(kind="released").values_list("detail__reason", flat=True)
    assert set(reasons) == {"draining"}
    stage.gate.set()
    until(gone, "it has ended")
    assert Job.objects.filter(status="succeeded").count() == 1
    assert_balanced()


def test_what_waits_behind_busy_slots_goes_back_so_that_others_can_have_it(stage, monkeypatch):
    worker = stage.worker(lambda ctx: stage.gate.wait(20), slots=1)
    monkeypatch.setattr(worker._intake, "wanted", lambda: max(0, 3 - worker.taken_total))
    jobs = [publish(request_key=f"k{n}") for n in range(3)]
    until(lambda: sum(left_its_lease(job) for job in jobs) == 2, "two are given back")
    told = JobEvent.objects.filter(kind="released")
    assert set(told.values_list("detail__reason", flat=True)) == {"slots_busy"}
    assert sorted(map(refund, jobs)) == [0, 1, 1]
    assert Lease.objects.running().count() == 1
    assert_balanced()


def test_kf53_a_second_stop_gives_everything_back_at_once(stage):
    worker = stage.worker(lambda ctx: stage.gate.wait(20), slots=3, drain_seconds=3600.0)
    jobs = [publish(request_key=f"k{n}", max_attempts=1) for n in range(3)]
    until(lambda: Lease.objects.running().count() == 3, "all run")
    worker.stop()
    worker.stop()
    until(gone, "it has ended", within=10)
    assert {tuple(story(job)) for job in jobs} == {(*RAN, "released")}
    assert [refund(job) for job in jobs] == [1, 1, 1]
    assert worker.abandons == 3  # the process must not wait for these threads
    assert ended(worker)
    assert_balanced()


def test_when_the_grace_is_over_handlers_are_asked_to_stop_and_the_rest_is_given_back(stage):
    def polite(ctx):
        ctx.wait(20)
        ctx.raise_if_cancelled()

    def deaf(ctx):
        stage.gate.wait(20)

    worker = stage.worker({"polite.one": polite, "deaf.one": deaf}, drain_seconds=1.5)
    jobs = [publish("polite.one", request_key="polite"), publish("deaf.one", request_key="deaf")]
    until(lambda: Lease.objects.running().count() == 2, "both run")
    began = time.monotonic()
    worker.stop()
    until(gone, "it has ended")
    assert time.monotonic() - began >= 0.4  # not before the notice: a second before the grace ends
    assert {tuple(story(job)) for job in jobs} == {(*RAN, "released")}
    assert worker.abandons == 1
    assert_balanced()


def test_a_drain_without_work_ends_at_once(stage):
    worker = stage.worker(lambda ctx: None)
    until(lambda: Worker.objects.filter(pk=worker.id).exists(), "it is at work")
    worker.stop()
    until(gone, "it has ended", within=10)
    assert ended(worker)


def away(**given):
    raise OperationalError("no route to host")


def test_a_second_stop_ends_it_also_while_the_database_is_away(stage, monkeypatch):
    """Its leases expire by themselves; a process that cannot be stopped helps nobody."""
    worker = stage.worker(lambda ctx: stage.gate.wait(20), drain_seconds=3600.0)
    job = publish()
    until(lambda: is_running(job), "it runs")
    monkeypatch.setattr("workers.outbox.report_outcomes", away)
    worker.stop()
    worker.stop()
    until(gone, "it has ended", within=10)
    assert is_running(job)


def test_a_drain_ends_also_while_the_database_is_away_and_an_outcome_waits(stage, monkeypatch):
    monkeypatch.setattr("workers.outbox.report_outcomes", away)
    worker = stage.worker(lambda ctx: None, drain_seconds=1.0)
    job = publish()
    until(lambda: is_running(job), "it was taken")
    worker.stop()
    until(gone, "it has ended", within=10)
    assert is_running(job)
    assert not finished(job)


def test_a_second_stop_ends_it_also_when_an_outcome_waits_for_the_database(stage, monkeypatch):
    monkeypatch.setattr("workers.outbox.report_outcomes", away)
    worker = stage.worker(lambda ctx: None, drain_seconds=3600.0)
    job = publish()
    until(lambda: is_running(job), "it was taken")
    until(lambda: worker._outbox.unwritten, "its outcome waits")
    worker.stop()
    worker.stop()
    until(gone, "it has ended", within=10)
    assert is_running(job)
