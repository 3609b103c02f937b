"""Handlers of the probes. Payload: {"gate": name to wait for, "seconds": of work, "raises": text, …}."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.process.probes.notes import FOLDER, Probe
from workers.handlers import JobContext, handler

POLL_SECONDS = 0.01
SOON = {"kind": "fixed", "base_seconds": 0.05, "jitter": 0.0}


@handler("probe.deaf", timeout_seconds=60, max_attempts=5, retry=SOON)
def deaf(ctx: JobContext) -> dict[str, object]:
    """Works, whoever asks it to stop, until its gate is open."""
    probe = _begin(ctx)
    if ctx.payload.get("odd_progress"):
        ctx.progress(float("nan"), "half\x00way \ud800")
    time.sleep(ctx.payload.get("seconds", 0.0))  # the work
    while not probe.is_open(ctx.payload, ctx.attempt):
        time.sleep(POLL_SECONDS)
    return _end(probe, ctx)


@handler("probe.busy", timeout_seconds=60, max_attempts=5, retry=SOON)
def busy(ctx: JobContext) -> dict[str, object]:
    """As deaf, and says every millisecond that it still runs."""
    probe = _begin(ctx)
    while not probe.is_open(ctx.payload, ctx.attempt):
        probe.write(ctx.job_id, ctx.attempt, "busy")
        time.sleep(0.001)
    return _end(probe, ctx)


@handler("probe.heed", timeout_seconds=60, max_attempts=5, retry=SOON)
def heed(ctx: JobContext) -> dict[str, object]:
    """Works until its gate is open or it is asked to stop; then it still needs the gate "leave" to leave."""
    probe = _begin(ctx)
    stops_at = time.monotonic() + ctx.payload.get("seconds", 0.0)
    while time.monotonic() < stops_at or not probe.is_open(ctx.payload, ctx.attempt):
        if ctx.wait(POLL_SECONDS):
            probe.write(ctx.job_id, ctx.attempt, "stop seen")
            while not probe.is_open({"gate": ctx.payload.get("leave")}, ctx.attempt):
                time.sleep(POLL_SECONDS)
            ctx.raise_if_cancelled()
    return _end(probe, ctx)


def _begin(ctx: JobContext) -> Probe:
    probe = Probe(Path(os.environ[FOLDER]))
    probe.write(ctx.job_id, ctx.attempt, "began")
    return probe


def _end(probe: Probe, ctx: JobContext) -> dict[str, object]:
    probe.write(ctx.job_id, ctx.attempt, "ended")
    if "raises" in ctx.payload:
        raise ValueError(ctx.payload["raises"])
    return {"attempt": ctx.attempt, "pid": os.getpid()}
