"""The template: a process without threads that has imported every handler, and turns into a handler's process by a fork.

A fork of the worker itself would copy locks that its threads hold; a fresh interpreter would take half a second of
processor time after each crash. Run as a program by `nursery.py`, which sends orders over a socket: {"fork": number} with
the child's end of a connection, {"kill": pid}. It tells {"ready": …}, {"born": pid, "order": number}, {"failed": why}, {"ended": pid,
"code": …}. It ends with the worker, and the kernel ends its children with it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

import django

from workers.memory import data_bytes

PACKET_BYTES = 1 << 16


class Template:
    """Serves until the other end is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._children: dict[int, int] = {}  # readable once the child has ended → its process id

    def prepare(self) -> None:
        """Load settings and handlers. What only the settings need leaves the environment again."""
        # A supervisor's signal goes to all processes of the service; the worker alone decides when these end. Not
        # ignored, for programs that handlers start would inherit that.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        faulthandler.register(signal.SIGQUIT, all_threads=True)
        order = json.loads(self._control.recv(PACKET_BYTES))
        self._memory_bytes: int | None = order["memory_bytes"]
        os.environ.update(order["private"])
        django.setup()
        # Only now: these need the apps.
        from django.db import connections

        from workers.executors import child
        from workers.handlers import discover

        self._serve_child, self._handlers = child.serve, discover()
        for name in order["private"]:
            os.environ.pop(name, None)
        connections.close_all()  # an import may have asked the database
        gc.collect()
        gc.freeze()  # a collection in a child must not copy all of these pages
        self._tell(ready={"data_bytes": data_bytes(), "threads": threading.active_count()})

    def serve(self) -> None:
        """Fork and kill as ordered, and tell of every end."""
        while True:
            control = self._control.fileno()
            readable, _, _ = select.select([control, *self._children], [], [])
            for end in self._children.keys() & set(readable):
                self._bury(end)
            if control in readable and not self._obey():
                return

    def _obey(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
        if not packet:
            return False
        order = json.loads(packet)
        if "kill" in order:
            if (
                order["kill"] in self._children.values()
            ):  # else it has ended, and the number may be another's
                _kill(order["kill"])
            return True
        sys.stdout.flush()  # else what waits there is written by both
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(failed=str(error))
        else:
            if pid == 0:
                self._become_child(descriptors[0])
            with suppress(OSError):  # it does the same; whoever comes first
                os.setpgid(pid, pid)
            self._children[os.pidfd_open(pid)] = pid
            self._tell(born=pid, order=order["fork"])
        os.close(descriptors[0])
        return True

    def _become_child(self, link: int) -> None:
        try:
            self._control.close()
            for descriptor in self._children:
                os.close(descriptor)
            self._serve_child(
                socket.socket(fileno=link),
                handlers=self._handlers,
                memory_bytes=self._memory_bytes,
                template=self._pid,
            )
        except BaseException:  # noqa: BLE001 (it never comes back into the template's loop)
            traceback.print_exc()
        finally:
            os._exit(70)

    def _bury(self, end: int) -> None:
        pid = self._children.pop(end)
        _kill(
            pid
        )  # programs that it started and left; until it is waited for, its number is nobody else's
        os.close(end)
        _, status = os.waitpid(pid, 0)
        self._tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _tell(self, **what: Any) -> None:
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the worker has ended: the next read says so
            self._control.send(json.dumps(what).encode())


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    template = Template(socket.socket(fileno=int(sys.argv[1])))
    template.prepare()
    template.serve()
