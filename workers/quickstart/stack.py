"""The processes of a quickstart: started tied to this one, watched, started again when they die, stopped in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from workers.tied import spawn

STOP_SECONDS = 20.0


class StackError(Exception):
    """The stack cannot start; the message says what to do."""


@dataclass(slots=True)
class Child:
    """One process and how to make it again."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes]


class Stack:
    """Children of this process. A context manager: leaving it leaves no process behind."""

    def __init__(
        self, *, folder: Path, env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        """`folder` gets the logs; `env` is added to this process's environment for every child."""
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, **env}
        self._say, self._files = say, ExitStack()
        self.children: dict[str, Child] = {}  # in starting order; stopped in the opposite one

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, name: str, *command: str) -> None:
        """Start a child; its output goes to its own log."""
        self.children[name] = Child(name, list(command), self._spawn(name, list(command)))

    def start_provider(self, folder: Path, *options: str) -> str:
        """Start the shop's payment provider and return its URL.

        Raises:
            StackError: It did not come up.
        """
        log = self._logs / "provider.log"
        offset = log.stat().st_size if log.exists() else 0
        provider = str(Path(settings.BASE_DIR) / "examples" / "provider.py")
        self.start("provider", sys.executable, provider, "--data-dir", str(folder), *options)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            for line in log.read_text(errors="replace")[offset:].splitlines():
                if line.startswith("{"):
                    url: str = json.loads(line)["url"]
                    # A provider that is started again must be found where the handlers look for it.
                    self.children["provider"].command += ["--port", url.rpartition(":")[2]]
                    return url
            if self.children["provider"].process.poll() is not None:
                break
            time.sleep(0.05)
        raise StackError(f"The payment provider did not start; see {log}.")

    def watch(self) -> None:
        """Start again whatever has died: that is what an init system does for these processes."""
        for child in self.children.values():
            code = child.process.poll()
            if code is not None:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                child.process = self._spawn(child.name, child.command)
                self._say(f"{child.name} ended by {how}; started again as pid {child.process.pid}")

    def stop(self) -> None:
        """SIGTERM in the opposite order of starting, each waited for: the worker drains while its provider lives."""
        for child in reversed(self.children.values()):
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
                try:
                    child.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._say(f"{child.name} did not end within {STOP_SECONDS:g} s; killed")
                    child.process.kill()
                    child.process.wait()
        self.children.clear()
        self._files.close()

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = self._files.enter_context((self._logs / f"{name}.log").open("ab"))
        return spawn(
            command,
            parting_signal=signal.SIGTERM,
            output=log,
            cwd=Path(settings.BASE_DIR),
            env=self.env,
        )


def free_port(wanted: int) -> int:
    """The port itself if nothing listens on it; any free one for 0.

    Raises:
        StackError: It is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise StackError(f"Port {wanted} is in use; choose another with --port.") from error
        port: int = probe.getsockname()[1]
        return port


def wait_for_web(url: str, stack: Stack) -> None:
    """Return when the web process answers; any HTTP answer will do.

    Raises:
        StackError: It ended, or is silent for 60 s.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2)  # noqa: S310 (our own address on loopback)
        except urllib.error.HTTPError:
            return
        except OSError:
            if stack.children["web"].process.poll() is not None:
                break
            time.sleep(0.1)
        else:
            return
    raise StackError("The web process did not come up; see web.log in the logs folder.")
