"""The processes executor from inside: children, their messages, their environment and their ends."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from queue import Empty
from typing import Any

import psutil
import pytest

from jobs.services.outcomes import AttemptOutcome, Ending
from tests.factories import WORKER
from tests.workers.attempts import taken
from tests.workers.stage import until
from workers.execution import Execution
from workers.executors import environment, wire
from workers.executors.processes import ProcessSlots
from workers.executors.slot import described
from workers.handlers import MISSING

PAYLOADS = {"probe.awaits": '{"seconds": 0}', "probe.sleeps": "{}"}


class Pool:
    """Slots whose handlers are those of the probes."""

    def __init__(self, size: int, **options: Any) -> None:
        self.slots = ProcessSlots(size, **options)
        self._submitted: list[Execution] = []

    def submit(self, handler: str, **fields: Any) -> Execution:
        """An attempt; what runs it here would be MISSING, for only the child knows the handler."""
        fields.setdefault("payload", PAYLOADS.get(handler))
        one = execution_of(handler, **fields)
        self._submitted.append(one)
        self.slots.submit(one)
        return one

    def outcome(self) -> AttemptOutcome:
        report = self.slots.reports.get(timeout=30)
        assert report is not None
        assert report[1] is not None
        return report[1]

    def template(self) -> psutil.Process:
        process = self.slots._nursery._process
        assert process is not None
        return psutil.Process(process.pid)

    def child(self) -> psutil.Process:
        (child,) = self.template().children()
        return child

    def stop_all(self) -> None:
        """End what still runs, and what waits."""
        for one in self._submitted:
            one.stop.ask("shutdown")
            self.slots.abandon(one)
        until(lambda: all(one.settled for one in self._submitted), "all attempts have ended")
        self._submitted.clear()
        while not self.slots.reports.empty():
            self.slots.reports.get()

    def close(self) -> None:
        for one in self._submitted:
            one.stop.ask("shutdown")
        self.slots.close()


def execution_of(handler: str, **fields: Any) -> Execution:
    return Execution(
        taken(handler=handler, **fields),
        spec=MISSING,
        tenant="acme",
        sent_at=time.monotonic(),
        drain=threading.Event(),
        worker_id=WORKER,
    )


@pytest.fixture(scope="module")
def started() -> Iterator[Pool]:
    """One for all tests here: the template takes seconds to import everything on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUEKEEPER_APPS", "tests.process.probes")
        pool = Pool(1)
    yield pool
    pool.close()


@pytest.fixture
def pool(started: Pool) -> Iterator[Pool]:
    yield started
    started.stop_all()


def test_an_attempt_is_run_in_a_process_of_its_own(pool):
    for _ in range(3):
        pool.submit("probe.awaits", attempt=2)
    results = [pool.outcome().result for _ in range(3)]
    child = pool.child()
    assert results == [{"attempt": 2, "pid": child.pid}] * 3


def test_a_handler_that_the_child_does_not_know_fails_for_good(pool):
    pool.submit("no.such_handler")
    assert pool.outcome().permanent


def test_what_no_child_was_given_can_be_taken_back(pool):
    running = pool.submit("probe.sleeps")
    until(lambda: running.begun, "the first runs")
    waiting = [pool.submit("probe.sleeps") for _ in range(2)]
    assert pool.slots.take_back() == waiting
    assert all(one.settle() for one in waiting)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("cancel", Ending.CANCELLED), ("shutdown", Ending.RELEASED), ("lease_lost", Ending.RELEASED)],
)
def test_a_stop_reaches_the_handler(pool, reason, ending):
    one = pool.submit("probe.awaits", payload='{"seconds": 60}')
    until(lambda: one.begun, "it runs")
    one.stop.ask(reason)
    assert pool.outcome().ending is ending


def test_a_stop_before_the_begin_costs_no_process_a_thing(pool):
    running = pool.submit("probe.sleeps")
    until(lambda: running.begun, "the first runs")
    waiting = pool.submit("probe.awaits")
    waiting.stop.ask("cancel")
    running.stop.ask("cancel")
    assert [pool.outcome().ending for _ in range(2)] == [Ending.CANCELLED] * 2
    assert not waiting.begun


def test_f09_an_attempt_that_is_given_up_is_killed_and_reported_once_it_has_ended(pool):
    one = pool.submit("probe.hangs", payload='{"way": "loop"}', attempt=1)
    until(lambda: one.begun, "it runs")
    child = pool.child()
    one.stop.ask("timeout")
    assert not pool.slots.abandon(one)
    outcome = pool.outcome()
    assert (outcome.ending, outcome.cause) == (Ending.FAILED, "timeout")
    until(lambda: not child.is_running(), "it has ended")
    pool.slots.abandon(one)  # later than its end: nobody else is hit
    pool.submit("probe.awaits")
    assert pool.outcome().ending is Ending.SUCCEEDED


def test_f08_a_child_that_dies_while_it_has_nothing_to_do_costs_no_attempt(pool):
    pool.submit("probe.awaits")
    pool.outcome()
    child = pool.child()
    child.kill()
    until(lambda: not child.is_running(), "it has ended")
    until(lambda: pool.slots._slots[0]._child.gone, "that is known")
    pool.submit("probe.awaits")
    assert pool.outcome().ending is Ending.SUCCEEDED


