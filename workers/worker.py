"""Worker: takes published leases of its pool, runs their handlers in slots, reports outcomes in batches.

One thread (the caller's) takes and reports, with one connection; the heartbeat has its own. Ends only when told to.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError

from jobs import telemetry
from jobs.conf import conf
from jobs.database import drop_if_gone
from jobs.models import Handler, Pool
from jobs.services.fleet import advertise_handlers, report_worker, retire_worker
from workers.drain import STOP_NOTICE_SECONDS, Drain
from workers.execution import Execution
from workers.executors.interface import Executor
from workers.handlers import HandlerSpec
from workers.heartbeat import Heartbeat
from workers.intake import Intake
from workers.listen import Listener
from workers.loop import Loop
from workers.outbox import Outbox
from workers.skew import SkewWatch
from workers.upkeep import Upkeep

log = logging.getLogger(__name__)


class Worker:
    """One worker process. `run()` returns when it has drained; `stop()` may be called from a signal handler."""

    def __init__(
        self,
        *,
        pool: Pool,
        handlers: Mapping[str, HandlerSpec],
        executor: Executor,
        drain_seconds: float,
        max_jobs: int | None = None,
        max_memory_bytes: int | None = None,
        once: bool = False,
    ) -> None:
        """Nothing is written yet.

        Args:
            pool: Whose work it takes.
            handlers: By name; all of them must be such as the executor takes.
            executor: Runs them; closed at the end.
            drain_seconds: Grace for what runs.
            max_jobs: Ends it after so many attempts.
            max_memory_bytes: Ends it once the process has more in memory.
            once: Ends it when nothing more is published.
        """
        self.id: UUID = uuid4()  # random per start: a reused host name never inherits leases
        self.pool, self.handlers, self.executor = pool, handlers, executor
        self._once = once
        self._held: dict[UUID, Execution] = {}
        self._drain = Drain(drain_seconds)
        shards = list(range(conf().shards))
        self._outbox = Outbox(
            worker_id=self.id, shards=shards, held=self._held, reports=executor.reports
        )
        self._intake = Intake(
            worker_id=self.id,
            pool=pool,
            handlers=handlers,
            shards=shards,
            held=self._held,
            executor=executor,
            drain=self._drain,
            max_jobs=max_jobs,
        )
        self._upkeep = Upkeep(
            held=self._held,
            executor=executor,
            intake=self._intake,
            outbox=self._outbox,
            drain=self._drain,
            max_memory_bytes=max_memory_bytes,
            stop=self._begin_drain,
        )
        self._skew = SkewWatch()
        self._heartbeat = Heartbeat(
            worker_id=self.id,
            held=self._held,
            shards=shards,
            report_alive=self._report_alive,
        )
        self._listener = Listener(telemetry.CHANNEL_WORKERS, self._heard)
        self._loop = Loop("worker", self._turn, max_backoff_seconds=1.0)

    @property
    def taken_total(self) -> int:
        """Attempts that it has taken."""
        return self._intake.taken_total

    @property
    def abandons(self) -> int:
        """Attempts that live on in this process: only its end ends them."""
        return self._upkeep.abandons

    def run(self) -> None:
        """Register, work until told to stop, drain. Survives database outages.

        When `abandons` is not 0 the caller must end the process at once: those attempts still run, and as the last
        act here their jobs were given back.
        """
        advertise_handlers(
            Handler(
                name=spec.name,
                max_attempts=spec.max_attempts,
                timeout_seconds=spec.timeout_seconds,
                retry=spec.retry.to_dict(),
                transactional=spec.transactional,
            )
            for spec in self.handlers.values()
        )
        self._report_alive()
        log.info(
            telemetry.WORKER_STARTED,
            extra={
                "worker": str(self.id),
                "pool": self.pool.name,
                "slots": self.executor.size,
                "handlers": sorted(self.handlers),
            },
        )
        self._heartbeat.start()
        self._listener.start()
        self._loop.run()
        self._upkeep.ask_all_to_stop()
        self.executor.close()
        self._listener.stop()
        self._heartbeat.stop()  # last: until here unfinished attempts kept their leases
        try:
            retire_worker(self.id)
        except (DatabaseError, InterfaceError) as error:
            drop_if_gone(error)
        log.info(
            telemetry.WORKER_STOPPED,
            extra={
                "worker": str(self.id),
                "taken": self.taken_total,
                "given_back": len(self._held),
            },
        )
        self._upkeep.abandons += self._outbox.give_back_running(within=STOP_NOTICE_SECONDS)

    def stop(self) -> None:
        """First call: drain. Second call: give everything back at once."""
        if self._drain.begun:
            self._loop.stop()  # also out of a pause: the database may be away
        self._begin_drain()
        self._outbox.wake()

    def _begin_drain(self) -> None:
        if self._drain.begin():
            self._heartbeat.hurry()  # our row says so: nothing more is published for our slots

    def _heard(self, payload: str) -> None:
        """A hint: work for our pool, a cancel for us, or (empty) a new connection that may have missed both."""
        if payload in ("", f"pool:{self.pool.pk}"):
            self._intake.hint()
            self._outbox.wake()
        if payload in ("", f"cancel:{self.id}"):
            self._heartbeat.hurry()

    def _report_alive(self) -> None:
        report_worker(
            self.id,
            self.pool,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.executor.size,
            running=min(len(self._held), self.executor.size),
            handlers=sorted(self.handlers),
            state="draining" if self._drain.begun else "running",
            clock_skew_seconds=self._skew.measure(),
        )

    def _turn(self) -> float:
        """Take if there is room, wait for reports, write them. Returns 0: the waiting is done on the queue."""
        now = time.monotonic()
        if self._finished(now):
            self._loop.stop()
            return 0.0
        if now >= self._upkeep.due_at:
            self._upkeep.run(now)
        taken = self._intake.take(now)
        if not self._held and (self._intake.is_spent or (self._once and taken == [])):
            self._begin_drain()
        self._outbox.collect(
            patience=self._patience(), slots=self.executor.size, gather=not self._drain.begun
        )
        self._outbox.write()
        return 0.0

    def _patience(self) -> float:
        """Seconds until something besides a report is to be done; 0 if work may be waiting."""
        now = time.monotonic()
        until = now + 1.0
        if self._intake.wanted() > 0:
            if not self._intake.looks_at:
                return 0.0
            until = self._intake.looks_at
        if self._held or self._drain.begun:
            until = min(until, self._upkeep.due_at)
        return max(0.001, until - now)

    def _finished(self, now: float) -> bool:
        """Nothing is held any more, or the grace is over and what had ended is written, or cannot be."""
        if not self._drain.begun:
            return False
        if self._drain.is_over(now, with_notice=True):
            return True
        return not self._outbox.unwritten and (not self._held or self._drain.is_over(now))
