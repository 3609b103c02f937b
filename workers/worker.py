"""Worker: takes published leases of its pool, runs their handlers in slots, reports outcomes in batches.

One thread (the caller's) takes and reports, with one connection; the heartbeat has its own. Ends only when told to.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError

from jobs import telemetry
from jobs.conf import conf
from jobs.database import drop_if_gone, is_unavailable
from jobs.models import Handler, Lease, Pool
from jobs.queries.catalog import catalog
from jobs.services.fleet import advertise_handlers, report_worker, retire_worker
from jobs.services.outcomes import AttemptOutcome, report_outcomes
from jobs.transitions.lease import release_jobs
from jobs.transitions.take import Taken, take_batch
from workers.execution import Execution
from workers.handlers import MISSING, HandlerSpec
from workers.heartbeat import Heartbeat
from workers.listen import Listener
from workers.loop import Loop
from workers.skew import SkewWatch
from workers.slots import Report, ThreadSlots

log = logging.getLogger(__name__)

PREFETCH_SECONDS = 0.1  # so much work, by the recent rate, may wait in this process
PATIENCE_SECONDS = 0.25  # what has waited longer behind busy slots goes back
STOP_NOTICE_SECONDS = 1.0  # before the grace ends, handlers are asked to stop
UPKEEP_SECONDS = 0.1
MOST_ABANDONED = 16  # threads that never end pile up; so many are worth a restart
ABANDON_SECONDS = 1.0  # after its deadline an attempt has this long to stop by itself


class Worker:
    """One worker process. `run()` returns when it has drained; `stop()` may be called from a signal handler."""

    def __init__(
        self,
        *,
        pool: Pool,
        handlers: Mapping[str, HandlerSpec],
        slots: int,
        drain_seconds: float,
        max_jobs: int | None = None,
        once: bool = False,
    ) -> None:
        """Nothing is written yet; `max_jobs` ends it after so many attempts, `once` when nothing more is published."""
        self.id: UUID = uuid4()  # random per start: a reused host name never inherits leases
        self.pool, self.handlers = pool, handlers
        self.taken_total = 0
        self.abandons = 0  # attempts still in a thread: only the end of the process ends them
        self._drain_seconds, self._max_jobs, self._once = drain_seconds, max_jobs, once
        self._shards = list(range(conf().shards))
        self._held: dict[UUID, Execution] = {}
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._slots = ThreadSlots(slots, self._reports)
        self._unwritten: list[tuple[Execution, AttemptOutcome]] = []
        self._draining = threading.Event()
        self._drain_ends = float("inf")
        self._hinted, self._look_again_at = True, 0.0
        self._take_unanswered = (
            False  # it may have committed: leases of ours that nobody here holds
        )
        self._upkeep_at = 0.0
        self._queued_since: float | None = None
        self._rate, self._rate_at, self._rate_count = 0.0, time.monotonic(), 0
        self._rng = random.Random()
        self._skew = SkewWatch()
        self._heartbeat = Heartbeat(
            worker_id=self.id,
            held=self._held,
            shards=self._shards,
            report_alive=self._report_alive,
        )
        self._listener = Listener(telemetry.CHANNEL_WORKERS, self._heard)
        self._loop = Loop("worker", self._turn, max_backoff_seconds=1.0)

    # --- life ---------------------------------------------------------------------------------------------------

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
                "slots": self._slots.size,
                "handlers": sorted(self.handlers),
            },
        )
        self._heartbeat.start()
        self._listener.start()
        self._loop.run()
        self._slots.close()
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
        self._give_back_running()

    def stop(self) -> None:
        """First call: drain. Second call: give everything back at once."""
        if self._draining.is_set():
            self._loop.stop()  # also out of a pause: the database may be away
        else:
            self._drain_ends = time.monotonic() + self._drain_seconds
            self._draining.set()
            self._heartbeat.hurry()  # our row says so: nothing more is published for our slots
        self._reports.put(None)

    def _heard(self, payload: str) -> None:
        """A hint: work for our pool, a cancel for us, or (empty) a new connection that may have missed both."""
        if payload in ("", f"pool:{self.pool.pk}"):
            self._hinted = True
            self._reports.put(None)
        if payload in ("", f"cancel:{self.id}"):
            self._heartbeat.hurry()

    def _report_alive(self) -> None:
        report_worker(
            self.id,
            self.pool,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._slots.size,
            running=min(len(self._held), self._slots.size),
            handlers=sorted(self.handlers),
            state="draining" if self._draining.is_set() else "running",
            clock_skew_seconds=self._skew.measure(),
        )

    # --- one turn -------------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """Take if there is room, wait for reports, write them. Returns 0: the waiting is done on the queue."""
        now = time.monotonic()
        if self._finished(now):
            self._loop.stop()
            return 0.0
        if now >= self._upkeep_at:
            self._upkeep(now)
        if self._take_unanswered:
            self._release_strays()
        self._take(now)
        self._collect()
        if self._unwritten:
            self._write()
        return 0.0

    def _take(self, now: float) -> None:
        limit = self._wanted()
        if limit <= 0 or not (self._hinted or now >= self._look_again_at):
            return
        self._hinted, self._take_unanswered = False, True
        taken = take_batch(
            shards=self._shards,
            pool_id=self.pool.pk,
            handlers=list(self.handlers),
            worker_id=self.id,
            limit=limit,
        )
        # A full batch means more is waiting; otherwise a hint or the next poll will tell.
        self._hinted = self._hinted or len(taken) == limit
        self._look_again_at = now + conf().tick_seconds * self._rng.uniform(0.8, 1.0)
        for one in taken:
            execution = Execution(
                one,
                spec=self.handlers.get(one.handler, MISSING),
                tenant=self._tenant(one),
                sent_at=now,
                drain=self._draining,
                worker_id=self.id,
            )
            self._held[one.lease_id] = execution
            self._slots.submit(execution)
        self._take_unanswered = False
        self.taken_total += len(taken)
        if self._once and not taken and not self._held:
            self.stop()

    def _release_strays(self) -> None:
        """Give back what a take brought whose answer was lost: no handler has begun, so it costs no attempt."""
        ours = Lease.objects.in_shards(self._shards).filter(worker=self.id)
        strays = ours.exclude(pk__in=list(self._held)).values_list("pk", flat=True)
        if reasons := {lease_id: {"reason": "take_unanswered"} for lease_id in strays}:
            release_jobs(shards=self._shards, worker_id=self.id, reasons=reasons)
        self._take_unanswered = False

    def _wanted(self) -> int:
        """How many more attempts this process should hold: free slots, and a little ahead at a high rate."""
        if self._draining.is_set():
            return 0
        ahead = int(self._rate * PREFETCH_SECONDS)
        free = self._slots.size + ahead - len(self._held)
        if self._max_jobs is not None:
            free = min(free, self._max_jobs - self.taken_total)
            if free <= 0 and not self._held:
                self.stop()
        # While slots are fed, wait for half a window: one large batch costs far less than many small ones.
        if ahead and len(self._held) > self._slots.size and free < ahead // 2:
            return 0
        return min(free, conf().take_batch)

    def _tenant(self, taken: Taken) -> str:
        tenant = catalog(max_age_seconds=60).tenants.get(taken.tenant_id)
        if tenant is None:
            tenant = catalog(max_age_seconds=0).tenants.get(taken.tenant_id)
        return tenant.slug if tenant else str(taken.tenant_id)

    def _collect(self) -> None:
        """Wait for the first report, then a moment for its company: batches at full load, milliseconds when idle."""
        wants_more = self._wanted() > 0
        try:
            if wants_more and self._hinted:
                report = self._reports.get_nowait()
            else:
                report = self._reports.get(timeout=self._patience(wants_more))
        except Empty:
            return
        self._settle(report)
        if self._unwritten and not self._draining.is_set():
            self._gather(len(self._held) - len(self._unwritten))
        try:
            while len(self._unwritten) < conf().finish_batch:
                self._settle(self._reports.get_nowait())
        except Empty:
            return

    def _gather(self, expected: int) -> None:
        """Let the slots work until what they have is done, but not longer than a report may wait.

        Short sleeps: waiting on the queue would wake this thread once per job, and take the interpreter from them.
        """
        enough = min(expected, conf().finish_batch)
        longest = conf().flush_seconds * (1 if expected <= self._slots.size else 4)
        until = time.monotonic() + longest
        while self._reports.qsize() < enough and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.001))

    def _patience(self, wants_more: bool) -> float:
        """Seconds until something besides a report is to be done."""
        now = time.monotonic()
        until = self._look_again_at if wants_more else now + 1.0
        if self._held or self._draining.is_set():
            until = min(until, self._upkeep_at)
        return max(0.001, until - now)

    def _settle(self, report: Report) -> None:
        if report is None:  # a wake-up
            return
        execution, outcome = report
        self._rate_count += 1
        if outcome is None:
            self._held.pop(execution.taken.lease_id, None)
        else:
            self._unwritten.append((execution, outcome))

    def _write(self) -> None:
        """Report what has ended. While the database is away all of it stays, and is reported again later."""
        batch = self._unwritten[: conf().finish_batch]
        try:
            self._report(batch)
        except DatabaseError as error:
            if is_unavailable(error):
                raise
            log.exception(telemetry.OUTCOME_RETRY, extra={"count": len(batch)})
            for one in batch:
                self._report_alone(*one)
        del self._unwritten[: len(batch)]
        for execution, _ in batch:
            self._held.pop(execution.taken.lease_id, None)

    def _report(self, batch: Sequence[tuple[Execution, AttemptOutcome]]) -> None:
        report_outcomes(
            shards=self._shards,
            worker_id=self.id,
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

    # --- upkeep: ten times a second ----------------------------------------------------------------------------------

    def _upkeep(self, now: float) -> None:
        self._upkeep_at = now + UPKEEP_SECONDS
        elapsed = now - self._rate_at
        self._rate += (self._rate_count / elapsed - self._rate) * min(1.0, elapsed / 0.2)
        self._rate_at, self._rate_count = now, 0
        begun = [one for one in list(self._held.values()) if one.begun]
        for execution in begun:
            if now > execution.stop.deadline:
                self._overrun(execution, now)
        self._return_stuck(now, begun=len(begun))
        if self._draining.is_set():
            self._drain(now)

    def _overrun(self, execution: Execution, now: float) -> None:
        execution.stop.ask("timeout")
        if now > execution.stop.deadline + ABANDON_SECONDS and execution.settle():
            log.error(
                telemetry.HANDLER_ABANDONED,
                extra={"job_id": str(execution.taken.job_id), "attempt": execution.taken.attempt},
            )
            self._slots.abandon(execution)
            self.abandons += 1
            if self.abandons == max(MOST_ABANDONED, self._slots.size):  # a new process has none
                self.stop()
            self._reports.put((execution, execution.timed_out()))

    def _return_stuck(self, now: float, *, begun: int) -> None:
        """Give back what waits behind slots that are all busy with long work, so that others can have it."""
        if len(self._held) <= begun or self._rate_count_is_moving():
            self._queued_since = None
            return
        self._queued_since = self._queued_since or now
        if now - self._queued_since > PATIENCE_SECONDS:
            self._give_back_waiting("slots_busy")
            self._queued_since = None

    def _rate_count_is_moving(self) -> bool:
        return (
            self._rate > 4 * self._slots.size
        )  # the queue turns over several times within the patience

    def _give_back_waiting(self, reason: str) -> None:
        for execution in self._slots.take_back():
            if execution.settle():
                self._reports.put((execution, execution.released(reason)))

    def _drain(self, now: float) -> None:
        self._give_back_waiting("draining")
        if now > self._drain_ends - STOP_NOTICE_SECONDS:
            for execution in list(self._held.values()):
                execution.stop.ask("shutdown")

    def _give_back_running(self) -> None:
        """Give back what still runs, with nothing between this write and the end of the process.

        Another worker can have these jobs a few milliseconds later. If the database is away, their leases expire.
        """
        for execution in list(self._held.values()):
            execution.stop.ask("shutdown")
            if execution.settle():
                self._unwritten.append((execution, execution.released("shutdown")))
                self.abandons += 1
        while not self._reports.empty():  # ended at the last moment
            self._settle(self._reports.get())
        gives_up_at = time.monotonic() + STOP_NOTICE_SECONDS
        while self._unwritten and time.monotonic() < gives_up_at:
            try:
                self._write()
            except (DatabaseError, InterfaceError) as error:
                drop_if_gone(error)
                time.sleep(UPKEEP_SECONDS)

    def _finished(self, now: float) -> bool:
        """Nothing is held any more, or the grace is over and what had ended is written, or cannot be."""
        if not self._draining.is_set():
            return False
        if now >= self._drain_ends + STOP_NOTICE_SECONDS:
            return True
        return not self._unwritten and (not self._held or now >= self._drain_ends)
