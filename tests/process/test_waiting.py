"""Work that waits for its time is held by nobody: a restart of everything in between is not noticed."""

from __future__ import annotations

import signal

import pytest

from jobs.models import Job, Lease
from tests.process.stories import assert_at_rest, events, finished, seconds_between, story, submit

pytestmark = pytest.mark.process

JOBS, DELAY_SECONDS, LAG_SECONDS = 20, 6.0, 2.0


def test_kf28_a_restart_of_all_processes_while_jobs_wait_makes_none_early_late_or_double(
    fleet, probe
):
    def start_all() -> None:
        fleet.scheduler()
        for _ in range(3):
            fleet.worker("--slots", "4")
        fleet.ready()

    fleet.fork_all()
    start_all()
    jobs = [submit(delay_seconds=DELAY_SECONDS, tenant=f"shop-{n % 4}") for n in range(JOBS)]
    first = list(fleet.processes)
    for process in first:
        process.send(signal.SIGTERM)
    assert [process.exit_code() for process in first] == [0] * 4
    start_all()
    assert not Lease.objects.exists()
    fleet.until(lambda: finished(*jobs), "all are finished")

    for job in jobs:
        assert story(job) == ["created", "leased", "started", "succeeded"]
        due_at = Job.objects.get(pk=job).due_at
        (leased,), (started,) = events(job, "leased"), events(job, "started")
        assert leased.at >= due_at
        assert seconds_between(due_at, started.at) <= LAG_SECONDS
    assert len(probe.notes(what="began")) == JOBS
    assert_at_rest()
