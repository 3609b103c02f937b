"""A worker in threads of the test's own process, with handlers that the test wrote, on the real database."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

from django.db import connection
from django.db.models.functions import Now

from jobs.database import rows
from jobs.models import Job, JobEvent, Lease
from jobs.policies.retry import RetryPolicy
from jobs.telemetry import CHANNEL_DUE, CHANNEL_WORKERS
from jobs.transitions.claim import claim_batch
from tests.factories import SCHEDULER, make_job, make_pool
from workers.executors.threads import ThreadSlots
from workers.handlers import HandlerSpec, JobContext
from workers.worker import Worker

PROFILE = {
    "lease_ttl_seconds": 6.0,  # a busy machine must not lose what a test does not mean to lose
    "heartbeat_seconds": 0.5,
    "tick_seconds": 0.3,
    "clock_tolerance_seconds": 0.2,
    "shard_lease_seconds": 2.0,
}
PATIENCE_SECONDS = 60.0  # for what has no promised figure: a busy machine is no fault
OWN_THREADS = {"worker", "listen", "heartbeat", "slot", "nursery"}
CHARGE = "billing.charge"

type Function = Callable[[JobContext], object]


def until[T](holds: Callable[[], T], what: str, *, within: float = PATIENCE_SECONDS) -> T:
    """Look until `holds()` is true, and return what it returned."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.01)
    return found


def spec(function: Function, name: str = CHARGE, **overrides: Any) -> HandlerSpec:
    """A handler as the registry holds it."""
    values: dict[str, Any] = {
        "timeout_seconds": 30.0,
        "max_attempts": 3,
        "retry": RetryPolicy.parse({"kind": "fixed", "base_seconds": 60, "jitter": 0.0}, ""),
        "transactional": False,
        **overrides,
    }
    return HandlerSpec(name=name, function=function, **values)


class Stage:
    """Starts workers and publishes jobs for them; leaving it leaves no thread and no connection."""

    def __init__(self) -> None:
        self.gate = threading.Event()  # opened at the end, for handlers that wait for it
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.gate.set()
        for worker in self._workers:
            worker.stop()
            worker.stop()  # at once
        end_threads()

    def worker(self, handlers: Mapping[str, Function] | Function, **options: Any) -> Worker:
        """A running worker. One function stands for billing.charge; `options` are those of Worker, and `slots` of threads."""
        functions = {CHARGE: handlers} if callable(handlers) else handlers
        return self.worker_with([spec(one, name) for name, one in functions.items()], **options)

    def worker_with(self, specs: list[HandlerSpec], **options: Any) -> Worker:
        """A running worker with these handlers."""
        slots = options.pop("slots", 2)
        options = {"drain_seconds": 10.0, **options}
        if "executor" not in options:
            options["executor"] = ThreadSlots(slots)
        worker = Worker(pool=make_pool(), handlers={one.name: one for one in specs}, **options)
        self._workers.append(worker)
        threading.Thread(target=self._run, args=[worker], name="worker", daemon=True).start()
        return worker

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        finally:
            connection.close()


def end_threads() -> None:
    """Wait for the threads of loops that were told to stop."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [one for one in threading.enumerate() if one.name in OWN_THREADS]:
        if time.monotonic() > deadline:
            frames = sys._current_frames()
            stacks = ["".join(traceback.format_stack(frames[one.ident or 0])) for one in left]
            raise AssertionError("\n".join([f"{left} still run", *stacks]))
        for channel in (
            CHANNEL_DUE,
            CHANNEL_WORKERS,
        ):  # wakes a listener that waits for its next ping
            rows("select pg_notify(%(channel)s, 'nobody')", {"channel": channel})
        left[0].join(0.05)


def publish(handler: str = CHARGE, **fields: Any) -> UUID:
    """A job that a worker may take from now on; a running one may have it before this returns."""
    pool = fields.pop("pool", None) or make_pool()
    job = make_job(handler=handler, **fields)
    claimed = claim_batch(shards=[job.shard], job_ids=[job.pk], pool=pool, actor=SCHEDULER)
    assert claimed.published == 1
    return job.pk


def status(job_id: UUID) -> str:
    return Job.objects.get(pk=job_id).status


def finished(*job_ids: UUID) -> bool:
    return not Job.objects.filter(pk__in=job_ids, finished_at=None).exists()


def left_its_lease(job_id: UUID) -> bool:
    return not Lease.objects.filter(job_id=job_id).exists()


def is_running(job_id: UUID) -> bool:
    return Lease.objects.running().filter(job_id=job_id).exists()


def story(job_id: UUID) -> list[str]:
    events = JobEvent.objects.filter(job_id=job_id).order_by("seq")
    return list(events.values_list("kind", flat=True))


def expire_lease(job_id: UUID) -> None:
    """Let the lease of this job be over for everybody but its holder."""
    past = Now() - timedelta(minutes=1)
    Lease.objects.filter(job_id=job_id).update(
        published_at=past - timedelta(minutes=1), expires_at=past
    )
