"""The heartbeat: a thread with its own connection that keeps this process's leases and row alive.

It also hears of cancels, and stops attempts whose lease is lost or can no longer be trusted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection

from jobs import telemetry
from jobs.conf import conf
from jobs.database import drop_if_gone, forget_plans
from jobs.transitions.lease import extend_leases
from workers.execution import Execution, trusted_until

log = logging.getLogger(__name__)


class Heartbeat:
    """Extends the leases in `held` three times per lease and more often while the database does not answer."""

    def __init__(
        self,
        *,
        worker_id: UUID,
        held: dict[UUID, Execution],
        shards: list[int],
        report_alive: Callable[[], None],
    ) -> None:
        self._worker_id, self._held, self._shards = worker_id, held, shards
        self._report_alive = report_alive
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin beating."""
        self._thread.start()

    def stop(self) -> None:
        """Last of all: an attempt whose end is not recorded yet still needs its lease."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout=5)

    def hurry(self) -> None:
        """Beat now: a cancel was asked for one of our jobs."""
        self._wake.set()

    def run_once(self) -> None:
        """Extend everything held, in one statement, and tell each attempt what the answer means for it."""
        forget_plans()
        sent_at = time.monotonic()
        held = dict(self._held)
        if held:
            progress = {
                lease: note for lease, one in held.items() if (note := one.context.progress_note)
            }
            asked = extend_leases(
                shards=self._shards,
                worker_id=self._worker_id,
                lease_ids=list(held),
                progress=progress,
            )
            for lease_id, execution in held.items():
                if lease_id in asked:
                    execution.stop.trust(trusted_until(sent_at))
                    if asked[lease_id]:
                        execution.stop.ask("cancel")
                elif lease_id in self._held and not execution.settled:
                    self._lose(
                        execution
                    )  # somebody else ended it: our own report would be settled
        self._report_alive()

    def distrust(self) -> None:
        """Stop attempts whose lease may have expired by now, going by our own monotonic clock."""
        now = time.monotonic()
        for execution in list(self._held.values()):
            if now >= execution.stop.trusted_until and not execution.settled:
                self._lose(execution)

    def _lose(self, execution: Execution) -> None:
        if execution.stop.reason != "lease_lost":
            log.warning(
                telemetry.LEASE_LOST,
                extra={
                    "job_id": str(execution.taken.job_id),
                    "attempt": execution.taken.attempt,
                    "token": execution.taken.token,
                },
            )
        execution.stop.ask("lease_lost")

    def _run(self) -> None:
        interval, failures = conf().heartbeat_seconds, 0
        while not self._stopped.is_set():
            self._wake.clear()
            began = time.monotonic()
            try:
                self.run_once()
                failures = 0
            except Exception as error:  # whatever it is: all our leases hang on this thread
                drop_if_gone(error)
                failures += 1
                if failures == 1 or failures % 20 == 0:
                    known = isinstance(error, DatabaseError | InterfaceError)
                    log.warning(
                        telemetry.LOOP_FAILED,
                        exc_info=None if known else error,
                        extra={"loop": "heartbeat", "error": str(error)[:300]},
                    )
            self.distrust()
            # Three beats fit in a lease; a missed one is tried again much sooner than the next is due.
            pause = interval if not failures else min(interval / 4, 1.0)
            self._wake.wait(max(0.01, pause - (time.monotonic() - began)))
        connection.close()
