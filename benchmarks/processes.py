"""The two processes under measurement: started with a known environment, tied to the benchmark, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from workers.tied import spawn

ROOT = Path(__file__).resolve().parents[1]
STOP_SECONDS = 20.0


class BenchmarkError(Exception):
    """The benchmark could not measure; nothing it printed is a result."""


def environment(url: str) -> dict[str, str]:
    """That of a production process on this database, with the benchmark's handler.

    Engine settings such as DUEKEEPER_CLAIM_BATCH stay: trying them is what a benchmark is for.
    """
    dropped = ("DATABASE_URL_FILE", "DUEKEEPER_DEBUG", "DUEKEEPER_DEBUG_FILE", "LOG_LEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"DATABASE_URL": url, "DUEKEEPER_APPS": "benchmarks", "LOG_FORMAT": "json"}


def run_command(command: Sequence[str | Path], url: str) -> None:
    """Run one command to its end.

    Raises:
        BenchmarkError: It failed; the message has its output.
    """
    done = subprocess.run(  # noqa: S603 (our own commands)
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(url),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{command} failed:\n{done.stdout}{done.stderr}")


class Running:
    """Started processes by name."""

    def __init__(self, processes: Mapping[str, subprocess.Popen[bytes]], log: IO[bytes]) -> None:
        self._processes, self._log = processes, log

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def check(self) -> None:
        """Make sure that all of them still run.

        Raises:
            BenchmarkError: One has ended; the message has the end of their log.
        """
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise BenchmarkError(f"the {name} ended with code {code}:\n{self.log_end()}")

    def log_end(self, lines: int = 30) -> str:
        """The last lines that they wrote."""
        text = Path(self._log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


@contextmanager
def running(
    commands: Mapping[str, Sequence[str | Path]], url: str, **env: str
) -> Iterator[Running]:
    """Run Python commands beside this process; on exit all of them are gone.

    Args:
        commands: Name → arguments of the Python interpreter.
        url: Database.
        env: Added to their environment.
    """
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.NamedTemporaryFile(prefix="duekeeper-benchmark-"))
        processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, command in commands.items():
            processes[name] = process = spawn(
                [sys.executable, *command],
                parting_signal=signal.SIGTERM,
                output=log,
                cwd=ROOT,
                env=environment(url) | env,
            )
            stack.callback(_stop, process)
        yield Running(processes, log)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return
