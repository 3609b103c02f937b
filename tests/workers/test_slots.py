"""The threads executor: slots are fed by a queue, give back what they have not begun, and can be given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty

import pytest

from jobs.services.outcomes import Ending
from tests.workers.attempts import execution
from tests.workers.stage import Function, until
from workers.executors.interface import Report
from workers.executors.threads import ThreadSlots


class Pool:
    """Slots with their reports, and a gate at which attempts wait."""

    def __init__(self, size: int) -> None:
        self.slots = ThreadSlots(size)
        self.reports = self.slots.reports
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def waits(self, ctx) -> str:
        self.begun.release()
        assert self.gate.wait(20)
        return "done"

    def submit(self, function: Function):
        one = execution(function)
        self.slots.submit(one)
        return one

    def report(self) -> Report:
        return self.reports.get(timeout=10)

    def nothing_reported(self) -> bool:
        try:
            self.reports.get(timeout=0.1)
        except Empty:
            return True
        return False


def alive() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "slot"])


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.gate.set()
    pool.slots.close()
    until(lambda: alive() == 0, "all slots have ended")


def test_an_attempt_is_run_and_reported_with_its_outcome(pool):
    one = pool.submit(lambda ctx: "paid")
    report = pool.report()
    assert report is not None
    found, outcome = report
    assert found is one
    assert outcome is not None
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, "paid")


def test_as_many_attempts_run_at_once_as_there_are_slots(pool):
    for _ in range(3):
        pool.submit(pool.waits)
    assert pool.begun.acquire(timeout=10)
    assert pool.begun.acquire(timeout=10)
    assert not pool.begun.acquire(timeout=0.1)
    pool.gate.set()
    assert len([pool.report() for _ in range(3)]) == 3


def test_what_no_slot_has_begun_can_be_taken_back_and_never_runs(pool):
    running = [pool.submit(pool.waits) for _ in range(2)]
    for _ in running:
        assert pool.begun.acquire(timeout=10)
    waiting = [pool.submit(lambda ctx: pytest.fail("it ran")) for _ in range(3)]
    assert pool.slots.take_back() == waiting
    assert pool.slots.take_back() == []
    pool.gate.set()
    assert {id(report[0]) for report in (pool.report(), pool.report()) if report} == {
        id(one) for one in running
    }
    assert pool.nothing_reported()


def test_kf34_an_end_of_the_process_asked_for_by_a_handler_ends_no_slot(pool):
    def leave(ctx):
        raise SystemExit(1)

    for _ in range(5):
        pool.submit(leave)
    ends = [
        report[1].ending for report in (pool.report() for _ in range(5)) if report and report[1]
    ]
    assert ends == [Ending.FAILED] * 5
    assert alive() == 2


def test_f09_a_slot_that_was_given_up_is_replaced_and_its_late_report_dropped(pool):
    stuck = [pool.submit(pool.waits) for _ in range(2)]
    for _ in stuck:
        assert pool.begun.acquire(timeout=10)
    for one in stuck:
        assert pool.slots.abandon(one)  # the loop reports these as out of time
    pool.submit(lambda ctx: "next")
    report = pool.report()
    assert report is not None
    assert report[1] is not None
    assert report[1].result == "next"
    pool.gate.set()
    assert pool.nothing_reported()
    until(lambda: alive() == 2, "the given-up threads have ended")


def test_an_attempt_that_was_settled_before_it_began_is_not_reported_twice(pool):
    gate = [pool.submit(pool.waits) for _ in range(2)]
    for _ in gate:
        assert pool.begun.acquire(timeout=10)
    late = pool.submit(lambda ctx: "late")
    assert late.settle()
    pool.gate.set()
    assert late not in [report[0] for report in (pool.report(), pool.report()) if report]
    assert pool.nothing_reported()
