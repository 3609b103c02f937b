"""Real `manage.py` processes at a tenth of their price: forks of one that has imported everything already.

Starting an interpreter with Django takes half a second of a processor, and a test that kills forty workers would spend
all its time on that. Only the imports are shared: a fork has its own connections, threads, log and signals.

Run as a program, this module is the parent of the forks. Each line it reads is an order, {"argv": …, "log": …,
"failpoints": …, "env": …}; it answers {"pid": …}, and tells of each end, {"ended": pid, "code": …}. It ends with its input, and
the kernel ends its forks with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import django
from django.core.management import (
    call_command,
    execute_from_command_line,
    load_command_class,
)
from django.db import connections

from jobs import failpoints
from workers.handlers import discover
from workers.tied import PR_SET_PDEATHSIG

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.005
COMMANDS = ("runscheduler", "runworker")  # imported ahead, with all that they import
BIRTH_SECONDS = 60


class Fork:
    """One fork, seen from the test: as much of `subprocess.Popen` as is needed."""

    def __init__(self, pid: int, codes: Mapping[int, int]) -> None:
        self.pid, self._codes = pid, codes

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it runs."""
        return self._codes.get(self.pid)

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: It still runs.
        """
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended, perhaps a moment ago and nobody has told of it yet."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that forks. Close it after its forks."""

    def __init__(self, *, env: Mapping[str, str], log: Path) -> None:
        """Start it; `env` is the environment of all its forks, and what Django's settings read is read once."""
        self._codes: dict[int, int] = {}
        self._pids: list[int] = []
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
                env=dict(env),
            )
        self._born = threading.Semaphore(0)
        self._reader = threading.Thread(target=self._read, name="forks", daemon=True)
        self._reader.start()

    def fork(
        self, *argv: str, log: Path, failpoints: str = "", env: Mapping[str, str] | None = None
    ) -> Fork:
        """Start `manage.py` with these arguments; both its output streams go to the log. `env` is added to its environment.

        Raises:
            AssertionError: It does not answer.
        """
        orders = self._process.stdin
        assert orders is not None
        order = {"argv": argv, "log": str(log), "failpoints": failpoints, "env": dict(env or {})}
        orders.write(json.dumps(order).encode() + b"\n")
        orders.flush()
        assert self._born.acquire(timeout=BIRTH_SECONDS), "the parent of the forks does not answer"
        return Fork(self._pids.pop(), self._codes)

    def close(self) -> None:
        """End it, and whatever still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()
        with self._process:
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "ended" in told:
                self._codes[told["ended"]] = told["code"]
            else:
                self._pids.append(told["pid"])
                self._born.release()


def _serve() -> None:
    django.setup()
    call_command("check", stdout=sys.stderr)  # imports what a start imports
    for command in COMMANDS:
        load_command_class("workers", command)
    discover()
    connections.close_all()  # none is shared with a fork, or keeps the database from being dropped
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of what all of them share
    orders, answers = sys.stdin.buffer, sys.stdout.fileno()
    forks: dict[
        int, int
    ] = {}  # a descriptor that is readable once the fork has ended → its process id
    while True:
        readable, _, _ = select.select([orders, *forks], [], [])
        for end in [one for one in forks if one in readable]:
            pid = forks.pop(end)
            os.close(end)
            _, status = os.waitpid(pid, 0)
            _tell(answers, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})
        if orders in readable:
            if not (line := orders.readline()):
                return
            pid = os.fork()
            if pid == 0:
                _run(json.loads(line))
            forks[os.pidfd_open(pid)] = pid
            _tell(answers, {"pid": pid})


def _tell(answers: int, what: dict[str, Any]) -> None:
    os.write(answers, json.dumps(what).encode() + b"\n")


def _run(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for stream, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(stream, target)
        os.environ.update(order["env"])
        failpoints.enable(order["failpoints"])
        execute_from_command_line(["manage.py", *order["argv"]])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (it must not return into the parent's loop)
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    _serve()
