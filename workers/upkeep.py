"""What a worker looks at ten times a second: deadlines, work that cannot begin, a drain, the memory of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from jobs import telemetry
from workers.drain import Drain
from workers.execution import Execution
from workers.executors.interface import Executor
from workers.intake import Intake
from workers.memory import resident_bytes
from workers.outbox import Outbox

log = logging.getLogger(__name__)

UPKEEP_SECONDS = 0.1
PATIENCE_SECONDS = 0.25  # what has waited longer behind busy slots goes back
ABANDON_SECONDS = 1.0  # after its deadline an attempt has this long to stop by itself
MOST_ABANDONED = 16  # attempts that never end pile up in a process; so many are worth a restart


class Upkeep:
    """Belongs to the worker's loop."""

    def __init__(
        self,
        *,
        held: dict[UUID, Execution],
        executor: Executor,
        intake: Intake,
        outbox: Outbox,
        drain: Drain,
        max_memory_bytes: int | None,
        stop: Callable[[], None],
    ) -> None:
        """`stop` begins the drain: a new process has neither lost threads nor lost memory."""
        self.due_at = 0.0
        self.abandons = 0  # attempts that live on in this process: only its end ends them
        self._held, self._executor, self._intake, self._outbox = held, executor, intake, outbox
        self._drain, self._max_memory, self._stop = drain, max_memory_bytes, stop
        self._queued_since: float | None = None

    def run(self, now: float) -> None:
        """One look."""
        self.due_at = now + UPKEEP_SECONDS
        moving = self._intake.measure(now, ended_total=self._outbox.ended_total)
        begun = [one for one in list(self._held.values()) if one.begun]
        for execution in begun:
            if now > execution.stop.deadline:
                self._overrun(execution, now)
        self._executor.tend()
        self._return_stuck(now, begun=len(begun), moving=moving)
        if self._drain.begun:
            self._give_back_waiting("draining")
            if self._drain.is_notice_due(now):
                self.ask_all_to_stop()
        elif self._max_memory is not None and resident_bytes() > self._max_memory:
            log.warning(telemetry.WORKER_RECYCLED, extra={"resident_bytes": resident_bytes()})
            self._stop()

    def ask_all_to_stop(self) -> None:
        """The worker ends: handlers should leave at their next safe point."""
        for execution in list(self._held.values()):
            execution.stop.ask("shutdown")

    def _overrun(self, execution: Execution, now: float) -> None:
        execution.stop.ask("timeout")
        late = now > execution.stop.deadline + ABANDON_SECONDS
        if late and not execution.settled and self._executor.abandon(execution):
            log.error(
                telemetry.HANDLER_ABANDONED,
                extra={"job_id": str(execution.taken.job_id), "attempt": execution.taken.attempt},
            )
            self.abandons += 1
            if self.abandons == max(MOST_ABANDONED, self._executor.size):
                self._stop()
            self._outbox.put(execution, execution.timed_out())

    def _return_stuck(self, now: float, *, begun: int, moving: bool) -> None:
        """Give back what waits behind slots that are all busy with long work, so that others can have it."""
        if len(self._held) <= begun or moving:
            self._queued_since = None
            return
        self._queued_since = self._queued_since or now
        if now - self._queued_since > PATIENCE_SECONDS:
            self._give_back_waiting("slots_busy")
            self._queued_since = None

    def _give_back_waiting(self, reason: str) -> None:
        for execution in self._executor.take_back():
            if execution.settle():
                self._outbox.put(execution, execution.released(reason))
