"""SIGTERM: what runs is finished, what has not begun goes back at once, what ignores the stop goes back at the end."""

from __future__ import annotations

import itertools
import signal
import time
from uuid import UUID

import pytest
from django.db import transaction

from jobs.models import Job, Lease, Worker
from tests.process.kills import assert_each_effect_once, assert_recovered_in_time, end_at_work
from tests.process.stories import (
    assert_at_rest,
    database_now,
    events,
    finished,
    happened,
    seconds_between,
    story,
    submit,
    submit_many,
)
from tests.support.process import T_REC, Process

pytestmark = pytest.mark.process

RUN_ONCE = ["created", "leased", "started", "succeeded"]
SEED = 5
GIVEN_BACK = ["created", "leased", "started", "released", "leased", "started", "succeeded"]


def test_kf24_a_stopped_worker_keeps_its_lease_finishes_its_job_and_takes_no_other(fleet, probe):
    fleet.scheduler(), fleet.worker("--slots", "2")
    fleet.ready()
    job = submit(gate="end")
    stopped = fleet.holder(job)
    stopped_id = stopped.worker_id
    fleet.worker("--slots", "2")
    fleet.ready()
    asked_at = database_now()
    stopped.send(signal.SIGTERM)
    others = [submit() for _ in range(4)]
    fleet.until(lambda: finished(*others), "the other worker has done what came later")

    def outlived() -> bool:
        """A heartbeat came when a lease that ended with the signal would have been reaped long ago."""
        kept = Lease.objects.filter(job=job, worker=stopped_id)
        return any(
            seconds_between(asked_at, lease.heartbeat_at or asked_at) > T_REC for lease in kept
        )

    fleet.until(outlived, "the lease is kept after the signal")
    assert not stopped.ended
    probe.open("end")

    assert stopped.exit_code() == 0
    assert finished(job)
    assert story(job) == RUN_ONCE
    for other in others:
        assert events(other, "started")[0].actor != f"worker:{stopped_id}"
    assert_at_rest()


def test_f04_what_a_stopped_worker_had_not_begun_is_released_at_once_with_its_budget(fleet, probe):
    """A worker at a high rate takes a little ahead. Then come long jobs, so that what it holds ahead cannot begin."""
    slots = 1
    fleet.scheduler()
    stopped = fleet.worker("--slots", str(slots))
    fleet.ready()
    with transaction.atomic():
        quick = submit_many(400, lane="urgent")
        slow = submit_many(20, gate="end", max_attempts=1)
    held = Lease.objects.running().filter(job__in=slow)
    fleet.until(
        lambda: len(probe.notes(what="began")) == len(quick) + slots and held.count() > slots,
        "the worker holds more than it can begin",
    )
    asked_at = database_now()
    stopped.send(signal.SIGTERM)
    ahead = [lease.job_id for lease in held if not probe.notes(lease.job_id)]
    fleet.until(lambda: all(happened(job, "released") for job in ahead), "they are given back")
    running = [job for job in slow if probe.notes(job)]
    fleet.worker()
    probe.open("end")
    fleet.until(lambda: finished(*slow), "all are finished")

    assert ahead
    for job in ahead:
        (released,) = events(job, "released")
        assert released.detail["reason"] == "draining"
        assert seconds_between(asked_at, released.at) <= 1.0
        assert story(job) == GIVEN_BACK
        row = Job.objects.get(pk=job)
        assert (row.attempt, row.max_attempts, row.attempt_limit) == (2, 1, 2)
        assert len(probe.notes(job, "began")) == 1
    assert [story(job) for job in running] == [RUN_ONCE] * slots
    assert stopped.exit_code() == 0
    assert_at_rest()


@pytest.mark.parametrize("calls", [1, 2], ids=["after the grace", "at a second signal"])
def test_kf53_jobs_that_ignore_the_stop_are_given_back_and_the_worker_ends(fleet, probe, calls):
    """They run until the very end, and not a moment beyond: an idle worker has them again at once."""
    grace = 1.0 if calls == 1 else 60.0
    fleet.scheduler(), fleet.worker("--slots", "3", "--drain-timeout", str(grace))
    fleet.ready()
    jobs = [submit("probe.busy", gate="never", max_attempts=1) for _ in range(3)]
    fleet.until(lambda: len(probe.notes(what="began")) == 3, "all three run")
    stopped = fleet.holder(jobs[0])
    fleet.worker("--slots", "3")
    fleet.ready()
    asked_at = database_now()
    stopped.send(signal.SIGTERM)
    if calls == 2:
        fleet.until(lambda: _is_draining(stopped.worker_id), "the first signal has arrived")
        asked_at = database_now()
        stopped.send(signal.SIGTERM)
    assert stopped.exit_code() == 0

    fleet.until(lambda: all(happened(job, "started", times=2) for job in jobs), "taken again")
    for attempt in (1, 2):
        probe.open("never", attempt=attempt)
    fleet.until(lambda: finished(*jobs), "all are finished")
    for job in jobs:
        assert story(job) == GIVEN_BACK
        (released,) = events(job, "released")
        assert released.detail["reason"] == "shutdown"
        waited = seconds_between(asked_at, released.at)
        assert (grace <= waited <= grace + 3.0) if calls == 1 else (waited <= 2.0)
        row = Job.objects.get(pk=job)
        assert (row.attempt, row.max_attempts, row.attempt_limit) == (2, 1, 2)
        last = max(note.at for note in probe.notes(job) if note.attempt == 1)
        assert last < probe.notes(job, "began")[1].at, "two attempts ran at the same time"
    assert_at_rest()


@pytest.mark.timeout(180)
def test_f05_workers_killed_a_moment_after_the_stop_signal_lose_nothing(fleet):
    struck = itertools.count()

    def stop_and_kill(victim: Process) -> None:
        told = victim.worker_id
        victim.send(signal.SIGTERM)
        if next(struck) % 4:
            time.sleep(0.1)
        else:  # for certain in the middle of its stop, also on a slow machine
            fleet.until(lambda: _is_draining(told) or victim.ended, "the signal has arrived")
        victim.kill()

    fleet.scheduler()
    jobs, stopped = end_at_work(fleet, stop_and_kill, times=20, seed=SEED, portion=16, seconds=0.4)
    assert Worker.objects.filter(pk__in=stopped, state="draining").exists(), "no signal arrived"
    assert_recovered_in_time(jobs, stopped)
    assert_each_effect_once(fleet, jobs)
    assert_at_rest()


def _is_draining(worker_id: UUID) -> bool:
    return Worker.objects.filter(pk=worker_id, state="draining").exists()
