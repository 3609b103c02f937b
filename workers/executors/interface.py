"""What a worker asks of an executor. It runs attempts and tells how they ended; leases and reports are not its business."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Protocol

from jobs.conf import conf
from jobs.services.outcomes import AttemptOutcome
from workers.execution import Execution
from workers.handlers import HandlerSpec
from workers.stopping import Stop

# What a slot hands back: the attempt and how it ended (None: it recorded its own completion), or a wake-up.
Report = tuple[Execution, AttemptOutcome | None] | None

CLOSE_SECONDS = 2.0  # so long may attempts that were told to stop take to end at a close


def must_leave(stop: Stop) -> float:
    """Monotonic time at which an attempt that lost its lease is ended by force, where that can be done.

    Trust ends at 0.8 of the lease: another tenth of it for a clean end leaves a tenth before anybody else may begin.
    """
    return stop.asked_at + min(1.0, 0.1 * conf().lease_ttl_seconds)


class Executor(Protocol):
    """So many slots, which are ready once it is made.

    Attributes:
        size: How many attempts run at once.
        reports: Where every attempt that ends is put, once. Whoever settles an attempt first reports it.
    """

    size: int
    reports: SimpleQueue[Report]

    def takes(self, spec: HandlerSpec) -> bool:
        """Whether it can run such a handler; a worker advertises no other."""

    def submit(self, execution: Execution) -> None:
        """Run the attempt as soon as a slot is free."""

    def take_back(self) -> list[Execution]:
        """Attempts that no slot has begun; they will not be."""

    def abandon(self, execution: Execution) -> bool:
        """Free the slot of an attempt that has ignored its deadline; may be called again until it has ended.

        Returns:
            True if it lives on in this process: it is settled, and the caller reports it. False if its slot reports
            it: it has ended, or is being ended by force.
        """

    def tend(self) -> None:
        """Called about ten times a second: whatever an executor must look at. Never waits."""

    def close(self) -> None:
        """End every slot. Attempts were asked to stop; what can be ended by force is, within `CLOSE_SECONDS`."""
