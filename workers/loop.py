"""Loop: a turn again and again, with an interruptible wait, backoff after failures and a clean end. Knows no job."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, close_old_connections

from jobs import telemetry
from jobs.database import drop_if_gone, forget_plans

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0  # a check is a round trip of its own; a lost connection is noticed at the next statement anyway


class Loop:
    """Runs `turn()` until `stop()`; a turn returns how many seconds to wait at most before the next one.

    A failing turn is logged, counted and tried again with growing, jittered pauses; the loop itself never ends by it.
    """

    def __init__(
        self, name: str, turn: Callable[[], float], *, max_backoff_seconds: float = 5.0
    ) -> None:
        self.name, self._turn = name, turn
        self._max_backoff = max_backoff_seconds
        self._wake, self._stopped = threading.Event(), threading.Event()
        self.failures = 0  # in a row
        self._check_at = 0.0
        self.turned_at = time.monotonic()  # end of the last turn that succeeded: liveness

    def wake(self) -> None:
        """Begin the next turn now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the present turn."""
        self._stopped.set()
        self._wake.set()

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopped.is_set()

    def run(self) -> None:
        """Turn until stopped."""
        while not self._stopped.is_set():
            # Cleared before the turn: a wake-up during it must not be lost.
            self._wake.clear()
            pause = self.run_turn()
            if self.failures:
                self._stopped.wait(pause)  # a hint must not turn an outage into a tight loop
            elif pause > 0:
                self._wake.wait(pause)

    def run_turn(self) -> float:
        """One guarded turn; returns the seconds to wait."""
        try:
            if (now := time.monotonic()) >= self._check_at:
                self._check_at = now + CHECK_SECONDS
                close_old_connections()
                forget_plans()
            pause = self._turn()
        except (DatabaseError, InterfaceError) as error:
            drop_if_gone(error)
            return self._failed(error)
        except Exception as error:  # noqa: BLE001 (a loop outlives a bug in one turn; it is logged with its trace)
            return self._failed(error)
        self.failures, self.turned_at = 0, time.monotonic()
        return pause

    def _failed(self, error: Exception) -> float:
        self.failures += 1
        known = isinstance(error, DatabaseError | InterfaceError)
        if (
            self.failures == 1 or self.failures % 20 == 0
        ):  # an outage is one story, not a line per try
            log.error(
                telemetry.LOOP_FAILED,
                exc_info=None if known else error,
                extra={"loop": self.name, "failures": self.failures, "error": str(error)[:300]},
            )
        longest = min(self._max_backoff, 0.1 * 2.0 ** min(self.failures, 10))
        return random.uniform(0.5, 1.0) * longest
