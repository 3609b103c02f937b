"""Receivers of the outside world, for handlers of tests: what they are sent, they log and apply, each by its own rule.

The log is the receiver: one line of JSON a delivery, added under a lock with one write, and all that it knows of the
past. So processes and threads share a receiver by its file, and a process killed in between has either delivered or
not. `dk history verify --receiver-log` reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID


class Delivery(NamedTuple):
    """One call of a receiver. `applied` says whether it took effect."""

    token: str
    job: UUID
    lease_token: int
    applied: bool


class Receiver(ABC):
    """One end of a log. Make one a process and keep it: it reads only what others added since."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._read = 0

    def deliver(self, idempotency_token: str, job_id: UUID, lease_token: int) -> bool:
        """True if this delivery took effect, false if it was collapsed or refused."""
        with self._lock:
            file = os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._catch_up(file)
                asked = Delivery(idempotency_token, job_id, lease_token, applied=True)
                made = asked._replace(applied=self._accepts(asked))
                self._read += os.write(file, _line(made))
                self._remember(made)
            finally:
                os.close(file)  # and the lock is free
        return made.applied

    def deliveries(self, job_id: UUID | None = None) -> list[Delivery]:
        """All calls so far in order; of one job if asked."""
        text = self._log.read_bytes() if self._log.exists() else b""
        return [one for one in map(_parsed, text.splitlines()) if job_id in (None, one.job)]

    @abstractmethod
    def _accepts(self, asked: Delivery) -> bool:
        """Whether it takes effect, by what is remembered."""

    @abstractmethod
    def _remember(self, made: Delivery) -> None:
        """Learn from a delivery, whoever made it."""

    def _catch_up(self, file: int) -> None:
        news = os.pread(file, os.fstat(file).st_size - self._read, self._read)
        for line in news.splitlines():
            self._remember(_parsed(line))
        self._read += len(news)


class ApplyOnce(Receiver):
    """Collapses by the idempotency token: the first delivery takes effect, the others change nothing."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self._applied: set[str] = set()

    def _accepts(self, asked: Delivery) -> bool:
        return asked.token not in self._applied

    def _remember(self, made: Delivery) -> None:
        self._applied.add(made.token)


class Fencing(Receiver):
    """Keeps the largest fencing token of each job and refuses any smaller one."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self._largest: dict[UUID, int] = {}

    def _accepts(self, asked: Delivery) -> bool:
        return asked.lease_token >= self._largest.get(asked.job, 0)

    def _remember(self, made: Delivery) -> None:
        self._largest[made.job] = max(made.lease_token, self._largest.get(made.job, 0))


class Naive(Receiver):
    """Applies whatever comes: the receiver that Duekeeper cannot help. The checkers must catch it."""

    def _accepts(self, asked: Delivery) -> bool:
        return True

    def _remember(self, made: Delivery) -> None:
        pass


def _line(made: Delivery) -> bytes:
    said = {**made._asdict(), "job": str(made.job), "at": datetime.now(UTC).isoformat()}
    return f"{json.dumps(said)}\n".encode()


def _parsed(line: bytes) -> Delivery:
    said = json.loads(line)
    return Delivery(said["token"], UUID(said["job"]), said["lease_token"], said["applied"])
