"""Coroutine handlers: many at once in the async executor, one at a time in a thread, and cancelled where asked to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from jobs.services.outcomes import AttemptOutcome, Ending
from tests.workers.attempts import execution
from tests.workers.stage import spec, until
from workers.execution import Execution
from workers.executors.coroutines import CoroutineSlots
from workers.handlers import Cancelled, JobContext, Snooze


class Pool:
    """Slots, and their reports."""

    def __init__(self, size: int) -> None:
        self.slots = CoroutineSlots(size)
        self.gate = threading.Event()  # for handlers that block the loop
        self.begun = threading.Semaphore(0)
        self._submitted: list[Execution] = []

    async def sleeps(self, ctx: JobContext) -> None:
        """Hears of no stop."""
        self.begun.release()
        await asyncio.sleep(60)

    async def blocks(self, ctx: JobContext) -> None:
        """Lets nobody else run."""
        self.begun.release()
        assert self.gate.wait(30)

    def submit(self, function: Callable[[JobContext], Awaitable[object]]) -> Execution:
        one = execution(function)
        self._submitted.append(one)
        self.slots.submit(one)
        return one

    def outcome(self) -> AttemptOutcome:
        report = self.slots.reports.get(timeout=20)
        assert report is not None
        assert report[1] is not None
        return report[1]

    def close(self) -> None:
        self.gate.set()
        for one in self._submitted:
            one.stop.ask("shutdown")
        self.slots.close()


def lanes() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "slot"])


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()
    until(lambda: lanes() == 0, "all loops have ended")


async def nothing(ctx: JobContext) -> str:
    await asyncio.sleep(0)
    return "done"


def test_a_coroutine_is_run_and_reported_with_its_outcome(pool):
    pool.submit(nothing)
    outcome = pool.outcome()
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, "done")


def test_as_many_run_at_once_as_there_are_slots_and_the_rest_can_be_taken_back(pool):
    running = [pool.submit(pool.sleeps) for _ in range(2)]
    waiting = [pool.submit(pool.sleeps) for _ in range(3)]
    for _ in running:
        assert pool.begun.acquire(timeout=20)
    assert not pool.begun.acquire(timeout=0.2)
    assert pool.slots.take_back() == waiting
    assert pool.slots.take_back() == []
    running[0].stop.ask("cancel")
    assert pool.outcome().ending is Ending.CANCELLED
    pool.submit(nothing)
    assert pool.outcome().result == "done"


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("cancel", Ending.CANCELLED),
        ("shutdown", Ending.RELEASED),
        ("lease_lost", Ending.RELEASED),
        ("timeout", Ending.FAILED),
    ],
)
def test_what_hears_of_no_stop_is_cancelled_a_moment_later(pool, reason, ending):
    one = pool.submit(pool.sleeps)
    assert pool.begun.acquire(timeout=20)
    one.stop.ask(reason)
    outcome = pool.outcome()
    assert outcome.ending is ending
    assert outcome.cause == ("timeout" if reason == "timeout" else "error")
    assert not outcome.by_handler


def test_what_hears_of_it_in_time_ends_in_its_own_way(pool):
    async def function(ctx):
        pool.begun.release()
        assert await ctx.wait_async(60)
        return "saved"

    one = pool.submit(function)
    assert pool.begun.acquire(timeout=20)
    one.stop.ask("shutdown")
    outcome = pool.outcome()
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, "saved")


def test_a_wait_that_nobody_ends_takes_its_time_and_says_so(pool):
    async def function(ctx):
        began = time.monotonic()
        return [await ctx.wait_async(0.2), time.monotonic() - began >= 0.2]

    pool.submit(function)
    assert pool.outcome().result == [False, True]


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ValueError("boom"), Ending.FAILED),
        (Snooze(5), Ending.SNOOZED),
        (Cancelled("void"), Ending.CANCELLED),
        (SystemExit(1), Ending.FAILED),
        (KeyboardInterrupt(), Ending.FAILED),
        (asyncio.CancelledError(), Ending.FAILED),  # of its own making: nobody had asked
        (GeneratorExit(), Ending.FAILED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_kf34_whatever_a_coroutine_raises_is_an_outcome_and_the_loop_goes_on(pool, error, ending):
    async def function(ctx):
        await asyncio.sleep(0)
        raise error

    for _ in range(3):
        pool.submit(function)
    outcomes = [pool.outcome() for _ in range(3)]
    assert {outcome.ending for outcome in outcomes} == {ending}
    if ending is Ending.FAILED:
        assert outcomes[0].error is not None
        assert outcomes[0].error["type"] == type(error).__name__
    assert lanes() == 1
    pool.submit(nothing)
    assert pool.outcome().result == "done"


def test_f09_a_loop_that_a_handler_blocks_is_given_up_and_its_late_reports_dropped(pool):
    stuck = pool.submit(pool.blocks)
    assert pool.begun.acquire(timeout=20)
    until(lambda: pool.slots._lane.is_blocked, "the loop does not turn")
    assert pool.slots.abandon(stuck)
    assert not pool.slots.abandon(stuck)
    pool.submit(nothing)
    assert pool.outcome().result == "done"
    assert lanes() == 2
    pool.gate.set()
    until(lambda: lanes() == 1, "the blocked loop has ended")
    assert pool.slots.reports.empty()


def test_f09_a_task_that_survives_its_cancellation_gives_its_slot_away(pool):
    async def deaf(ctx):
        while not pool.gate.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pool.begun.release()

    one = pool.submit(deaf)
    until(lambda: one.begun, "it runs")
    one.stop.ask("timeout")
    assert pool.begun.acquire(timeout=20)
    assert pool.slots.abandon(one)
    pool.submit(nothing)
    pool.submit(nothing)
    assert {pool.outcome().result for _ in range(2)} == {"done"}
    assert lanes() == 1
    assert pool.slots.reports.empty()


def test_a_close_ends_all_that_was_asked_to_stop():
    pool = Pool(3)
    for _ in range(3):
        pool.submit(pool.sleeps)
    for _ in range(3):
        assert pool.begun.acquire(timeout=20)
    pool.close()
    assert [pool.outcome().ending for _ in range(3)] == [Ending.RELEASED] * 3
    until(lambda: lanes() == 0, "the loop has ended")


def test_neither_plain_functions_nor_transactions_are_taken(pool):
    assert pool.slots.takes(spec(nothing))
    assert not pool.slots.takes(spec(lambda ctx: None))
    assert not pool.slots.takes(spec(nothing, transactional=True))


class Called:
    """An object whose call is a coroutine."""

    async def __call__(self, ctx: JobContext) -> str:
        return await nothing(ctx)


@pytest.mark.parametrize("function", [nothing, Called()], ids=["function", "object"])
def test_a_coroutine_runs_in_a_thread_as_well(function):
    assert spec(function).is_coroutine
    outcome = execution(function).run()
    assert outcome is not None
    assert outcome.result == "done"


def test_in_a_thread_it_is_cancelled_too():
    async def function(ctx):
        begun.set()
        await asyncio.sleep(60)

    begun, outcomes = threading.Event(), list[AttemptOutcome | None]()
    one = execution(function)
    thread = threading.Thread(target=lambda: outcomes.append(one.run()), name="slot")
    thread.start()
    assert begun.wait(20)
    one.stop.ask("shutdown")
    thread.join(20)
    (outcome,) = outcomes
    assert outcome is not None
    assert outcome.ending is Ending.RELEASED


def test_kf30_a_coroutine_that_was_stopped_before_it_began_never_runs(pool):
    one = execution(pool.sleeps)
    one.stop.ask("cancel")
    pool.slots.submit(one)
    assert pool.outcome().ending is Ending.CANCELLED
    assert not pool.begun.acquire(blocking=False)
