"""The loop under every process: turns, waits that end early, failures that end nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from django.db import OperationalError, connection

from tests.workers.stage import PATIENCE_SECONDS
from workers import loop as loops
from workers.loop import Loop


@pytest.fixture(autouse=True)
def forgotten(monkeypatch) -> list[str]:
    """How often the loop had plans forgotten; these turns need no database."""
    calls: list[str] = []
    monkeypatch.setattr(loops, "forget_plans", lambda: calls.append("plans"))
    return calls


def test_it_has_plans_forgotten_now_and_then_and_not_at_every_turn(forgotten, monkeypatch):
    monkeypatch.setattr(loops, "CHECK_SECONDS", 3600.0)
    loop = Loop("test", lambda: 0.0)
    for _ in range(3):
        loop.run_turn()
    assert forgotten == ["plans"]
    monkeypatch.setattr(loops, "CHECK_SECONDS", 0.0)
    another = Loop("test", lambda: 0.0)
    for _ in range(3):
        another.run_turn()
    assert forgotten == ["plans"] * 4


class Gone(Exception):
    sqlstate = "57P01"  # the server told this session to end


def gone() -> OperationalError:
    error = OperationalError("terminating connection due to administrator command")
    error.__cause__ = Gone()
    return error


def run(loop: Loop) -> threading.Thread:
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    return thread


def counting(pause: float) -> tuple[threading.Semaphore, Callable[[], float]]:
    turns = threading.Semaphore(0)

    def turn() -> float:
        turns.release()
        return pause

    return turns, turn


def test_a_stop_ends_a_long_wait_at_once():
    turns, turn = counting(3600)
    loop = Loop("test", turn)
    thread = run(loop)
    assert turns.acquire(timeout=PATIENCE_SECONDS)
    loop.stop()
    assert loop.stopped
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not turns.acquire(blocking=False)


def test_a_loop_that_was_stopped_before_it_ran_never_turns():
    turns, turn = counting(0)
    loop = Loop("test", turn)
    loop.stop()
    loop.run()
    assert not turns.acquire(blocking=False)


def test_a_wake_up_begins_the_next_turn_at_once():
    turns, turn = counting(3600)
    loop = Loop("test", turn)
    thread = run(loop)
    for _ in range(3):
        assert turns.acquire(timeout=PATIENCE_SECONDS)
        loop.wake()
    assert turns.acquire(timeout=PATIENCE_SECONDS)
    loop.stop()
    thread.join(PATIENCE_SECONDS)


def test_a_wake_up_during_a_turn_is_not_lost():
    turns = 0

    def turn() -> float:
        nonlocal turns
        turns += 1
        if turns == 1:
            loop.wake()  # work came in after this turn had looked for it
            return 3600.0
        loop.stop()
        return 0.0

    loop = Loop("test", turn)
    thread = run(loop)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert turns == 2


@pytest.mark.parametrize("error", [OperationalError("no route to host"), ValueError("a bug")])
def test_pauses_after_failures_grow_with_jitter_up_to_a_limit(error):
    def turn() -> float:
        raise error

    loop = Loop("test", turn, max_backoff_seconds=2.0)
    for failures in range(1, 30):
        longest = min(2.0, 0.1 * 2**failures)
        assert longest / 2 <= loop.run_turn() <= longest
        assert loop.failures == failures
    assert len({Loop("test", turn).run_turn() for _ in range(10)}) > 1


def test_kf54_hints_do_not_turn_an_outage_into_a_tight_loop():
    turns: list[float] = []

    def turn() -> float:
        turns.append(time.monotonic())
        if len(turns) == 4:
            loop.stop()
        loop.wake()  # as fast as hints can come
        raise OperationalError("connection refused")

    loop = Loop("test", turn, max_backoff_seconds=60.0)
    thread = run(loop)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    # A slow machine makes pauses longer, and only hints that are followed would make them shorter.
    pauses = [later - earlier for earlier, later in pairwise(turns)]
    assert all(pause >= least for pause, least in zip(pauses, [0.1, 0.2, 0.4], strict=True)), (
        pauses
    )


def test_a_success_after_failures_starts_counting_anew():
    errors = [ValueError("a bug"), None, ValueError("a bug")]

    def turn() -> float:
        if (error := errors.pop(0)) is not None:
            raise error
        return 7.0

    loop = Loop("test", turn)
    turned_at = loop.turned_at
    loop.run_turn()
    assert (loop.failures, loop.turned_at) == (1, turned_at)
    assert loop.run_turn() == 7.0
    assert loop.failures == 0
    assert loop.turned_at > turned_at
    loop.run_turn()
    assert loop.failures == 1


def test_an_outage_is_one_line_now_and_then_and_no_line_per_try(caplog):
    def turn() -> float:
        raise OperationalError("connection refused")

    loop = Loop("test", turn)
    with caplog.at_level(logging.ERROR):
        for _ in range(45):
            loop.run_turn()
    lines = [record for record in caplog.records if record.message == "loop.failed"]
    assert [record.__dict__["failures"] for record in lines] == [1, 20, 40]
    assert all(record.exc_info is None for record in lines)  # the story is told by its name


def test_a_bug_is_logged_with_its_trace(caplog):
    def turn() -> float:
        raise ZeroDivisionError("a bug")

    Loop("test", turn).run_turn()
    (line,) = [record for record in caplog.records if record.message == "loop.failed"]
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError
    assert line.__dict__["loop"] == "test"


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_wish_to_end_the_process_is_not_swallowed(end):
    def turn() -> float:
        raise end

    with pytest.raises(end):
        Loop("test", turn).run_turn()


def test_a_connection_that_is_gone_is_closed_and_the_next_turn_gets_a_new_one(committed):
    connection.close()  # a new one, or it might be too old to be kept
    connection.ensure_connection()
    first = connection.connection

    def turn() -> float:
        raise gone()

    Loop("test", turn).run_turn()
    assert connection.connection is None
    connection.ensure_connection()
    assert connection.connection is not first


def test_a_connection_survives_an_error_that_is_not_its_own(committed):
    connection.close()  # a new one, or it might be too old to be kept
    connection.ensure_connection()
    first = connection.connection

    def turn() -> float:
        raise ValueError("a bug")

    Loop("test", turn).run_turn()
    assert connection.connection is first
