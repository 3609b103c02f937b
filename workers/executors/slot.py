"""One slot of the processes executor: a thread of the worker, and the child that it feeds and waits for."""

from __future__ import annotations

import logging
import signal
import socket
import struct
import threading
import time
from queue import SimpleQueue
from typing import Any

from jobs import telemetry
from jobs.services.outcomes import AttemptOutcome
from workers.execution import Execution
from workers.executors.interface import CLOSE_SECONDS, Report, must_leave
from workers.executors.nursery import Child, Nursery
from workers.executors.wire import Gone, frame, pack_taken, unpack_outcome
from workers.memory import resident_bytes

log = logging.getLogger(__name__)

WORN = 0.75  # of the limit: a child that still holds so much after an attempt gets no other
OVER = 1.25  # of the limit: where the kernel does not keep to it, we do
SEND_SECONDS = 10
FORK_AGAIN_SECONDS = 0.5


class Slot:
    """A thread and its present child. `tell`, `kill` and `tend` may be called from others, and never wait."""

    def __init__(
        self,
        todo: SimpleQueue[Execution | None],
        reports: SimpleQueue[Report],
        nursery: Nursery,
        memory_bytes: int | None,
    ) -> None:
        self._todo, self._reports, self._nursery = todo, reports, nursery
        self._memory = memory_bytes
        self._child: Child | None = None
        self._current: Execution | None = None
        self._lock = threading.Lock()  # of the sending, and of the two above
        self._told: dict[str, Any] | None = None
        self._over_limit = False
        self.thread = threading.Thread(target=self._run, name="slot", daemon=True)
        self.thread.start()

    def tell(self) -> None:
        """Tell the child what has changed for its attempt. From any thread; never waits: `tend` comes again."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._current is None or self._child is None:
                return
            stop = self._current.stop
            state = {
                "lease": str(self._current.taken.lease_id),
                "stop": stop.reason,
                "until": stop.trusted_until,
                "draining": stop.draining(),
            }
            if state != self._told:
                # So short a message is sent as a whole or not at all.
                self._child.link.send(frame(state), socket.MSG_DONTWAIT)
                self._told = state
        except OSError:
            return  # it does not listen, and is killed at its deadline; or it has ended
        finally:
            self._lock.release()

    def kill(self, execution: Execution | None = None) -> None:
        """Kill the child if it runs this attempt, or any. Under the lock: its next one must not be hit."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            current, child = self._current, self._child
            if child is not None and current is not None and execution in (None, current):
                child.doomed = True  # though the attempt may end by itself in this moment
                self._nursery.kill(child)
        finally:
            self._lock.release()

    def tend(self) -> None:
        """One look at the child."""
        self.tell()
        current, child = self._current, self._child
        if current is None or child is None:
            return
        stop = current.stop
        lost = stop.reason == "lease_lost" and time.monotonic() > must_leave(stop)
        if self._memory is not None and resident_bytes(child.pid) > OVER * self._memory:
            self._over_limit = True
        if lost or self._over_limit:
            self.kill(current)

    def _run(self) -> None:
        while self._present() is not None and (execution := self._todo.get()) is not None:
            if (child := self._present()) is None:
                return
            outcome = self._attempt(child, execution)
            if execution.settle():
                self._reports.put((execution, outcome))
        if self._child is not None:
            self._child.link.close()

    def _present(self) -> Child | None:
        """A child that can be used: a new one if the last has died, perhaps while idle. None if there will be none."""
        if self._child is not None and (self._child.gone or self._child.doomed):
            self._drop(self._child)
        while self._child is None:
            try:
                child = self._nursery.fork()
            except Gone as gone:
                if self._nursery.is_closed:
                    return None
                log.warning(telemetry.LOOP_FAILED, extra={"loop": "slot", "error": str(gone)})
                time.sleep(FORK_AGAIN_SECONDS)
                continue
            # A child that does not read must not hold us: sending gives up, receiving does not.
            limit = struct.pack("ll", SEND_SECONDS, 0)
            child.link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._child, self._over_limit = child, False
        return self._child

    def _attempt(self, child: Child, execution: Execution) -> AttemptOutcome | None:
        if (stopped := execution.begin()) is not None:
            return stopped
        forget = execution.stop.listen(self.tell)
        execution.stop.when_trusted(self.tell)
        try:
            self._send_job(child, execution)
            outcome = self._outcome(child, execution)
        except Gone:
            self._nursery.kill(child)  # it may live and talk nonsense
            return self._lost(child, execution)
        finally:
            forget()
            execution.stop.when_trusted(None)
            with self._lock:
                self._current = self._told = None
        self._retire_if_worn(child, outcome)
        return outcome

    def _send_job(self, child: Child, execution: Execution) -> None:
        job = {
            "job": pack_taken(execution.taken),
            "tenant": execution.context.tenant,
            "worker": str(execution.worker_id),
            "until": execution.stop.trusted_until,
        }
        with self._lock:
            self._current = execution
            try:
                child.link.sendall(frame(job))
            except OSError as error:
                raise Gone(str(error)) from error
        self.tell()  # what came meanwhile

    def _outcome(self, child: Child, execution: Execution) -> AttemptOutcome | None:
        while True:
            message = child.receive()
            if "progress" in message:
                execution.context.progress_note = message["progress"]
            elif "leaves" in message:
                execution.stop.ask(message["leaves"])
            elif "outcome" in message:
                told = message["outcome"]
                return None if told is None else unpack_outcome(execution.taken, told)
            else:
                raise Gone("an unknown message")

    def _lost(self, child: Child, execution: Execution) -> AttemptOutcome:
        """The child is gone, or of no use; a new one takes its place."""
        code = child.exit_code(within=CLOSE_SECONDS)
        self._drop(child)
        how, reason = described(code, over_limit=self._over_limit), execution.stop.reason
        log.warning(
            telemetry.HANDLER_PROCESS_ENDED,
            extra={
                "job_id": str(execution.taken.job_id),
                "attempt": execution.taken.attempt,
                "how": how,
                "stop": reason,
            },
        )
        if reason == "timeout":
            return execution.timed_out()
        if reason in ("shutdown", "lease_lost") and code == -signal.SIGKILL:
            return execution.released(reason)  # we have killed it: it has ended for certain
        return execution.crashed(how)

    def _retire_if_worn(self, child: Child, outcome: AttemptOutcome | None) -> None:
        if self._memory is None:
            return
        error = {} if outcome is None or outcome.error is None else outcome.error
        if error.get("type") == "MemoryError" or resident_bytes(child.pid) > WORN * self._memory:
            self._nursery.kill(child)
            self._drop(child)

    def _drop(self, child: Child) -> None:
        with self._lock:
            self._child = None
        child.link.close()


def described(code: int | None, *, over_limit: bool) -> str:
    """How a process ended, for the error of its attempt: "… ended with exit code 1"."""
    if over_limit:
        return "was killed: more memory than --max-memory-mb"
    if code is None:
        return "ended, nobody knows how"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, perhaps for want of memory"
    if code < 0:
        return f"was killed by {_signal_name(-code)}"
    return f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
