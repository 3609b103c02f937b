"""Processes that are killed with -9: their jobs go on elsewhere, in time, and nothing is left between two places."""

from __future__ import annotations

import os
import random
import signal
import time
from uuid import UUID

import pytest
from django.db import transaction
from django.db.models import Exists, OuterRef

from jobs.database import rows
from jobs.models import DueEntry, Job, Lease, SchedulerNode
from jobs.states import FINISHED
from tests.process.kills import assert_each_effect_once, assert_recovered_in_time, end_at_work
from tests.process.stories import (
    assert_at_rest,
    events,
    finished,
    happened,
    result_of,
    seconds_between,
    story,
    submit,
)
from tests.support.process import PROFILE, T_REC, Process

pytestmark = pytest.mark.process

TAKEN_AND_LOST = ["created", "leased", "started", "failed", "leased", "started", "succeeded"]
BLOCKED_BY_ME = """
select pid from pg_stat_activity
where datname = current_database() and pg_backend_pid() = any(pg_blocking_pids(pid))"""
ALIVE = "select pid from pg_stat_activity where pid = %(pid)s"
# The figure promised is 200 (PROCESS_KILLS=200 make process); an ordinary run does fewer.
KILLS = int(os.environ.get("PROCESS_KILLS") or 10)
SEED, JOBS_A_KILL, JOB_SECONDS = 22, 8, 0.15
# Under load: 40 in an ordinary run, 200 in a long one.
LOAD_KILLS = int(os.environ.get("PROCESS_KILLS") or 40)


def orphans() -> int:
    """Non-final jobs with neither a due entry nor a lease: nobody would ever look at them again."""
    entry, lease = (model.objects.filter(job=OuterRef("pk")) for model in (DueEntry, Lease))
    return (
        Job.objects.exclude(status__in=FINISHED)
        .exclude(Exists(entry))
        .exclude(Exists(lease))
        .count()
    )


def test_kf22_a_job_whose_worker_is_killed_is_claimable_in_time_and_finishes_elsewhere(
    fleet, probe
):
    fleet.scheduler(), fleet.worker(), fleet.worker()
    fleet.ready()
    job = submit(gate="end")
    lost = fleet.holder(job)
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    lost.kill()
    fleet.until(lambda: happened(job, "started", times=2), "the other worker has the job")
    probe.open("end")
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == TAKEN_AND_LOST
    (failed,) = events(job, "failed")
    assert failed.detail["cause"] == "lease_expired"
    assert seconds_between(failed.detail["heartbeat_at"], failed.at) <= T_REC
    first, second = events(job, "started")
    assert first.actor != second.actor
    assert result_of(job)["attempt"] == 2
    assert [note.attempt for note in probe.notes(job, "ended")] == [2]
    assert_at_rest()


def test_f12_a_worker_restarted_at_once_on_the_same_host_inherits_no_lease(fleet, probe):
    fleet.scheduler()
    lost = fleet.worker()
    fleet.ready()
    job = submit(gate="end")
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    lost.kill()
    fleet.worker()
    fleet.until(lambda: happened(job, "started", times=2), "the restarted worker has the job")
    probe.open("end")
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == TAKEN_AND_LOST
    (failed,) = events(job, "failed")
    assert seconds_between(failed.detail["heartbeat_at"], failed.at) <= T_REC
    assert not Lease.objects.exists()
    assert_at_rest()


