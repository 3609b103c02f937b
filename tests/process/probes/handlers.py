"""Handlers of the probes. Payload: {"gate": name to wait for, "seconds": of work, "raises": text, …}."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from functools import cache
from pathlib import Path

from tests.process.probes import awaiting, release  # noqa: F401 (its handlers too)
from tests.process.probes.notes import FOLDER, Probe
from tests.support.odd_errors import ODD
from tests.support.receivers import ApplyOnce, Fencing
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


@handler("probe.counts", timeout_seconds=60, max_attempts=5, retry=SOON)
def counts(ctx: JobContext) -> dict[str, object]:
    """As deaf, and its progress is a number that only grows."""
    probe = _begin(ctx)
    count = 0
    while not probe.is_open(ctx.payload, ctx.attempt):
        count += 1
        ctx.progress(0.5, str(count))
        time.sleep(POLL_SECONDS)
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


@handler("probe.effect", timeout_seconds=60, max_attempts=5, retry=SOON)
def effect(ctx: JobContext) -> None:
    """Has its effect in the middle of its work, at a receiver that applies it once."""
    half = ctx.payload["seconds"] / 2
    time.sleep(half)
    _receivers()[0].deliver(ctx.idempotency_token, ctx.job_id, ctx.fencing_token)
    time.sleep(half)


@handler("probe.stubborn", timeout_seconds=60, max_attempts=5, retry=SOON)
def stubborn(ctx: JobContext) -> dict[str, object]:
    """Works until its gate is open for its process or it is asked to stop, and has its effect all the same."""
    probe = _begin(ctx)
    while not probe.is_open(ctx.payload, os.getpid()):
        if ctx.wait(POLL_SECONDS):
            probe.write(ctx.job_id, ctx.attempt, "stop seen")
            break
    _receivers()[1].deliver(ctx.idempotency_token, ctx.job_id, ctx.fencing_token)
    return _end(probe, ctx)


@handler("probe.kills", timeout_seconds=60, max_attempts=3)
def kills(ctx: JobContext) -> None:
    """Takes its whole process along."""
    _begin(ctx)
    match ctx.payload["way"]:
        case "exit":
            os._exit(1)
        case "segfault":
            ctypes.string_at(0)
        case "out of memory":  # what the kernel does when a control group is full
            os.kill(os.getpid(), signal.SIGKILL)


@handler("probe.odd", timeout_seconds=60, max_attempts=2, retry=SOON)
def odd(ctx: JobContext) -> None:
    """Raises what nobody would."""
    if ctx.payload["odd"] == "recursion":
        odd(ctx)
    raise ODD[ctx.payload["odd"]][0]


@cache
def _receivers() -> tuple[ApplyOnce, Fencing]:
    folder = Path(os.environ[FOLDER])
    return ApplyOnce(folder / "apply-once.log"), Fencing(folder / "fencing.log")


def _begin(ctx: JobContext) -> Probe:
    probe = Probe(Path(os.environ[FOLDER]))
    probe.write(ctx.job_id, ctx.attempt, "began")
    return probe


def _end(probe: Probe, ctx: JobContext) -> dict[str, object]:
    probe.write(ctx.job_id, ctx.attempt, "ended")
    if "raises" in ctx.payload:
        raise ValueError(ctx.payload["raises"])
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@release.register
def new(ctx: JobContext) -> dict[str, object]:
    """Only the new release knows this one."""
    return _end(_begin(ctx), ctx)
