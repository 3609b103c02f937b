"""The worker's side of the template: children are ordered here, killed here, and their ends are heard of here."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from jobs import telemetry
from workers.executors.template import PACKET_BYTES
from workers.executors.wire import Gone, receive
from workers.tied import spawn

log = logging.getLogger(__name__)

START_SECONDS = 120.0  # imports of a large project on a busy machine
FORK_SECONDS = 30.0
END_SECONDS = 2.0


class Child:
    """One process of a handler, seen from the worker."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid, self.link = pid, link
        self.gone = self.doomed = False  # it has ended; it is being killed
        self._ended = threading.Event()
        self._code: int | None = None

    def receive(self) -> dict[str, Any]:
        """Wait for what it tells.

        Raises:
            Gone: It has ended, or is of no use any more.
        """
        return receive(self.link)

    def ended(self, code: int | None) -> None:
        """Told by the template. What waits for its messages wakes up, even if it left its end to somebody."""
        self._code, self.gone = code, True
        self._ended.set()
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def exit_code(self, *, within: float) -> int | None:
        """How it ended, negative for the signal; None if nobody knows."""
        self._ended.wait(within)
        return self._code


class Nursery:
    """One template at a time; a new one if it ends. `fork` may be called from many threads."""

    def __init__(
        self,
        *,
        visible: Mapping[str, str],
        private: Mapping[str, str],
        memory_bytes: int | None,
    ) -> None:
        """Start it, and wait until it has loaded the handlers.

        Raises:
            Gone: It has ended before.
        """
        self._env = {
            **visible,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._order = {"private": dict(private), "memory_bytes": memory_bytes}
        self._children: dict[int, Child] = {}
        self._answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._forking = threading.Lock()  # one order and its answer at a time
        self.is_closed = False
        self._control: socket.socket | None = None
        self._ordered: tuple[int, socket.socket] | None = None  # the latest order, and its link
        self._orders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.ready = self._start()

    def fork(self) -> Child:
        """A new child.

        Raises:
            Gone: There is none now: the system has no room, or the template has ended.
        """
        with self._forking:
            if self.is_closed:
                raise Gone("closed")
            if self._control is None:
                self._start()
            ours, theirs = socket.socketpair()
            self._orders += 1
            self._ordered = self._orders, ours
            try:
                with theirs:
                    self._send({"fork": self._orders}, theirs.fileno())
            except OSError as error:
                ours.close()
                raise Gone(str(error)) from error
            answer = self._answer(FORK_SECONDS)
            if "child" not in answer:
                self._ordered = None
                ours.close()
                raise Gone(str(answer.get("failed")))
            child: Child = answer["child"]
            return child

    def kill(self, child: Child) -> None:
        """kill -9, with whatever it has started; by its parent, which knows whether the number is still its own."""
        with suppress(OSError):
            self._send({"kill": child.pid})

    def close(self) -> None:
        """End the template, and all children with it."""
        self.is_closed = True
        self._end()

    def _end(self) -> None:
        if (control := self._control) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
        if (process := self._process) is not None:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _send(self, order: dict[str, int], *descriptors: int) -> None:
        if (control := self._control) is None:
            raise BrokenPipeError("the template has ended")
        socket.send_fds(control, [json.dumps(order).encode()], descriptors)

    def _start(self) -> dict[str, Any]:
        if self._process is not None:
            self._process.wait()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = spawn(
                [sys.executable, "-P", "-m", "workers.executors.template", str(theirs.fileno())],
                parting_signal=signal.SIGKILL,
                env=self._env,
                pass_fds=[theirs.fileno()],
            )
        self._control, self._answers = control, SimpleQueue()
        control.send(json.dumps(self._order).encode())
        threading.Thread(
            target=self._listen, args=[control, self._answers], name="nursery", daemon=True
        ).start()
        answer = self._answer(START_SECONDS)
        if "ready" not in answer:
            self._end()
            raise Gone("the template of the handlers' processes did not start")
        ready: dict[str, Any] = answer["ready"]
        if ready["threads"] > 1:
            log.warning(telemetry.FORKS_WITH_THREADS, extra=ready)
        return ready

    def _answer(self, within: float) -> dict[str, Any]:
        try:
            return self._answers.get(timeout=within)
        except Empty:
            return {"failed": f"no answer within {within:g} s"}

    def _listen(self, control: socket.socket, answers: SimpleQueue[dict[str, Any]]) -> None:
        while packet := _received(control):
            told = json.loads(packet)
            if "ended" in told:
                if (child := self._children.pop(told["ended"], None)) is not None:
                    child.ended(told["code"])
            elif "born" in told:
                # Registered here: its end may be the next thing to be told. A late one finds its link closed, and ends.
                number, link = self._ordered or (0, control)
                if told["order"] == number:
                    child = self._children[told["born"]] = Child(told["born"], link)
                    answers.put({"child": child})
            else:
                answers.put(told)
        # It has ended, and the kernel ends its children.
        self._control = None
        control.close()
        for pid in list(self._children):
            self._children.pop(pid).ended(None)
        answers.put({"failed": "the template has ended"})


def _received(control: socket.socket) -> bytes:
    try:
        return control.recv(PACKET_BYTES)
    except OSError:
        return b""
