"""Work that waits for its time is held by nobody: a restart of everything in between is not noticed."""

from __future__ import annotations

import signal

import pytest

from jobs.models import Job, Lease
from tests.process.stories import (
    assert_at_rest,
    database_now,
    events,
    finished,
    seconds_between,
    story,
    submit,
)

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

    start_all()
    jobs = [submit(delay_seconds=DELAY_SECONDS, tenant=f"shop-{n % 4}") for n in range(JOBS)]
    first = list(fleet.processes)
    for process in first:
        process.send(signal.SIGTERM)
    assert [process.exit_code() for process in first] == [0] * 4
    assert not Lease.objects.exists()
    assert {story(job)[-1] for job in jobs} == {"created"}, "the restart has met no waiting job"
    start_all()
    restarted_at = database_now()
    fleet.until(lambda: finished(*jobs), "all are finished")

    for job in jobs:
        assert story(job) == ["created", "leased", "started", "succeeded"]
        due_at = Job.objects.get(pk=job).due_at
        (leased,), (started,) = events(job, "leased"), events(job, "started")
        assert leased.at >= due_at
        # Usually all are up again before; on a slow machine the lag counts from then.
        assert seconds_between(max(due_at, restarted_at), started.at) <= LAG_SECONDS
    assert len(probe.notes(what="began")) == JOBS
    assert_at_rest()
