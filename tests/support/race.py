"""Real concurrency: threads that each have a connection of their own, and a start at the same instant.

`Team` runs rounds of calls side by side. `overtake` is the deterministic form: the winner's transaction stays open
until the losers are seen to wait for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self

import pytest
from django.db import connection, transaction

from jobs.database import rows
from jobs.errors import JobError

# Rounds of each race. The figure promised is 2,000 (RACE_ROUNDS=2000 make race); an ordinary run does fewer.
ROUNDS = int(os.environ.get("RACE_ROUNDS") or 100)
PATIENCE_SECONDS = 60.0

RACES = [  # the mark of every file with races
    pytest.mark.race,
    pytest.mark.usefixtures("committed"),
    pytest.mark.timeout(120 + ROUNDS // 4),
]

BLOCKED_BY_ME = (
    "select count(*) from unnest(%(pids)s::int[]) as pid where pg_blocking_pids(pid) <> '{}'"
)

type Call = Callable[[], Any]


class Team:
    """Threads that stay, each with its own connection, so that a round costs a barrier and not a connection."""

    def __init__(self, size: int) -> None:
        self._todo: list[SimpleQueue[Callable[[], None] | None]] = [
            SimpleQueue() for _ in range(size)
        ]
        self._done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=[number], daemon=True)
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()
        self.pids: list[int] = self.together(*[_own_pid] * size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for todo in self._todo:
            todo.put(None)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a racer never came back"

    def together(self, *calls: Call) -> list[Any]:
        """Begin all calls at one instant; what each returned, or the JobError it was answered with.

        Raises:
            ExceptionGroup: A call raised anything else: losing a race is an answer, never an error.
        """
        self.start(*calls)
        return self.finish(len(calls))

    def start(self, *calls: Call) -> None:
        """Begin all calls at one instant, and do not wait for them."""
        barrier = threading.Barrier(len(calls))
        for number, call in enumerate(calls):
            self._todo[number].put(partial(self._run, number, call, barrier))

    def finish(self, count: int) -> list[Any]:
        """The answers to the calls begun by `start`, in their order."""
        ends: dict[int, Any] = {}
        faults: list[BaseException] = []
        for _ in range(count):
            try:
                number, answer, fault = self._done.get(timeout=PATIENCE_SECONDS)
            except Empty:
                raise AssertionError(f"{count - len(ends)} racers never came back") from None
            ends[number] = answer
            if fault is not None:
                faults.append(fault)
        if faults:
            raise BaseExceptionGroup("racers failed", faults)
        return [ends[number] for number in range(count)]

    def _serve(self, number: int) -> None:
        while (task := self._todo[number].get()) is not None:
            task()
        connection.close()

    def _run(self, number: int, call: Call, barrier: threading.Barrier) -> None:
        answer, fault = None, None
        try:
            barrier.wait(PATIENCE_SECONDS)
            answer = call()
        except JobError as refusal:
            answer = refusal
        except BaseException as error:  # noqa: BLE001 (raised again by finish, in the test's thread)
            fault = error
        self._done.put((number, answer, fault))


class Pace:
    """Shifts two starts against each other until both sides win: a race that one side always wins tests nothing.

    After each round the winner starts a little later the next time, which keeps the pair near the true collision. Who
    wins again and again is held back by larger and larger steps: on a slow machine the collision is far away.
    """

    STEP_SECONDS, MOST_SECONDS, PATIENT_ROUNDS = 0.0001, 0.5, 8

    def __init__(self) -> None:
        self.wins = [0, 0]
        self._streak = [0, 0]  # wins in a row
        self._lead = 0.0  # seconds by which the first call is held back; negative: the second

    def first(self, call: Call) -> Call:
        """The first of two calls, held back as long as it is the faster one."""
        return _later(max(0.0, self._lead), call)

    def second(self, call: Call) -> Call:
        """The second of two calls, held back as long as it is the faster one."""
        return _later(max(0.0, -self._lead), call)

    def won(self, side: int) -> None:
        """Say who came first in this round: 0 or 1."""
        self.wins[side] += 1
        self._streak[side], self._streak[1 - side] = self._streak[side] + 1, 0
        step = self.STEP_SECONDS * 2.0 ** min(max(0, self._streak[side] - self.PATIENT_ROUNDS), 10)
        shifted = self._lead + (step if side == 0 else -step)
        self._lead = min(max(shifted, -self.MOST_SECONDS), self.MOST_SECONDS)


def overtake(winner: Call, *losers: Call) -> tuple[Any, list[Any]]:
    """Run `winner` in a transaction that commits only when every loser is seen to wait for it.

    Returns:
        The winner's answer and the losers' answers, a JobError being an answer too.
    """
    with Team(len(losers)) as team:
        with transaction.atomic():
            won = winner()
            team.start(*losers)
            _wait_until_blocked(team.pids)
        return won, team.finish(len(losers))


def pass_by(winner: Call, *losers: Call) -> tuple[Any, list[Any]]:
    """As `overtake`, for losers that skip locked rows: they answer while the winner's transaction is still open."""
    with Team(len(losers)) as team, transaction.atomic():
        won = winner()
        return won, team.together(*losers)


def undone(first: Call, *others: Call) -> list[Any]:
    """As `overtake`, but the first transaction is rolled back in the end, as if its process had died."""
    with Team(len(others)) as team:
        with transaction.atomic():
            first()
            team.start(*others)
            _wait_until_blocked(team.pids)
            transaction.set_rollback(True)
        return team.finish(len(others))


def _wait_until_blocked(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while rows(BLOCKED_BY_ME, {"pids": pids})[0][0] < len(pids):
        assert time.monotonic() < deadline, "a loser never waited for the winner"
        time.sleep(0.002)  # between two looks at the lock table


def _own_pid() -> int:
    return int(rows("select pg_backend_pid()", {})[0][0])


def _later(seconds: float, call: Call) -> Call:
    def held_back() -> Any:
        if seconds:
            time.sleep(seconds)  # after the barrier: a shift of phase, not a wait for anything
        return call()

    return held_back
