"""What has ended, until the database has accepted its report: collected from the slots, written in batches."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from jobs import telemetry
from jobs.conf import conf
from jobs.database import drop_if_gone, is_unavailable
from jobs.services.outcomes import AttemptOutcome, report_outcomes
from workers.execution import Execution
from workers.executors.interface import Report

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1


class Outbox:
    """Belongs to the worker's loop. An attempt leaves `held` only when its report was accepted."""

    def __init__(
        self,
        *,
        worker_id: UUID,
        shards: list[int],
        held: dict[UUID, Execution],
        reports: SimpleQueue[Report],
    ) -> None:
        self.unwritten: list[tuple[Execution, AttemptOutcome]] = []
        self.ended_total = 0
        self._worker_id, self._shards, self._held = worker_id, shards, held
        self._reports = reports
        self._rng = random.Random()

    def put(self, execution: Execution, outcome: AttemptOutcome) -> None:
        """Report an attempt that the loop itself has settled."""
        self._reports.put((execution, outcome))

    def wake(self) -> None:
        """End a wait of `collect`, from any thread."""
        self._reports.put(None)

    def collect(self, *, patience: float, slots: int, gather: bool) -> None:
        """Wait for the first report, then a moment for its company: batches at full load, milliseconds when idle.

        Args:
            patience: Seconds to wait for the first; 0 only looks.
            slots: How many attempts run at once.
            gather: Whether the company is waited for.
        """
        try:
            if patience > 0:
                report = self._reports.get(timeout=patience)
            else:
                report = self._reports.get_nowait()
        except Empty:
            return
        self._settle(report)
        if self.unwritten and gather:
            self._gather(len(self._held) - len(self.unwritten), slots)
        try:
            while len(self.unwritten) < conf().finish_batch:
                self._settle(self._reports.get_nowait())
        except Empty:
            return

    def write(self) -> None:
        """Report what has ended. While the database is away all of it stays, and is reported again later.

        Raises:
            DatabaseError: The database is away.
        """
        if not self.unwritten:
            return
        batch = self.unwritten[: conf().finish_batch]
        try:
            self._report(batch)
        except DatabaseError as error:
            if is_unavailable(error):
                raise
            log.exception(telemetry.OUTCOME_RETRY, extra={"count": len(batch)})
            for one in batch:
                self._report_alone(*one)
        del self.unwritten[: len(batch)]
        for execution, _ in batch:
            self._held.pop(execution.taken.lease_id, None)

    def give_back_running(self, *, within: float) -> int:
        """Give back what still runs, with nothing between this write and the end of the process.

        Another worker can have these jobs a few milliseconds later. If the database is away, their leases expire.

        Returns:
            How many attempts live on in this process, which must end now.
        """
        alive = 0
        for execution in list(self._held.values()):
            if execution.settle():
                self.unwritten.append((execution, execution.released("shutdown")))
                alive += 1
        while not self._reports.empty():  # ended at the last moment
            self._settle(self._reports.get())
        gives_up_at = time.monotonic() + within
        while self.unwritten and time.monotonic() < gives_up_at:
            try:
                self.write()
            except (DatabaseError, InterfaceError) as error:
                drop_if_gone(error)
                time.sleep(RETRY_SECONDS)
        return alive

    def _gather(self, expected: int, slots: int) -> None:
        """Let the slots work until what they have is done, but not longer than a report may wait.

        Short sleeps: waiting on the queue would wake this thread once per job, and take the interpreter from them.
        """
        enough = min(expected, conf().finish_batch)
        longest = conf().flush_seconds * (1 if expected <= slots else 4)
        until = time.monotonic() + longest
        while self._reports.qsize() < enough and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.001))

    def _settle(self, report: Report) -> None:
        if report is None:  # a wake-up
            return
        execution, outcome = report
        self.ended_total += 1
        if outcome is None:
            self._held.pop(execution.taken.lease_id, None)
        else:
            self.unwritten.append((execution, outcome))

    def _report(self, batch: Sequence[tuple[Execution, AttemptOutcome]]) -> None:
        report_outcomes(
            shards=self._shards,
            worker_id=self._worker_id,
            outcomes=[outcome for _, outcome in batch],
            rng=self._rng,
        )

    def _report_alone(self, execution: Execution, outcome: AttemptOutcome) -> None:
        """One outcome by itself, and without its contents if the database will not have them: the end still counts."""
        for attempt in (outcome, outcome.stripped()):
            try:
                self._report([(execution, attempt)])
            except DatabaseError as error:
                if is_unavailable(error):
                    raise
                log.exception(
                    telemetry.OUTCOME_RETRY, extra={"job_id": str(execution.taken.job_id)}
                )
            else:
                return