def test_kf22_an_exit_right_after_the_claim_costs_the_job_no_attempt(fleet, probe):
    publish_ttl = 1.0
    scheduler = fleet.scheduler(
        failpoints="claim.claim_batch:committed=kill",
        publish_ttl_seconds=publish_ttl,
        lease_ttl_seconds=20.0,  # so long it believes in a silent worker
    )
    worker = fleet.worker()
    fleet.ready()
    worker.kill()  # work is still published for it, and nobody takes it
    scheduler.may_end = True
    job = submit(max_attempts=1)
    assert scheduler.exit_code() == -signal.SIGKILL
    assert story(job) == ["created", "leased"]
    fleet.scheduler()
    fleet.until(lambda: happened(job, "publish_expired"), "the claim is taken back")
    # By now it may be published again: the new scheduler believes in the killed worker for a while, too.
    (claimed, *_), (expired,) = events(job, "leased"), events(job, "publish_expired")
    (node,) = SchedulerNode.objects.filter(pk=expired.actor.removeprefix("scheduler:"))
    fleet.worker()
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == [
        *("created", "leased", "publish_expired"),
        *("leased", "started", "succeeded"),
    ]
    row = Job.objects.get(pk=job)
    assert (row.attempt, row.max_attempts, row.attempt_limit) == (2, 1, 2)
    assert len(probe.notes(job, "began")) == 1
    # The sweep that found it came in time once there was a scheduler that could own the shard.
    swept_from = max(
        claimed.at.timestamp() + publish_ttl + PROFILE["clock_tolerance_seconds"],
        node.started_at.timestamp() + PROFILE["shard_lease_seconds"],
    )
    assert expired.at.timestamp() - swept_from <= PROFILE["tick_seconds"] + 1.0
    assert_at_rest()


@pytest.mark.parametrize("cut", ["its connection", "its process"])
def test_kf22_a_claim_that_is_cut_before_its_commit_leaves_the_job_where_it_was(fleet, cut):
    scheduler = fleet.scheduler()
    fleet.worker()
    fleet.ready()
    scheduler.freeze()  # until the job's row is locked, however long that takes
    job = submit()
    with transaction.atomic():
        # The claim has locked the due entry when it comes to the job's row, and there it waits for us.
        Job.objects.select_for_update().get(pk=job)
        scheduler.thaw()
        claiming = fleet.until(lambda: rows(BLOCKED_BY_ME, {}), "the claim waits for us")
        if cut == "its process":
            scheduler.kill()
        else:
            rows("select pg_terminate_backend(%(pid)s, 5000)", {"pid": claiming[0][0]})
    fleet.until(lambda: not rows(ALIVE, {"pid": claiming[0][0]}), "its session is over")
    assert orphans() == 0
    if cut == "its process":
        assert story(job) == ["created"]
        fleet.scheduler()
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == ["created", "leased", "started", "succeeded"]
    assert_at_rest()


@pytest.mark.timeout(120 + 4 * KILLS)
def test_kf22_kills_at_random_leave_no_job_between_two_places(fleet, probe):
    """Workers and schedulers die by turns while they work, and are started again at once."""
    rng = random.Random(SEED)
    alive = [fleet.scheduler(), fleet.worker("--slots", "4"), fleet.worker("--slots", "4")]
    fleet.ready()
    jobs: list[UUID] = []
    for kill in range(KILLS):
        seen = len(probe.notes(what="began"))
        jobs += [
            submit(tenant=f"shop-{n}", seconds=JOB_SECONDS, max_attempts=KILLS + 1)
            for n in range(JOBS_A_KILL)
        ]
        fleet.until(lambda seen=seen: len(probe.notes(what="began")) > seen, "work goes on")
        time.sleep(rng.uniform(0, JOB_SECONDS))  # where in its work the kill strikes
        victim = alive.pop(0 if kill % 5 == 4 else rng.randrange(1, len(alive)))
        victim.kill()
        if victim.name.startswith("scheduler"):
            alive.insert(0, fleet.scheduler())
        else:
            alive.append(fleet.worker("--slots", "4"))
    fleet.until(lambda: finished(*jobs), f"all jobs are finished (seed {SEED})")

    assert orphans() == 0
    assert Job.objects.filter(pk__in=jobs, status="succeeded").count() == len(jobs)
    lost = [event for job in jobs for event in events(job, "failed")]
    assert lost, "no kill has met a running job"
    assert {event.detail["cause"] for event in lost} == {"lease_expired"}
    assert_at_rest()


@pytest.mark.timeout(120 + 2 * LOAD_KILLS)
def test_f01_i16_workers_killed_under_load_lose_nothing_and_have_each_effect_once(fleet):
    """Ten a second, as far as new ones are there to take over; and always work for all of them."""

    def kill(victim: Process) -> None:
        victim.kill()
        time.sleep(0.1)

    fleet.scheduler()
    jobs, killed = end_at_work(fleet, kill, times=LOAD_KILLS, seed=SEED, portion=100, seconds=0.02)
    assert_recovered_in_time(jobs, killed)
    assert_each_effect_once(fleet, jobs)
    assert_at_rest()
