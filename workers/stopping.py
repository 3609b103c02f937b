"""How an attempt is asked to stop, whoever asks and wherever it runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class Stop:
    """The one place where "this attempt should stop" is written: by heartbeat, deadline and drain.

    Attributes:
        deadline: Monotonic time at which the attempt is given up.
        trusted_until: Monotonic; 0.8 of the lease from the last confirmed heartbeat.
        reason: "cancel", "lease_lost", "timeout" or "shutdown"; the first one stays.
        asked_at: Monotonic time of that.
    """

    __slots__ = (
        *("_drain", "_event", "_listeners", "_on_trust"),
        *("asked_at", "deadline", "reason", "trusted_until"),
    )

    def __init__(self, *, deadline: float, trusted_until: float, drain: threading.Event) -> None:
        self.deadline = deadline
        self.trusted_until = trusted_until
        self.reason: str | None = None
        self.asked_at = float("inf")
        self._event: threading.Event | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._on_trust: Callable[[], None] | None = None
        self._drain = drain

    @property
    def event(self) -> threading.Event:
        """Made only for attempts that wait on it: an Event costs more than a short handler."""
        if self._event is None:
            self._event = threading.Event()
            if self.reason is not None:  # asked between the two lines above
                self._event.set()
        return self._event

    def ask(self, reason: str) -> None:
        """Ask the attempt to stop."""
        if self.reason is not None:
            return
        self.asked_at = time.monotonic()
        self.reason = reason
        if self._event is not None:
            self._event.set()
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have this called, in whatever thread, once a stop is asked for; at once if it was. Returns the way out.

        An attempt's listeners come and go in the thread that runs it. One may be called twice.
        """
        self._listeners = (*self._listeners, listener)
        if self.reason is not None:
            listener()

        def forget() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return forget

    def trust(self, until: float) -> None:
        """The lease was confirmed."""
        self.trusted_until = until
        if self._on_trust is not None:
            self._on_trust()

    def when_trusted(self, listener: Callable[[], None] | None) -> None:
        """Have this called whenever the lease was confirmed: for an attempt that runs in another process."""
        self._on_trust = listener

    def draining(self) -> bool:
        """True once the worker has been told to stop."""
        return self._drain.is_set()


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have the loop call this, from any thread. A loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
