"""The handlers of the benchmarks."""

from __future__ import annotations

from functools import cache

from benchmarks.starts import Starts
from workers.handlers import JobContext, handler

NOOP, NOTE = "bench.noop", "bench.note"


@handler(NOOP, timeout_seconds=30, max_attempts=5)
def noop(ctx: JobContext) -> None:
    """Do nothing: what remains is what the engine itself costs."""


@handler(NOTE, timeout_seconds=30, max_attempts=5)
def note(ctx: JobContext) -> None:
    """Note the moment at which this began."""
    _starts().note(ctx.payload["number"])


@cache
def _starts() -> Starts:
    return Starts.of_environment()
