"""The threads executor: slots fed by a queue. A thread that does not end in time is given up and replaced."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from django.db import close_old_connections, connections

from workers.execution import Execution
from workers.executors.interface import Report
from workers.handlers import HandlerSpec


class ThreadSlots:
    """So many threads, one queue in, one queue out. Queues cost less per job than a pool's futures."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self._todo: SimpleQueue[Execution | None] = SimpleQueue()
        for _ in range(size):
            self._start()

    def takes(self, spec: HandlerSpec) -> bool:
        """Every handler: a coroutine has an event loop of its own for its attempt."""
        return True

    def submit(self, execution: Execution) -> None:
        """Run the attempt as soon as a slot is free."""
        self._todo.put(execution)

    def take_back(self) -> list[Execution]:
        """Attempts that no slot has begun; they will not be."""
        return emptied(self._todo)

    def abandon(self, execution: Execution) -> bool:
        """Give up the thread that runs this attempt: Python cannot stop it, but its slot must work again."""
        if not execution.settle():
            return False
        execution.abandoned = True
        self._start()
        return True

    def tend(self) -> None:
        """Nothing: a thread needs no care."""

    def close(self) -> None:
        """Let every idle slot end; a busy one ends after its attempt, or with the process."""
        for _ in range(self.size):
            self._todo.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._slot, name="slot", daemon=True).start()

    def _slot(self) -> None:
        checked_at = time.monotonic()
        while (execution := self._todo.get()) is not None:
            outcome = execution.run()
            if execution.settle():
                self.reports.put((execution, outcome))
            if execution.abandoned:
                break
            if (
                now := time.monotonic()
            ) - checked_at > 1.0:  # handlers may have opened connections in this thread
                close_old_connections()
                checked_at = now
        connections.close_all()


def emptied(todo: SimpleQueue[Execution | None]) -> list[Execution]:
    """What waited in the queue of the slots."""
    waiting: list[Execution] = []
    try:
        while (execution := todo.get_nowait()) is not None:
            waiting.append(execution)
    except Empty:
        pass
    return waiting
