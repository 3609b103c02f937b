"""The processes of a quickstart: started tied to this one, watched, started again when they die, stopped in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from workers.process import CONFIGURATION_WRONG
from workers.tied import spawn

STOP_SECONDS = 20.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
STEADY_SECONDS = 30.0  # who lived this long is started again at once
IMMEDIATE_SECONDS = 5.0  # who did not live this long never got to work
MOST_IMMEDIATE_DEATHS = 8


class StackError(Exception):
    """The stack cannot start or go on; the message says what to do."""


class Stopped(Exception):
    """The stack was to end before it was up: nobody's fault."""


@dataclass(slots=True)
class Child:
    """One process and how to make it again. Times are monotonic seconds."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)
    deaths: int = 0  # since it last lived for STEADY_SECONDS
    immediate_deaths: int = 0  # in a row
    again_at: float | None = None  # None: it runs, as far as is known

    def died(self) -> float:
        """Count its end and return the pause before its next start, in seconds."""
        lived = time.monotonic() - self.started_at
        self.deaths = 1 if lived >= STEADY_SECONDS else self.deaths + 1
        self.immediate_deaths = self.immediate_deaths + 1 if lived < IMMEDIATE_SECONDS else 0
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (self.deaths - 1), LONGEST_PAUSE_SECONDS)
        self.again_at = time.monotonic() + pause
        return pause


class Stack:
    """Children of this process. A context manager: leaving it leaves no process behind."""

    def __init__(
        self,
        *,
        folder: Path,
        env: Mapping[str, str],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """`folder` gets the logs; `env` is added to this process's environment for every child.

        Args:
            folder: Made if absent.
            env: Wins over the environment.
            say: Gets a line when a child ends and when it is started again.
            stopping: True once the stack is not wanted any more; whoever waits for a start then gives up.
        """
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, **env}
        self._say, self._stopping = say, stopping
        self.children: dict[str, Child] = {}  # in starting order; stopped in the opposite one

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(*self.children)

    def start(self, name: str, *command: str) -> None:
        """Start a child; its output goes to its own log."""
        self.children[name] = Child(name, list(command), self._spawn(name, list(command)))

    def start_provider(self, folder: Path, *options: str) -> str:
        """Start the shop's payment provider and return its URL.

        Raises:
            StackError: It did not come up.
            Stopped: Whoever started the stack does not want it any more.
        """
        log = self._log("provider")
        offset = log.stat().st_size if log.exists() else 0
        provider = str(Path(settings.BASE_DIR) / "examples" / "provider.py")
        self.start("provider", sys.executable, provider, "--data-dir", str(folder), *options)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            self.raise_if_stopping()
            for line in log.read_bytes()[offset:].splitlines():
                if line.startswith(b"{"):
                    url: str = json.loads(line)["url"]
                    # A provider that is started again must be found where the handlers look for it.
                    self.children["provider"].command += ["--port", url.rpartition(":")[2]]
                    return url
            if self.children["provider"].process.poll() is not None:
                break
            time.sleep(0.05)
        raise self.failure("provider", "The payment provider did not start")

    def watch(self) -> None:
        """Start again whatever has died, later and later: an init system does this for these processes.

        Raises:
            StackError: A child says that its configuration is wrong, or never lives long enough to work.
        """
        for child in self.children.values():
            if child.again_at is None and (code := child.process.poll()) is not None:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                pause = child.died()
                if code == CONFIGURATION_WRONG:
                    raise self.failure(child.name, f"{child.name}: configuration wrong ({how})")
                if child.immediate_deaths >= MOST_IMMEDIATE_DEATHS:
                    often = f"{child.immediate_deaths} times in a row"
                    raise self.failure(
                        child.name, f"{child.name} ended right after its start, {often} ({how})"
                    )
                self._say(f"{child.name} ended by {how}; starts again in {pause:g} s")
            elif child.again_at is not None and time.monotonic() >= child.again_at:
                child.process = self._spawn(child.name, child.command)
                child.started_at, child.again_at = time.monotonic(), None
                hint = ": kill -9 it to see a recovery" if child.name == "worker" else ""
                if child.deaths:  # otherwise whoever killed it on purpose has said so
                    self._say(f"{child.name} started again, pid {child.process.pid}{hint}")

    def pid(self, name: str) -> int | None:
        """Process id of a child that runs, frozen or not."""
        child = self.children[name]
        gone = child.again_at is not None or child.process.poll() is not None
        return None if gone else child.process.pid

    def kill(self, name: str) -> None:
        """`kill -9` a child on purpose: `watch` starts it again at once, and it is no sign of a fault in it."""
        child = self.children[name]
        child.process.kill()
        child.process.wait()
        child.again_at = time.monotonic()

    def freeze(self, name: str) -> None:
        """Stop a child where it stands, until `thaw`."""
        self.children[name].process.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen child go on."""
        self.children[name].process.send_signal(signal.SIGCONT)

    def stop(self, *names: str) -> None:
        """SIGTERM in the opposite order of starting, each waited for; they are not watched any more.

        The worker drains while its provider lives, and the report is fetched before the provider ends.
        """
        for child in [child for name, child in self.children.items() if name in names][::-1]:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
                child.process.send_signal(signal.SIGCONT)  # a frozen one would not hear it
                try:
                    child.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._say(f"{child.name} did not end within {STOP_SECONDS:g} s; killed")
                    child.process.kill()
                    child.process.wait()
            del self.children[child.name]

    def raise_if_stopping(self) -> None:
        """For whoever waits for a start.

        Raises:
            Stopped: The stack is not wanted any more.
        """
        if self._stopping():
            raise Stopped

    def failure(self, name: str, what: str) -> StackError:
        """An error that names the log of a child and shows its end."""
        log = self._log(name)
        tail = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
        return StackError("\n".join([f"{what}; see {log}", *(f"  {line}" for line in tail)]))

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log(name).open("ab") as log:  # the child has a copy of its own
            return spawn(
                command,
                parting_signal=signal.SIGTERM,
                output=log,
                cwd=Path(settings.BASE_DIR),
                env=self.env,
            )
