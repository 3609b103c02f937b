"""Executors by name, as a command line asks for them."""

from __future__ import annotations

import os
from collections.abc import Collection

from workers.executors.coroutines import CoroutineSlots
from workers.executors.interface import Executor
from workers.executors.processes import ProcessSlots
from workers.executors.threads import ThreadSlots

NAMES = ("threads", "async", "processes")


def make_executor(
    name: str, *, size: int | None, memory_bytes: int | None, passed: Collection[str]
) -> Executor:
    """A running executor.

    Args:
        name: One of `NAMES`.
        size: Slots; None means 8 threads, 100 coroutines, or a process for each processor.
        memory_bytes: Most for one process of `processes`.
        passed: Variables that these may see besides the usual ones.

    Raises:
        Gone: The processes did not start.
        ValueError: The limit is too low.
    """
    match name:
        case "async":
            return CoroutineSlots(size or 100)
        case "processes":
            slots = size or len(os.sched_getaffinity(0))
            return ProcessSlots(slots, memory_bytes=memory_bytes, passed=passed)
    return ThreadSlots(size or 8)
