"""What a worker takes: as much as its slots will begin at once, at the rate of the last moments; never more."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from uuid import UUID

from jobs.conf import conf
from jobs.models import Lease, Pool
from jobs.queries.catalog import catalog
from jobs.transitions.lease import release_jobs
from jobs.transitions.take import Taken, take_batch
from workers.drain import Drain
from workers.execution import Execution
from workers.executors.interface import Executor
from workers.handlers import MISSING, HandlerSpec

PREFETCH_SECONDS = 0.1  # so much work, by the recent rate, may wait in this process


class Intake:
    """Belongs to the worker's loop; `hint` may be called from any thread."""

    def __init__(
        self,
        *,
        worker_id: UUID,
        pool: Pool,
        handlers: Mapping[str, HandlerSpec],
        shards: list[int],
        held: dict[UUID, Execution],
        executor: Executor,
        drain: Drain,
        max_jobs: int | None,
    ) -> None:
        self.taken_total = 0
        self.rate = 0.0  # attempts that ended in a second, lately
        self._worker_id, self._pool, self._handlers = worker_id, pool, handlers
        self._shards, self._held, self._executor = shards, held, executor
        self._drain, self._max_jobs = drain, max_jobs
        self._hinted, self._look_again_at = True, 0.0
        # It may have committed: leases of ours that nobody here holds.
        self._unanswered = False
        self._measured_at, self._ended_before = time.monotonic(), 0
        self._rng = random.Random()

    def hint(self) -> None:
        """There may be work."""
        self._hinted = True

    def take(self, now: float) -> list[Taken] | None:
        """Take what there is room for, and hand it to the slots. None if it did not look."""
        if self._unanswered:
            self._release_strays()
        limit = self.wanted()
        if limit <= 0 or not (self._hinted or now >= self._look_again_at):
            return None
        self._hinted, self._unanswered = False, True
        taken = take_batch(
            shards=self._shards,
            pool_id=self._pool.pk,
            handlers=list(self._handlers),
            worker_id=self._worker_id,
            limit=limit,
        )
        # A full batch means more is waiting; otherwise a hint or the next poll will tell.
        self._hinted = self._hinted or len(taken) == limit
        self._look_again_at = now + conf().tick_seconds * self._rng.uniform(0.8, 1.0)
        for one in taken:
            execution = Execution(
                one,
                spec=self._handlers.get(one.handler, MISSING),
                tenant=_tenant(one),
                sent_at=now,
                drain=self._drain.event,
                worker_id=self._worker_id,
            )
            self._held[one.lease_id] = execution
            self._executor.submit(execution)
        self._unanswered = False
        self.taken_total += len(taken)
        return taken

    def wanted(self) -> int:
        """How many more attempts this process should hold: free slots, and a little ahead at a high rate."""
        if self._drain.begun:
            return 0
        ahead = int(self.rate * PREFETCH_SECONDS)
        free = self._executor.size + ahead - len(self._held)
        if self._max_jobs is not None:
            free = min(free, self._max_jobs - self.taken_total)
        # While slots are fed, wait for half a window: one large batch costs far less than many small ones.
        if ahead and len(self._held) > self._executor.size and free < ahead // 2:
            return 0
        return min(free, conf().take_batch)

    @property
    def is_spent(self) -> bool:
        """True once as many attempts as this process may ever take have been taken."""
        return self._max_jobs is not None and self.taken_total >= self._max_jobs

    @property
    def looks_at(self) -> float:
        """Monotonic time of its next look, if there is room; 0 for now."""
        return 0.0 if self._hinted else self._look_again_at

    def measure(self, now: float, *, ended_total: int) -> bool:
        """Learn the rate. True if the queue turns over several times within the patience for what waits in it."""
        elapsed, ended = now - self._measured_at, ended_total - self._ended_before
        self.rate += (ended / elapsed - self.rate) * min(1.0, elapsed / 0.2)
        self._measured_at, self._ended_before = now, ended_total
        return self.rate > 4 * self._executor.size

    def _release_strays(self) -> None:
        """Give back what a take brought whose answer was lost: no handler has begun, so it costs no attempt."""
        ours = Lease.objects.in_shards(self._shards).filter(worker=self._worker_id)
        strays = ours.exclude(pk__in=list(self._held)).values_list("pk", flat=True)
        if reasons := {lease_id: {"reason": "take_unanswered"} for lease_id in strays}:
            release_jobs(shards=self._shards, worker_id=self._worker_id, reasons=reasons)
        self._unanswered = False


def _tenant(taken: Taken) -> str:
    tenant = catalog(max_age_seconds=60).tenants.get(taken.tenant_id)
    if tenant is None:
        tenant = catalog(max_age_seconds=0).tenants.get(taken.tenant_id)
    return tenant.slug if tenant else str(taken.tenant_id)
