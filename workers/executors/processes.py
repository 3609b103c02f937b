"""The processes executor: each slot is a process of its own, which can be killed, and takes nobody along when it dies.

Leases, heartbeats and reports stay in the worker: a handler that holds its interpreter for minutes keeps its lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from queue import SimpleQueue

from workers.execution import Execution
from workers.executors.environment import split
from workers.executors.interface import CLOSE_SECONDS, Report
from workers.executors.nursery import Nursery
from workers.executors.slot import Slot
from workers.executors.threads import emptied
from workers.handlers import HandlerSpec
from workers.memory import MEBIBYTE

ROOM_BYTES = 32 * MEBIBYTE  # least that a limit must leave to handlers


class ProcessSlots:
    """So many children, each fed by a thread here. A child that dies is replaced at once."""

    def __init__(
        self, size: int, *, memory_bytes: int | None = None, passed: Collection[str] = ()
    ) -> None:
        """Start the template and all children.

        Args:
            size: Children.
            memory_bytes: Most that one of them may have.
            passed: Names of variables that handlers may see besides the usual ones.

        Raises:
            Gone: The handlers could not be loaded.
            ValueError: The limit leaves no room for them.
        """
        self.size = size
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self._todo: SimpleQueue[Execution | None] = SimpleQueue()
        visible, private = split(os.environ, passed)
        self._nursery = Nursery(visible=visible, private=private, memory_bytes=memory_bytes)
        least = self._nursery.ready["data_bytes"] + ROOM_BYTES
        if memory_bytes is not None and memory_bytes < least:
            self._nursery.close()
            raise ValueError(
                f"a limit of {memory_bytes // MEBIBYTE} MiB leaves handlers no room:"
                f" give at least {-(-least // MEBIBYTE)}"
            )
        self._slots = [
            Slot(self._todo, self.reports, self._nursery, memory_bytes) for _ in range(size)
        ]

    def takes(self, spec: HandlerSpec) -> bool:
        """Every handler: a coroutine has an event loop of its own for its attempt."""
        return True

    def submit(self, execution: Execution) -> None:
        """Run the attempt as soon as a child is free."""
        self._todo.put(execution)

    def take_back(self) -> list[Execution]:
        """Attempts that no child was given; they will not be."""
        return emptied(self._todo)

    def abandon(self, execution: Execution) -> bool:
        """Kill the child; its slot reports the attempt when it has ended."""
        for slot in self._slots:
            slot.kill(execution)
        return False

    def tend(self) -> None:
        """Tell children what they could not be told before; end those that must not go on."""
        for slot in self._slots:
            slot.tend()

    def close(self) -> None:
        """End all children, busy ones by force."""
        for _ in self._slots:
            self._todo.put(None)
        for slot in self._slots:
            slot.kill()
        until = time.monotonic() + CLOSE_SECONDS
        for slot in self._slots:
            slot.thread.join(max(0.0, until - time.monotonic()))
        self._nursery.close()
