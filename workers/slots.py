"""The threads executor: slots fed by a queue. A thread that does not end in time is given up and replaced."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from django.db import close_old_connections, connections

from jobs.services.outcomes import AttemptOutcome
from workers.execution import Execution

# What a slot hands back: the attempt and how it ended (None: it recorded its own completion), or a wake-up.
Report = tuple[Execution, AttemptOutcome | None] | None


class ThreadSlots:
    """So many threads, one queue in, one queue out. Queues cost less per job than an executor's futures."""

    def __init__(self, size: int, reports: SimpleQueue[Report]) -> None:
        self.size = size
        self._todo: SimpleQueue[Execution | None] = SimpleQueue()
        self._reports = reports
        for _ in range(size):
            self._start()

    def submit(self, execution: Execution) -> None:
        """Run the attempt as soon as a slot is free."""
        self._todo.put(execution)

    def take_back(self) -> list[Execution]:
        """Attempts that no slot has begun; they will not be."""
        waiting: list[Execution] = []
        try:
            while (execution := self._todo.get_nowait()) is not None:
                waiting.append(execution)
        except Empty:
            pass
        return waiting

    def abandon(self, execution: Execution) -> None:
        """Give up the thread that runs this attempt: Python cannot stop it, but its slot must work again."""
        execution.abandoned = True
        self._start()

    def close(self) -> None:
        """Let every idle slot end; a busy one ends after its attempt."""
        for _ in range(self.size):
            self._todo.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._slot, name="slot", daemon=True).start()

    def _slot(self) -> None:
        checked_at = time.monotonic()
        while (execution := self._todo.get()) is not None:
            outcome = execution.run()
            if execution.settle():
                self._reports.put((execution, outcome))
            if execution.abandoned:
                break
            if (
                now := time.monotonic()
            ) - checked_at > 1.0:  # handlers may have opened connections in this thread
                close_old_connections()
                checked_at = now
        connections.close_all()
