"""Coroutine handlers of the probes, and those that only make sense where a handler can be killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

from django.db import connection

from jobs.models import Tenant
from tests.process.probes.notes import FOLDER, Probe
from workers.handlers import JobContext, handler

SOON = {"kind": "fixed", "base_seconds": 0.05, "jitter": 0.0}
KEPT: list[bytearray] = []


@handler("probe.awaits", timeout_seconds=60, max_attempts=5, retry=SOON)
async def awaits(ctx: JobContext) -> dict[str, object]:
    """Waits for so many seconds, unless it is asked to stop."""
    await ctx.wait_async(ctx.payload["seconds"])
    ctx.raise_if_cancelled()
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.hangs", timeout_seconds=1, max_attempts=5, retry=SOON)
def hangs(ctx: JobContext) -> dict[str, object]:
    """At its first attempt it never ends: asleep, or in a loop of the interpreter. Timeout: 1 s."""
    while ctx.attempt == 1:
        if ctx.payload["way"] == "sleep":
            time.sleep(3600)
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.hangs_async", timeout_seconds=1, max_attempts=5, retry=SOON)
async def hangs_async(ctx: JobContext) -> dict[str, object]:
    """The same: asleep, in a loop that blocks the event loop, or deaf to its cancellation."""
    while ctx.attempt == 1:
        try:
            if ctx.payload["way"] != "loop":
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if ctx.payload["way"] != "deaf":
                raise
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.holds", timeout_seconds=60, max_attempts=2, retry=SOON)
def holds(ctx: JobContext) -> dict[str, object]:
    """Holds the interpreter for so many seconds at its first attempt: no other thread of its process runs meanwhile."""
    return _hold(ctx)


@handler("probe.holds_async", timeout_seconds=60, max_attempts=2, retry=SOON)
async def holds_async(ctx: JobContext) -> dict[str, object]:
    """The same as a coroutine."""
    return _hold(ctx)


def _hold(ctx: JobContext) -> dict[str, object]:
    if ctx.attempt == 1:
        ctypes.PyDLL(None).usleep(int(ctx.payload["seconds"] * 1_000_000))
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.sleeps", timeout_seconds=60, max_attempts=5, retry=SOON)
async def sleeps(ctx: JobContext) -> None:
    """Knows of no stop: only its cancellation ends it."""
    await asyncio.sleep(3600)


@handler("probe.keeps", timeout_seconds=60, max_attempts=1)
def keeps(ctx: JobContext) -> dict[str, object]:
    """Leaves so much behind in memory."""
    return _keep(ctx)


@handler("probe.keeps_async", timeout_seconds=60, max_attempts=1)
async def keeps_async(ctx: JobContext) -> dict[str, object]:
    """The same as a coroutine."""
    return _keep(ctx)


def _keep(ctx: JobContext) -> dict[str, object]:
    KEPT.append(bytearray(b"x") * (ctx.payload["mebibytes"] << 20))
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.hoards", timeout_seconds=60, max_attempts=3, retry=SOON)
def hoards(ctx: JobContext) -> None:
    """Wants more memory than there is."""
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


@handler("probe.environment", timeout_seconds=60, max_attempts=1)
def environment(ctx: JobContext) -> dict[str, object]:
    """All that it can read of the environment, also as the kernel remembers it; and that the database answers."""
    with connection.cursor() as cursor:
        cursor.execute("select 1")
        (one,) = cursor.fetchone()
    started_with = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    return {
        "names": sorted({*os.environ, *(one.split("=")[0] for one in started_with)}),
        "one": one,
    }


@handler("probe.books", timeout_seconds=60, max_attempts=2, retry=SOON, transactional=True)
def books(ctx: JobContext) -> dict[str, object]:
    """Writes a row in the transaction of its completion; at its first attempt it raises after that."""
    Tenant.objects.create(slug=f"booked-{ctx.attempt}", name="booked")
    if ctx.attempt == 1:
        raise ValueError("boom")
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@handler("probe.leaves_program", timeout_seconds=60, max_attempts=1)
def leaves_program(ctx: JobContext) -> None:
    """Starts a program that would run on, notes its number, and dies."""
    program = subprocess.Popen(["sleep", "3600"])
    Probe(Path(os.environ[FOLDER])).write(ctx.job_id, program.pid, "program")
    os.kill(os.getpid(), signal.SIGKILL)
