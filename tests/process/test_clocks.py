"""Host clocks that are wrong, and host clocks that jump: nothing is early, nothing is late, nothing happens twice."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from uuid import UUID

import pytest

from jobs.models import Job, SchedulerNode, Worker
from tests.process.stories import assert_at_rest, events, finished, seconds_between, story, submit
from tests.support.clock import HostClock
from tests.support.process import PROFILE, ROOT, T_REC, Process

pytestmark = pytest.mark.process

TTL = PROFILE["lease_ttl_seconds"]
POLL_SECONDS = 2 * PROFILE["tick_seconds"] + 1.0  # the scheduler's and the worker's, and to act
RAN = ["created", "leased", "started", "succeeded"]
HOUR = 3600.0
# The figure promised for F27 is 20 steps (CLOCK_STEPS=20); an ordinary run makes those of KF-60 and a few.
STEPS = int(os.environ.get("CLOCK_STEPS") or 5)
OFFSETS = (2 * HOUR, -2 * HOUR, 600.0, -600.0, 0.0)
READ_CLOCKS = """
import datetime, json, time
from datetime import datetime as taken_by_name
import django.conf, django.utils.timezone
django.conf.settings.configure(USE_TZ=True)
now = django.utils.timezone.now()
assert isinstance(now, datetime.datetime) and isinstance(now, taken_by_name)
print(json.dumps([
    time.time(), time.time_ns() / 1e9, now.timestamp(), taken_by_name.now().timestamp(),
    taken_by_name.now(datetime.UTC).timestamp(), taken_by_name.today().timestamp(),
    time.mktime(time.localtime()),
]))"""


def start_lag(job_id) -> float:
    """Seconds from the due time to the start; negative is early."""
    (started,) = events(job_id, "started")
    return seconds_between(Job.objects.get(pk=job_id).due_at, started.at)


def skews_told(process: Process) -> list[float]:
    return [line["seconds"] for line in process.logged() if line.get("event") == "clock.skewed"]


@pytest.mark.parametrize("offset", [5.0, 600.0])
def test_f25_f26_kf26_hosts_whose_clocks_are_wrong_start_nothing_early_and_take_no_lease(
    fleet, probe, tmp_path, offset
):
    """Half of the processes ahead, half behind; the lease of a killed worker's job ends by the database's clock."""
    ahead = HostClock(tmp_path, "ahead", seconds=offset)
    behind = HostClock(tmp_path, "behind", seconds=-offset)
    for clock in (ahead, behind):
        fleet.scheduler(**clock.environment), fleet.worker("--slots", "3", **clock.environment)
    fleet.ready()
    long = [submit(gate="long", tenant=f"shop-{n}") for n in range(4)]
    fleet.until(lambda: len(probe.notes(what="began")) == 4, "four run, on both workers")
    waiting = [submit(delay_seconds=0.25 * n, tenant=f"shop-{n % 3}") for n in range(1, 13)]
    fleet.until(lambda: finished(*waiting), "all that had to wait are finished")
    victim = fleet.holder(long[0])
    victim.kill()
    lost = [job for job in long if probe.notes(job, "began")[0].pid == victim.pid]
    fleet.until(lambda: all(events(job, "failed") for job in lost), "its leases have expired")
    probe.open("long")
    fleet.until(lambda: finished(*long), "all are finished")

    for job in waiting:
        assert story(job) == RAN
        assert 0.0 <= start_lag(job) <= POLL_SECONDS
    assert 1 <= len(lost) <= 3
    for job in long:
        expired = events(job, "failed")
        assert len(expired) == (job in lost), story(job)
        for event in expired:
            past_expiry = seconds_between(event.detail["expires_at"], event.at)
            assert past_expiry >= PROFILE["clock_tolerance_seconds"]
            assert seconds_between(event.detail["heartbeat_at"], event.at) <= T_REC
    skews = [
        *Worker.objects.values_list("clock_skew_seconds", flat=True),
        *SchedulerNode.objects.values_list("clock_skew_seconds", flat=True),
    ]
    # A reading is wrong by half the time that it took, which on a slow machine may be long.
    assert sorted(round(skew / offset) for skew in skews) == [-1, -1, 1, 1]
    for process in fleet.processes:
        assert len(skews_told(process)) == 1, "told once, not at every beat"
    assert_at_rest()


@pytest.mark.timeout(60 + 20 * STEPS)
def test_kf60_f27_steps_of_the_wall_clock_neither_stop_nor_burst_the_loops(fleet, probe, tmp_path):
    clock = HostClock(tmp_path, "host")
    fleet.scheduler(**clock.environment)
    worker = fleet.worker("--slots", "2", **clock.environment)
    fleet.ready()
    through = submit(
        gate="through"
    )  # runs through all steps: nobody may stop it, or keep it too long
    fleet.until(lambda: probe.notes(through, "began"), "the long one runs")
    next_ones: list[UUID] = []
    for offset in itertools.islice(itertools.cycle(OFFSETS), STEPS):
        waits = submit(delay_seconds=0.8)
        clock.step(offset)
        pair = waits, submit()
        fleet.until(
            lambda pair=pair: finished(*pair), f"the next jobs after a step to {offset:+g} s"
        )
        next_ones += pair
    probe.open("through")
    fleet.until(lambda: finished(through), "the long one is finished")

    for job in (through, *next_ones):
        assert story(job) == RAN
        assert 0.0 <= start_lag(job) <= POLL_SECONDS
    assert len(probe.notes(what="began")) == 1 + 2 * STEPS
    assert (
        seconds_between(events(through, "started")[0].at, events(through, "succeeded")[0].at) > TTL
    )
    told = skews_told(worker)
    assert told, "the worker never saw a step"
    assert len(told) <= STEPS
    assert_at_rest()


def test_every_clock_that_python_code_reads_is_shifted_and_steps(tmp_path):
    clock = HostClock(tmp_path, "host")
    for offset in (0.0, 600.0, -2 * HOUR):
        clock.step(offset)
        shown = subprocess.run(
            [sys.executable, "-c", READ_CLOCKS],
            env={**os.environ, **clock.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        true = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True)
        for reading in json.loads(shown.stdout):
            assert abs(reading - offset - float(true.stdout)) < 5.0
