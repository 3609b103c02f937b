"""The process of a handler: receives one attempt at a time, runs it in its main thread, tells how it ended.

A second thread listens meanwhile: it hears of stops, sends progress, and ends the process when the worker is gone.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, NoReturn
from uuid import UUID

from django.db import close_old_connections, connections

from workers import memory
from workers.execution import Execution
from workers.executors.interface import must_leave
from workers.executors.wire import Gone, frame, pack_outcome, receive, unpack_taken
from workers.handlers import MISSING, HandlerSpec
from workers.tied import tie

LOOK_SECONDS = 0.1


def serve(
    link: socket.socket,
    *,
    handlers: Mapping[str, HandlerSpec],
    memory_bytes: int | None,
    template: int,
) -> NoReturn:
    """Run attempts until the link is closed. `template` is the process that it was forked from."""
    os.setpgid(0, 0)  # what handlers start can be ended together with it
    tie(signal.SIGKILL)
    if os.getppid() != template:
        os._exit(0)
    if memory_bytes is not None:
        memory.limit_data(memory_bytes)
    Child(link, handlers).run()
    connections.close_all()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Child:
    """Both threads of the process."""

    def __init__(self, link: socket.socket, handlers: Mapping[str, HandlerSpec]) -> None:
        self._link, self._handlers = link, handlers
        self._jobs: SimpleQueue[Execution | None] = SimpleQueue()
        self._drain = threading.Event()
        self._lock = threading.Lock()  # of what is sent, and of the attempt that it is about
        self._current: Execution | None = None
        self._told_progress: dict[str, Any] | None = None

    def run(self) -> None:
        """Attempt after attempt, in this thread."""
        threading.Thread(target=self._listen, name="link", daemon=True).start()
        while (execution := self._jobs.get()) is not None:
            outcome = execution.run()
            told = None if outcome is None else pack_outcome(outcome)
            with self._lock:
                self._current = None
                self._send({"outcome": told})
            close_old_connections()

    def _listen(self) -> None:
        try:
            while True:
                busy = self._current is not None
                ready, _, _ = select.select([self._link], [], [], LOOK_SECONDS if busy else None)
                if ready:
                    self._heed(receive(self._link))
                with self._lock:
                    if self._current is not None:
                        self._look(self._current)
        except Gone:
            if self._current is None:
                self._jobs.put(None)
            else:  # nobody is left to report to
                os._exit(0)
        except BaseException:
            logging.getLogger(__name__).exception("link")
            os._exit(70)  # deaf, it would ignore every stop

    def _heed(self, message: dict[str, Any]) -> None:
        if "job" in message:
            taken = unpack_taken(message["job"])
            execution = Execution(
                taken,
                spec=self._handlers.get(taken.handler, MISSING),
                tenant=message["tenant"],
                sent_at=time.monotonic(),
                drain=self._drain,
                worker_id=UUID(message["worker"]),
            )
            execution.stop.trusted_until = message["until"]
            self._told_progress = None
            self._current = execution
            self._jobs.put(execution)
            return
        if message["draining"]:
            self._drain.set()
        current = self._current
        if current is not None and str(current.taken.lease_id) == message["lease"]:
            current.stop.trusted_until = message["until"]
            if message["stop"] is not None:
                current.stop.ask(message["stop"])

    def _look(self, current: Execution) -> None:
        """Progress to tell; and a lease that is lost, by a clock that all processes of a host share."""
        progress = current.context.progress_note
        if progress is not None and progress is not self._told_progress:
            self._told_progress = progress
            self._send({"progress": progress})
        now = time.monotonic()
        if now >= current.stop.trusted_until:
            current.stop.ask("lease_lost")
        # The worker may be frozen and cannot do it. Another one may begin this job when the lease is over.
        if current.stop.reason == "lease_lost" and now > must_leave(current.stop):
            self._send({"leaves": "lease_lost"})
            os.killpg(0, signal.SIGKILL)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(frame(message))
        except OSError:
            os._exit(0)  # the worker is gone
