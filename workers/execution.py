"""One attempt: calls the handler and turns whatever happens into an outcome that can always be recorded."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error as DatabaseErrors
from django.db import close_old_connections, transaction

from jobs.conf import conf
from jobs.database import commits_once
from jobs.errors import LeaseLost
from jobs.policies.cleaning import clean_json, clean_text, describe_exception
from jobs.services.outcomes import AttemptOutcome, Ending
from jobs.transitions.finish import complete_jobs
from jobs.transitions.take import Taken
from workers.handlers import (
    Cancelled,
    HandlerSpec,
    JobContext,
    PermanentFailure,
    RetryAfter,
    Snooze,
)
from workers.stopping import Stop, call_in

MAX_DELAY_SECONDS = 366 * 86_400.0
CANCEL_SECONDS = (
    0.5  # a coroutine that was asked to stop has this long before its task is cancelled
)


class Execution:
    """An attempt that this process holds, from take to accepted report.

    Attributes:
        taken: The attempt.
        worker_id: Who holds it.
        stop: Where it is asked to stop.
        context: What the handler sees.
        begun: The handler has been entered.
        abandoned: It ran out of time and its slot was given up; what it still returns is dropped.
    """

    __slots__ = ("_right", "_spec", "abandoned", "begun", "context", "stop", "taken", "worker_id")

    def __init__(
        self,
        taken: Taken,
        *,
        spec: HandlerSpec,
        tenant: str,
        sent_at: float,
        drain: threading.Event,
        worker_id: UUID,
    ) -> None:
        """`sent_at` is the monotonic time before the take was sent: the lease cannot have begun earlier."""
        self.taken = taken
        self.stop = Stop(
            deadline=sent_at + taken.timeout_seconds,
            trusted_until=trusted_until(sent_at),
            drain=drain,
        )
        self.context = JobContext(taken, tenant=tenant, stop=self.stop)
        self.begun = self.abandoned = False
        self._spec, self.worker_id = spec, worker_id
        self._right = [True]

    def settle(self) -> bool:
        """True for exactly one caller: the slot that finished, or the loop that gave it up. (pop is atomic.)"""
        try:
            return self._right.pop()
        except IndexError:
            return False

    @property
    def settled(self) -> bool:
        """True once `settle` was won: its end is known, and only has to be written."""
        return not self._right

    def begin(self) -> AttemptOutcome | None:
        """Enter the handler's time; or the outcome of an attempt that was stopped before, without any side effect."""
        if self.stop.reason is not None:  # cancelled, or lost, between take and start
            return self._stopped_early()
        self.stop.deadline = time.monotonic() + self.taken.timeout_seconds
        self.begun = True  # after the deadline: upkeep looks at the deadline of whatever has begun
        return None

    def run(self) -> AttemptOutcome | None:
        """Run the handler. None means that a transactional handler has recorded its own completion."""
        if (stopped := self.begin()) is not None:
            return stopped
        try:
            if self._spec.transactional:
                self._run_transactional()
                return None
            return self._succeeded(self._called())
        except BaseException as error:  # noqa: BLE001 (around a handler anything at all is an outcome)
            close_old_connections()
            return self._failed(error)

    async def run_async(self) -> AttemptOutcome:
        """Run a coroutine handler in the running event loop."""
        if (stopped := self.begin()) is not None:
            return stopped
        try:
            return self._succeeded(unwrapped(await self._awaited()))
        except BaseException as error:  # noqa: BLE001 (around a handler anything at all is an outcome)
            if isinstance(
                error, DatabaseErrors
            ):  # in the one thread that coroutines share for Django's database
                await sync_to_async(close_old_connections)()
            return self._failed(error)

    def _called(self) -> object:
        """What the handler returns. A coroutine is awaited by an event loop of its own.

        By asgiref's, not asyncio.run: what the coroutine asks of Django's database then happens in this thread, on
        its connection and in its transaction.
        """
        if self._spec.is_coroutine:
            return unwrapped(async_to_sync(self._awaited)())
        return self._spec.function(self.context)

    async def _awaited(self) -> tuple[object, BaseException | None]:
        """Await the handler: what it returned, or raised. A moment after a stop was asked for its task is cancelled.

        Nothing is raised: a SystemExit that left a task would end the event loop of all the others.
        """
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(self._caught())

        def cancel_soon() -> None:
            loop.call_later(CANCEL_SECONDS, task.cancel)

        forget = self.stop.listen(lambda: call_in(loop, cancel_soon))
        try:
            result, error = await task
        except asyncio.CancelledError as cancelled:  # before its first step
            result, error = None, cancelled
        finally:
            forget()
        if isinstance(error, asyncio.CancelledError) and self.stop.reason is not None:
            error = Cancelled(self.stop.reason)
        return result, error

    async def _caught(self) -> tuple[object, BaseException | None]:
        try:
            return await self._spec.function(self.context), None  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 (the caller looks at it)
            return None, error

    def timed_out(self) -> AttemptOutcome:
        """The outcome of an attempt that did not stop in time."""
        message = f"no end within {self.taken.timeout_seconds:g} s"
        error = {"type": "JobTimeout", "message": message, "where": ""}
        return AttemptOutcome(taken=self.taken, ending=Ending.FAILED, error=error, cause="timeout")

    def crashed(self, how: str) -> AttemptOutcome:
        """The outcome of an attempt whose own process ended under it."""
        error = {"type": "ProcessEnded", "message": f"the handler's process {how}", "where": ""}
        return AttemptOutcome(taken=self.taken, ending=Ending.FAILED, error=error, cause="crashed")

    def released(self, reason: str) -> AttemptOutcome:
        """The outcome of an attempt that is given back."""
        return AttemptOutcome(taken=self.taken, ending=Ending.RELEASED, reason=reason)

    def _stopped_early(self) -> AttemptOutcome:
        if self.stop.reason == "cancel":
            return AttemptOutcome(taken=self.taken, ending=Ending.CANCELLED)
        return self.released(str(self.stop.reason))

    def _succeeded(self, result: object) -> AttemptOutcome:
        cleaned = None if result is None else clean_json(result, conf().result_max_bytes)
        return AttemptOutcome(taken=self.taken, ending=Ending.SUCCEEDED, result=cleaned)

    @commits_once
    def _run_transactional(self) -> None:
        """Effects in this database and the completion commit together, or neither does."""
        close_old_connections()
        taken = self.taken
        with transaction.atomic(durable=True):
            cleaned = self._succeeded(self._called()).result
            ended = complete_jobs(
                shards=[taken.shard],
                worker_id=self.worker_id,
                results={taken.lease_id: cleaned},
            )
            if not ended:
                raise LeaseLost(current="unknown")  # undoes the handler's writes too

    def _stopped(self, error: Cancelled) -> AttemptOutcome:
        """What it means that the handler stopped: that depends on who wanted it to."""
        match self.stop.reason:
            case "timeout":
                return self.timed_out()
            case (
                "shutdown" | "lease_lost"
            ):  # it has ended, so giving it back is safe; a lost lease refuses it anyway
                return self.released(str(self.stop.reason))
        return AttemptOutcome(
            taken=self.taken,
            ending=Ending.CANCELLED,
            by_handler=self.stop.reason is None,
            reason=clean_text(error, 1000),
        )

    def _failed(self, error: BaseException) -> AttemptOutcome:
        """What the exception means: the steering classes first; anything else is a failed attempt."""
        try:
            match error:
                case Cancelled():
                    return self._stopped(error)
                case Snooze():
                    return AttemptOutcome(
                        taken=self.taken,
                        ending=Ending.SNOOZED,
                        delay_seconds=_delay(error.seconds),
                        reason=clean_text(error.reason, 1000),
                    )
                case RetryAfter():
                    return self._failure(error, delay_seconds=_delay(error.seconds))
                case PermanentFailure():
                    return self._failure(error, permanent=True)
        except BaseException:  # noqa: BLE001 (class and attributes may be the handler's code: if they raise, it steers nothing)
            return self._failure(error)
        return self._failure(error)

    def _failure(self, error: BaseException, **how: Any) -> AttemptOutcome:
        outcome = AttemptOutcome(taken=self.taken, ending=Ending.FAILED, **how)
        kind, message, where = describe_exception(error)
        outcome.error = {"type": kind, "message": message, "where": where}
        if self.stop.reason == "timeout":
            outcome.cause = "timeout"
        return outcome


def unwrapped(ended: tuple[object, BaseException | None]) -> object:
    """What an awaited handler returned; what it raised is raised again."""
    result, error = ended
    if error is not None:
        raise error
    return result


def trusted_until(sent_at: float) -> float:
    """Monotonic end of the time in which a lease confirmed by a message sent at `sent_at` is surely ours."""
    return sent_at + 0.8 * conf().lease_ttl_seconds


def _delay(seconds: object) -> float:
    """A handler's delay, whatever it gave: not a number means at once, and nothing waits for ever."""
    try:
        value = float(seconds)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return 0.0 if math.isnan(value) else min(max(value, 0.0), MAX_DELAY_SECONDS)
