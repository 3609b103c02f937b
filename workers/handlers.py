"""Handlers: functions that products register under a name, and the context each attempt is given.

Looked up in a registry filled at start-up, never imported from a payload.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.utils.module_loading import autodiscover_modules

from jobs.conf import conf
from jobs.policies.cleaning import clean_text
from jobs.policies.retry import DEFAULT_POLICY, RetryPolicy
from jobs.transitions.take import Taken
from workers.stopping import Stop, call_in


class RetryAfter(Exception):
    """This attempt failed; try again after so many seconds, if the budget allows."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be tried again in {seconds:g} s")
        self.seconds, self.reason = seconds, reason


class Snooze(Exception):
    """Not now: come back after so many seconds. Costs no attempt."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {seconds:g} s")
        self.seconds, self.reason = seconds, reason


class PermanentFailure(Exception):
    """No further attempt makes sense: straight to the dead letters."""


class Cancelled(Exception):
    """The handler stopped because it was asked to, or found that the job is void."""


class JobContext:
    """What a handler knows about its attempt. Reads are cheap; `cancelled` should be looked at between steps."""

    def __init__(self, taken: Taken, *, tenant: str, stop: Stop) -> None:
        self._taken, self._stop = taken, stop
        self.tenant = tenant
        self.progress_note: dict[str, Any] | None = None

    @property
    def job_id(self) -> UUID:
        """The job; the same for all attempts."""
        return self._taken.job_id

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self._taken.attempt

    @property
    def fencing_token(self) -> int:
        """Larger at every claim of this job: a receiver that keeps the largest can refuse a stale worker."""
        return self._taken.token

    @property
    def idempotency_token(self) -> str:
        """The same for all attempts and requeues: a receiver that collapses by it applies the effect once."""
        return f"{self.tenant}/{self._taken.request_key or self._taken.job_id}"

    @cached_property
    def payload(self) -> Any:
        """The payload, parsed from JSON."""
        text = self._taken.payload
        return None if text is None else json.loads(text)

    @property
    def payload_ref(self) -> str | None:
        """Where a payload too large to store lies."""
        return self._taken.payload_ref

    @property
    def fire_at(self) -> datetime | None:
        """Of a schedule's job: the instant it stands for, however late it runs. None for any other job."""
        return self._taken.fire_at

    @property
    def deadline(self) -> float:
        """Monotonic time at which this attempt is given up."""
        return self._stop.deadline

    def lease_remaining(self) -> float:
        """Seconds for which this worker surely still owns the job; never negative."""
        return max(0.0, self._stop.trusted_until - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once this attempt should stop: cancel asked, lease lost, or out of time."""
        return self._stop.reason is not None

    @property
    def shutting_down(self) -> bool:
        """True once the worker drains: long work should end at its next safe point."""
        return self._stop.draining()

    def raise_if_cancelled(self) -> None:
        """Leave at a safe point.

        Raises:
            Cancelled: `cancelled` is true.
        """
        if self.cancelled:
            raise Cancelled(self._stop.reason)

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake at once when the attempt should stop. True if it should."""
        self._stop.event.wait(seconds)
        return self.cancelled

    async def wait_async(self, seconds: float) -> bool:
        """As `wait`, for coroutine handlers: `if await job.wait_async(5): …`. Leaves the event loop to the others."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        forget = self._stop.listen(lambda: call_in(loop, woken.set))
        try:
            async with asyncio.timeout(seconds):
                await woken.wait()
        except TimeoutError:
            pass  # the usual end of a wait: nobody asked for a stop
        finally:
            forget()
        return self.cancelled

    def progress(self, fraction: float, note: str = "") -> None:
        """Tell how far the attempt is (0 to 1); stored with the next heartbeat.

        Cleaned here: a note that the database refuses would stop the heartbeat of every job in this process.
        """
        known = min(max(0.0, float(fraction)), 1.0)  # in this order NaN becomes 0
        self.progress_note = {"fraction": round(known, 4), "note": clean_text(note, 200)}


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A registered handler and its defaults, as advertised to the database.

    Attributes:
        is_coroutine: The function is an `async def`.
    """

    name: str
    function: Callable[[JobContext], object]
    timeout_seconds: float
    max_attempts: int
    retry: RetryPolicy
    transactional: bool
    is_coroutine: bool = field(init=False)

    def __post_init__(self) -> None:
        """Found out once: it is asked for at every attempt."""
        called = getattr(self.function, "__call__", None)  # noqa: B004 (an object whose call is a coroutine)
        known = inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called)
        object.__setattr__(self, "is_coroutine", known)


_registry: dict[str, HandlerSpec] = {}


def handler(
    name: str,
    *,
    timeout_seconds: float | None = None,
    max_attempts: int | None = None,
    retry: Mapping[str, Any] | None = None,
    transactional: bool = False,
) -> Callable[[Callable[[JobContext], object]], Callable[[JobContext], object]]:
    """Register the decorated function, plain or `async def`, under a name that jobs refer to.

    Args:
        name: 1 to 200 characters, such as "billing.charge".
        timeout_seconds: Longest time of one attempt; a job may ask for another.
        max_attempts: Attempts before the dead letters; a job may ask for another.
        retry: Policy as in the REST API: {"kind": "exponential", "base_seconds": 30, …}.
        transactional: Run in one database transaction with the completion: exactly once for effects in this database.

    Raises:
        ValueError: The name is taken or out of range.
        InvalidField: The policy is faulty.
    """
    if not 1 <= len(name) <= 200:
        raise ValueError(f"a handler name has 1 to 200 characters, not {len(name)}")

    def register(function: Callable[[JobContext], object]) -> Callable[[JobContext], object]:
        if name in _registry and _registry[name].function is not function:
            raise ValueError(f"two handlers are named {name!r}")
        _registry[name] = HandlerSpec(
            name=name,
            function=function,
            timeout_seconds=timeout_seconds or conf().default_timeout_seconds,
            max_attempts=max_attempts or conf().default_max_attempts,
            retry=DEFAULT_POLICY if retry is None else RetryPolicy.parse(dict(retry)),
            transactional=transactional,
        )
        return function

    return register


def discover() -> dict[str, HandlerSpec]:
    """All handlers of the installed apps: each app's `handlers` module is imported once."""
    autodiscover_modules("handlers")
    return dict(_registry)


def _missing(context: JobContext) -> object:
    raise PermanentFailure("the job names another handler than its route: the row was damaged")


# Stands in for a row that says one handler in its route and another in the job: it dies, its neighbours run.
MISSING = HandlerSpec("", _missing, 1.0, 1, DEFAULT_POLICY, transactional=False)
