"""What a piece of work costs, told apart from what the machine happened to do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 3


def assert_cheap(work: Callable[[], object], *, seconds: float) -> None:
    """Some run of `work` takes this thread at most so many seconds of CPU.

    Bounds stand far above the usual and far below what a quadratic or unbounded way would take, three times over:
    a machine that is busy with others has its slow moment once, an algorithm each time.
    """
    costs: list[float] = []
    for _ in range(TRIES):
        began = time.thread_time()
        work()
        costs.append(time.thread_time() - began)
        if costs[-1] <= seconds:
            return
    raise AssertionError(f"took {costs} s of CPU, not {seconds}")
