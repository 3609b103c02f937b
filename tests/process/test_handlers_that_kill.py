"""Handlers that take their process along are counted and bounded; those that only raise cost nobody else anything."""

from __future__ import annotations

import signal
from datetime import datetime
from itertools import pairwise
from uuid import UUID

import pytest

from jobs.models import DeadLetter, Job
from jobs.policies.cleaning import CUT_MARK, MESSAGE_BYTES
from tests.process.stories import (
    assert_at_rest,
    events,
    finished,
    recoveries,
    seconds_between,
    story,
    submit,
    submit_many,
)
from tests.support.odd_errors import ODD
from tests.support.process import T_REC, Process

pytestmark = pytest.mark.process

EXITS = {"exit": 1, "segfault": -signal.SIGSEGV, "out of memory": -signal.SIGKILL}
NEIGHBOURS, BUDGET = 4, 3
BACKOFFS = (0.4, 0.8)
POLICY = {"kind": "exponential", "base_seconds": 0.4, "factor": 2.0, "jitter": 0.0}
LOST = ["leased", "started", "failed"]


def pauses(job_id: UUID) -> list[tuple[datetime, datetime]]:
    """When each attempt that was not the last had failed, and when the next claim came."""
    return [
        (one.at, following.at)
        for one, following in pairwise(events(job_id))
        if one.kind == "failed" and following.kind == "leased"
    ]


def test_f08_kf32_a_handler_that_kills_its_worker_is_dead_after_its_budget_and_spares_its_neighbours(
    fleet, probe
):
    """Each way in a pool of its own, whose one worker is started again whenever it has ended."""

    def start(way: str) -> Process:
        name = way.replace(" ", "-")
        worker: Process = fleet.worker("--pool", name, "--labels", f"way={name}", "--slots", "6")
        worker.may_end = True
        return worker

    fleet.fork_all()
    fleet.scheduler()
    workers = {way: [start(way)] for way in EXITS}
    fleet.ready()
    labels = {way: {"way": way.replace(" ", "-")} for way in EXITS}
    neighbours = [
        job
        for way in EXITS
        for job in submit_many(NEIGHBOURS, labels=labels[way], gate="end", max_attempts=5)
    ]
    fleet.until(lambda: len(probe.notes(what="began")) == len(neighbours), "all of them run")
    killers = {
        way: submit("probe.kills", way=way, labels=labels[way], retry=POLICY) for way in EXITS
    }

    def all_finished() -> bool:
        for way, started in workers.items():
            if started[-1].ended:
                started.append(start(way))
        if finished(*killers.values()):
            probe.open("end")
        return finished(*killers.values(), *neighbours)

    fleet.until(all_finished, "all are finished", within=4 * BUDGET * T_REC)

    for way, job in killers.items():
        assert [one.exit_code() for one in workers[way][:-1]] == [EXITS[way]] * BUDGET
        assert story(job) == ["created", *LOST, *LOST, "leased", "started", "dead"]
        started, losses = events(job, "started"), [*events(job, "failed"), *events(job, "dead")]
        for start_of_it, loss in zip(started, losses, strict=True):
            assert loss.detail["cause"] == "lease_expired"
            assert loss.detail["error"]["type"] == "WorkerLost"
            assert start_of_it.actor == f"worker:{loss.detail['worker']}"
            assert seconds_between(loss.detail["heartbeat_at"], loss.at) <= T_REC
        assert len({one.actor for one in started}) == BUDGET
        for backoff, (lost, again) in zip(BACKOFFS, pauses(job), strict=True):
            assert backoff <= seconds_between(lost, again)
        assert DeadLetter.objects.get(job=job).error_type == "WorkerLost"
        assert max(recoveries(events(job))) <= T_REC
        assert len(probe.notes(job, "began")) == BUDGET
    for job in neighbours:
        assert Job.objects.get(pk=job).status == "succeeded"
        assert len(probe.notes(job, "ended")) == 1
    assert_at_rest()


def test_f10_whatever_a_handler_raises_is_recorded_and_the_worker_goes_on(fleet, probe):
    """Each exception twice, in one process of two slots; after all of them both slots still work."""
    fleet.fork_all()
    fleet.scheduler()
    worker = fleet.worker("--slots", "2")
    fleet.ready()
    raised = {**{case: name for case, (_, name) in ODD.items()}, "recursion": "RecursionError"}
    jobs = {case: submit("probe.odd", odd=case, max_attempts=2) for case in raised}
    fleet.until(lambda: finished(*jobs.values()), "all are recorded")
    good = submit_many(2, gate="both")
    fleet.until(lambda: all(probe.notes(one, "began") for one in good), "both slots work")
    probe.open("both")
    fleet.until(lambda: finished(*good), "the good ones are finished")

    for case, job in jobs.items():
        assert story(job) == ["created", *LOST, "leased", "started", "dead"], case
        for failure in (*events(job, "failed"), *events(job, "dead")):
            told = failure.detail["error"]
            assert failure.detail["cause"] == "error", case
            assert failure.actor == f"worker:{worker.worker_id}", case
            assert raised[case].startswith(told["type"].removesuffix(CUT_MARK)), case
            assert 0 < len(told["type"].encode()) <= 255, case
            assert len(told["message"].encode()) <= MESSAGE_BYTES, case
        letter = DeadLetter.objects.get(job=job)
        assert letter.message == told["message"], case
    assert {Job.objects.get(pk=one).status for one in good} == {"succeeded"}
    assert {note.pid for one in good for note in probe.notes(one)} == {worker.pid}
    assert_at_rest()
