"""The end of a worker: told to stop, a grace for what runs, and a notice to handlers shortly before it is over."""

from __future__ import annotations

import threading
import time

STOP_NOTICE_SECONDS = 1.0  # before the grace ends, handlers are asked to stop


class Drain:
    """Begins once, from any thread or a signal handler. Times are monotonic."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, float("inf")
        self.event = threading.Event()

    @property
    def begun(self) -> bool:
        """True once the worker takes no more work."""
        return self.event.is_set()

    def begin(self) -> bool:
        """Start the grace. False if it had begun before."""
        if self.begun:
            return False
        self._ends = time.monotonic() + self._seconds
        self.event.set()
        return True

    def is_notice_due(self, now: float) -> bool:
        """True when handlers are to be asked to stop."""
        return now > self._ends - STOP_NOTICE_SECONDS

    def is_over(self, now: float, *, with_notice: bool = False) -> bool:
        """True when the grace has ended; with the notice, when it has also had time to work in vain."""
        return now >= self._ends + (STOP_NOTICE_SECONDS if with_notice else 0.0)