def test_a_child_that_was_to_be_killed_is_not_given_another_attempt(pool, monkeypatch):
    """The order may come a moment after the attempt has ended by itself."""
    one = pool.submit("probe.awaits", payload='{"seconds": 60}')
    until(lambda: one.begun, "it runs")
    before = pool.child()
    slot = pool.slots._slots[0]
    until(lambda: slot._current is one, "the child has it")
    with monkeypatch.context() as patch:
        patch.setattr(slot._nursery, "kill", lambda child: None)  # on its way
        pool.slots.abandon(one)
        one.stop.ask("cancel")
        assert pool.outcome().ending is Ending.CANCELLED
    pool.submit("probe.awaits")
    result = pool.outcome().result
    assert isinstance(result, dict)
    assert result["pid"] != before.pid


def test_an_attempt_whose_lease_is_lost_is_killed_when_it_does_not_leave(pool):
    one = pool.submit("probe.hangs", payload='{"way": "loop"}', attempt=1)
    until(lambda: one.begun, "it runs")
    one.stop.trusted_until = 0.0
    one.stop.ask("lease_lost")

    def ended() -> bool:
        pool.slots.tend()
        return not pool.slots.reports.empty()

    until(ended, "it is killed")
    assert pool.outcome().ending is Ending.RELEASED


def test_a_close_leaves_nothing_that_runs(monkeypatch):
    monkeypatch.setenv("DUEKEEPER_APPS", "tests.process.probes")
    pool = Pool(2)
    ones = [pool.submit("probe.hangs", payload='{"way": "sleep"}', attempt=1) for _ in range(2)]
    until(lambda: all(one.begun for one in ones), "they run")
    family = [pool.template(), *pool.template().children()]
    assert len(family) == 3
    pool.close()
    until(lambda: not any(one.is_running() for one in family), "all have ended")
    assert [pool.outcome().ending for _ in range(2)] == [Ending.RELEASED] * 2
    with pytest.raises(Empty):
        pool.slots.reports.get_nowait()


def test_handlers_that_cannot_be_loaded_are_told_at_once(monkeypatch):
    monkeypatch.setenv("DUEKEEPER_APPS", "no_such_app")
    with pytest.raises(wire.Gone):
        ProcessSlots(1)


# Messages


@pytest.mark.parametrize(
    "outcome",
    [
        {"ending": Ending.SUCCEEDED, "result": {"to": "Zoë 💥", "n": [1, None]}},
        {
            "ending": Ending.FAILED,
            "error": {"type": "ValueError", "message": "a\nb", "where": "shop:charge:1"},
            "cause": "timeout",
            "permanent": True,
            "delay_seconds": 1.5,
        },
        {"ending": Ending.CANCELLED, "by_handler": True, "reason": "void"},
    ],
    ids=lambda outcome: str(outcome["ending"]),
)
def test_an_outcome_arrives_as_it_was(outcome):
    one = AttemptOutcome(taken=taken(), **outcome)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.frame(wire.pack_outcome(one)))
        assert wire.unpack_outcome(one.taken, wire.receive(theirs)) == one


def test_an_attempt_arrives_as_it_was():
    one = taken(payload="x" * 100_000, payload_ref=None)
    assert wire.unpack_taken(wire.pack_taken(one)) == one


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02{}"[:-1],
        b"\x00\x00\x00\x01x",
        b"\x00\x00\x00\x02[]",
    ],
)
def test_nonsense_is_the_end_of_a_talk(sent):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(sent)
        with pytest.raises(wire.Gone):
            wire.receive(theirs)


@pytest.mark.parametrize("told", [{}, {"ending": "won"}, {"ending": "failed", "else": 1}])
def test_an_outcome_that_is_none_is_refused(told):
    with pytest.raises(wire.Gone):
        wire.unpack_outcome(taken(), told)


# Environment


def test_s28_programs_get_what_they_need_and_no_secret():
    given = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "DUEKEEPER_APPS": "shop",
        "DUEKEEPER_SECRET_KEY": "s",
        "DUEKEEPER_SECRET_KEY_FILE": "/run/s",
        "DUEKEEPER_SOME_TOKEN": "t",
        "AWS_ACCESS_KEY": "k",
        "DATABASE_URL_FILE": "/run/url",
        "DUEKEEPER_LISTEN_URL": "postgresql://direct",
        "SHOP_KEY": "for the shop",
    }
    visible, private = environment.split(given, ["SHOP_KEY"])
    assert visible.keys() == {"PATH", "LC_ALL", "DUEKEEPER_APPS", "SHOP_KEY"}
    assert private.keys() == {"DATABASE_URL_FILE", "DUEKEEPER_LISTEN_URL"}


def test_s28_what_an_operator_passes_is_seen_whatever_it_is():
    visible, private = environment.split({"DATABASE_URL": "postgresql://"}, ["DATABASE_URL"])
    assert list(visible) == ["DATABASE_URL"]
    assert not private


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "ended with exit code 0"),
        (1, "ended with exit code 1"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL, perhaps for want of memory"),
        (-63, "was killed by signal 63"),
        (None, "ended, nobody knows how"),
    ],
)
def test_f08_the_end_of_a_process_is_told_in_words(code, told):
    assert described(code, over_limit=False) == told


def test_f08_memory_over_the_limit_is_told_as_such():
    assert "--max-memory-mb" in described(-signal.SIGKILL, over_limit=True)
