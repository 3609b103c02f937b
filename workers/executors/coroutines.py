"""The async executor: hundreds of coroutine handlers at once, in one event loop in one thread.

A cancelled task has ended for certain, so its attempt can be given back. A handler that blocks the loop holds up its
neighbours, but neither the heartbeat nor the worker's loop: those are other threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from queue import SimpleQueue

from jobs.services.outcomes import AttemptOutcome
from workers.execution import Execution
from workers.executors.interface import CLOSE_SECONDS, Report
from workers.handlers import HandlerSpec
from workers.stopping import call_in

BEAT_SECONDS = 0.1
BLOCKED_SECONDS = 0.7  # a loop that has not turned for so long is held by a handler


class CoroutineSlots:
    """So many tasks in a loop, and a queue before them. A loop that is blocked for good is given up and replaced."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self._waiting: deque[Execution] = deque()
        self._running = 0
        self._lock = threading.Lock()  # of these, and of the lane that new ones go to
        self._lane = _Lane(self)

    def takes(self, spec: HandlerSpec) -> bool:
        """Coroutines, except in a transaction of Django's, which is bound to one thread: it would be shared."""
        return spec.is_coroutine and not spec.transactional

    def submit(self, execution: Execution) -> None:
        """Run the attempt as soon as a slot is free."""
        with self._lock:
            self._waiting.append(execution)
        self._fill()

    def take_back(self) -> list[Execution]:
        """Attempts that no slot has begun; they will not be."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def abandon(self, execution: Execution) -> bool:
        """Give up a task that survives its cancellation, and the loop if that is why: its slot must work again."""
        if not execution.settle():
            return False
        execution.abandoned = True
        with self._lock:  # what was handed to the old one comes before its retirement
            if self._lane.is_blocked:
                self._lane.retire()
                self._lane = _Lane(self)
        self._freed()
        return True

    def tend(self) -> None:
        """Nothing: the loop cares for itself."""

    def close(self) -> None:
        """Let every task end by its cancellation, which follows the request to stop."""
        self.take_back()
        self._lane.retire()
        self._lane.thread.join(CLOSE_SECONDS)

    def ended(self, execution: Execution, outcome: AttemptOutcome) -> None:
        """Its task has ended, in whatever lane. Whoever settles the attempt frees its slot, so that it happens once."""
        if execution.settle():
            self.reports.put((execution, outcome))
            self._freed()

    def _freed(self) -> None:
        with self._lock:
            self._running -= 1
        self._fill()

    def _fill(self) -> None:
        with self._lock:
            while self._waiting and self._running < self.size:
                self._running += 1
                self._lane.start(self._waiting.popleft())


class _Lane:
    """A thread with an event loop and the tasks in it. Ends once it is retired and they have ended."""

    def __init__(self, slots: CoroutineSlots) -> None:
        self._slots = slots
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired = False
        self._turned_at = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="slot", daemon=True)
        self.thread.start()

    @property
    def is_blocked(self) -> bool:
        """True while some handler keeps the loop from turning."""
        return time.monotonic() - self._turned_at > BLOCKED_SECONDS

    def start(self, execution: Execution) -> None:
        """Run the attempt; from any thread."""
        call_in(self._loop, lambda: self._spawn(execution))

    def retire(self) -> None:
        """End when the tasks have ended; from any thread."""

        def note() -> None:
            self._retired = True

        call_in(self._loop, note)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._until_retired())
        finally:
            self._loop.close()

    async def _until_retired(self) -> None:
        while self._tasks or not self._retired:
            self._turned_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def _spawn(self, execution: Execution) -> None:
        task = self._loop.create_task(self._attempt(execution))
        self._tasks.add(task)  # the loop itself keeps no more than a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, execution: Execution) -> None:
        self._slots.ended(execution, await execution.run_async())
