"""Cancels that meet a running worker: told in time, never undone by a retry, one truthful answer and one end."""

from __future__ import annotations

import random
import time
from collections import Counter
from uuid import UUID

import pytest

from jobs.errors import AlreadyFinished
from jobs.models import DueEntry, Job
from jobs.policies.sharding import shard_of_id
from jobs.transitions.cancel import cancel_job
from tests.process.stories import assert_at_rest, events, finished, story, submit

pytestmark = pytest.mark.process

ASKED_AND_HONOURED = ["created", "leased", "started", "cancel_requested", "cancelled"]
FINAL = {"succeeded", "dead", "cancelled"}
SEED, ROUNDS, MOST_DELAY_SECONDS = 30, 60, 0.02


def cancel(job_id) -> str:
    """Ask for the cancel and return the answer's word for it."""
    try:
        return cancel_job(
            shard=shard_of_id(job_id), job_id=job_id, actor="user:anna", reason="order withdrawn"
        ).outcome
    except AlreadyFinished:
        return "already_finished"


def test_kf29_a_cancelled_run_that_raises_is_not_tried_again(fleet, probe):
    fleet.scheduler(), fleet.worker("--slots", "1")
    fleet.ready()
    job = submit(gate="end", raises="the warehouse burned down", max_attempts=5)
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    assert cancel(job) == "cancel_requested"
    probe.open("end")
    fleet.until(lambda: finished(job), "the job is finished")
    after = submit()
    fleet.until(lambda: finished(after), "the worker goes on")

    assert story(job) == ASKED_AND_HONOURED
    assert len(probe.notes(job, "began")) == 1
    asked, ended = events(job)[-2:]
    assert (asked.actor, asked.detail["reason"]) == ("user:anna", "order withdrawn")
    assert ended.detail["cancel"] == "honoured"
    assert ended.detail["error"]["type"] == "ValueError"
    assert ended.detail["error"]["message"] == "the warehouse burned down"
    assert Job.objects.get(pk=job).status == "cancelled"
    assert not DueEntry.objects.exists()
    assert events(after, "started")[0].actor == ended.actor
    assert_at_rest()


def test_kf30_a_cancel_right_after_the_claim_is_answered_with_the_truth(fleet, probe):
    """Every other cancel strikes as soon as the claim can be seen, the others up to 20 ms later.

    A slow machine may see every claim too late to come before the take; so in some rounds the worker stands still.
    """
    rng = random.Random(SEED)
    fleet.scheduler()
    worker = fleet.worker("--slots", "2")
    fleet.ready()
    answers: dict[UUID, str] = {}
    for number in range(ROUNDS):
        stands_still = number % 6 == 0
        if stands_still:
            worker.freeze()
        job = submit("probe.heed", seconds=0.01)
        waiting = Job.objects.filter(pk=job, status="scheduled")
        fleet.until(lambda rows=waiting: not rows.exists(), "the claim", poll_seconds=0)
        if number % 2:
            time.sleep(rng.uniform(0, MOST_DELAY_SECONDS))  # where in the job's life it strikes
        answers[job] = cancel(job)
        if stands_still:
            assert answers[job] == "cancelled", "the claim alone has let the job begin"
            worker.thaw()
        fleet.until(lambda job=job: finished(job), f"the round is over (seed {SEED})")

    status = dict(Job.objects.values_list("pk", "status"))
    ran = Counter(note.job_id for note in probe.notes(what="began"))
    for job, answer in answers.items():
        assert ran[job] <= 1
        match answer:
            case "cancelled":
                assert (status[job], ran[job]) == ("cancelled", 0)
            case "cancel_requested":
                assert status[job] in ("cancelled", "succeeded")
            case "already_finished":
                assert (status[job], ran[job]) == ("succeeded", 1)
        assert len([event for event in events(job) if event.to_status in FINAL]) == 1
    assert "lease.lost" not in {line.get("event") for line in worker.logged()}
    counts = Counter(answers.values())
    assert {"cancelled", "cancel_requested"} <= counts.keys(), f"no race at all: {counts}"
    assert_at_rest()


def test_kf31_a_running_handler_hears_of_the_cancel_and_the_job_is_cancelled_when_it_has_stopped(
    fleet, probe
):
    fleet.scheduler(), fleet.worker("--slots", "1")
    fleet.ready()
    job = submit("probe.heed", gate="end", leave="leave")
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    asked_at = time.time()
    assert cancel(job) == "cancel_requested"
    (stop,) = fleet.until(lambda: probe.notes(job, "stop seen"), "the handler sees the stop")
    assert stop.at - asked_at <= 3.0
    assert Job.objects.get(pk=job).status == "leased"
    assert cancel(job) == "cancel_requested"  # asked again: the same answer, and no second event
    probe.open("leave")
    fleet.until(lambda: finished(job), "the job is finished")

    assert story(job) == ASKED_AND_HONOURED
    assert events(job)[-1].detail["cancel"] == "honoured"
    assert not probe.notes(job, "ended")
    assert_at_rest()
