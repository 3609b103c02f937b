"""The handler of the benchmarks."""

from __future__ import annotations

from workers.handlers import JobContext, handler

NOOP = "bench.noop"


@handler(NOOP, timeout_seconds=30, max_attempts=5)
def noop(ctx: JobContext) -> None:
    """Do nothing: what remains is what the engine itself costs."""
