"""Processes that cost a fork and no start: a warm one forks a child for each call, which may die at a failpoint.

A child has a connection, settings and caches of its own, as any process of the fleet.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import django

from jobs import failpoints

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 30


class Nursery:
    """The warm process. A context manager; it ends with the test run whatever ends that."""

    def __init__(self, *, env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
                env=env,
            )

    def __enter__(self) -> Self:
        self.run(int)  # it is warm now
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # closes its input, which ends it, and waits
            pass

    def run(self, function: Callable[..., object], *args: Any, dies_at: str = "") -> int:
        """Call it in a process of its own, and return that one's exit code: -9 if it died at the failpoint.

        Raises:
            AssertionError: It failed in any other way; its traceback is the message.
        """
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        size = self._log.stat().st_size
        action = f"{dies_at}=kill" if dies_at else ""
        orders.write(pickle.dumps((function, args, action)))
        orders.flush()
        code: int = pickle.load(answers)  # noqa: S301 (our own child)
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"ended with {code}\n{self._log.read_text()[size:]}")
        return code


def _serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    while True:
        try:
            function, args, action = pickle.load(orders)  # noqa: S301 (our own parent)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            _live(function, args, action)
        _, status = os.waitpid(child, 0)
        answers.write(pickle.dumps(os.waitstatus_to_exitcode(status)))
        answers.flush()


def _live(function: Callable[..., object], args: tuple[Any, ...], action: str) -> NoReturn:
    signal.alarm(LONGEST_SECONDS)
    code = 1
    try:
        failpoints.enable(action)
        function(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)  # no thread is waited for, nothing is flushed: only commits are left behind


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a child prints is no answer
    django.setup()
    _serve(sys.stdin.buffer, channel)
