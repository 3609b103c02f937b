"""Where the machine reaches into the engine: its clock is ours, and a process can end between any two of its commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from jobs import database
from jobs.failpoints import BEFORE, FailpointReached
from jobs.policies.sharding import place_job
from jobs.services import outcomes, submit
from jobs.transitions import claim, lease
from jobs.transitions.statements import end_leases

BEGIN = datetime(2031, 3, 1, 12, tzinfo=UTC)
TICK = timedelta(milliseconds=1)

# Services that take no time themselves, and the transitions they call.
UNCLOCKED: dict[Any, tuple[str, ...]] = {
    submit: ("create_jobs",),
    outcomes: (
        *("complete_jobs", "retry_jobs", "dead_letter_jobs", "snooze_jobs", "release_jobs"),
        *("acknowledge_cancels", "reject_completion"),
    ),
}


class Seam:
    """The simulated time, the next crash, and ids that are the same whenever an example is run again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reach in, for one test."""
        self.restart()
        for module, names in UNCLOCKED.items():
            for name in names:
                monkeypatch.setattr(module, name, self._clocked(getattr(module, name)))
        monkeypatch.setattr(submit, "place_job", self._placed(place_job))
        nonces = SimpleNamespace(token_hex=lambda size: self.rng.randbytes(size).hex())
        monkeypatch.setattr(claim, "secrets", nonces)
        monkeypatch.setattr(database, "failpoint", self._failpoint)
        # One of these functions makes several commits, so there is a place to die before each statement of it.
        monkeypatch.setattr(lease, "end_leases", self._interruptible(end_leases))

    def restart(self) -> None:
        """Begin a new example."""
        self.now = BEGIN
        self.rng = random.Random(1)
        self._ids, self._dies_at, self._commits = count(1), 0, 0

    def new_id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    @contextmanager
    def dying(self, commit: int) -> Iterator[None]:
        """The process ends just before its commit of this number, from 1; or not, if it makes fewer."""
        self._dies_at, self._commits = commit, 0
        with suppress(FailpointReached):
            yield
        self._dies_at = 0

    def _failpoint(self, name: str, moment: str) -> None:
        if moment == BEFORE and self._dies_at:
            self._commits += 1
            if self._commits == self._dies_at:
                raise FailpointReached(name)

    def _interruptible(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._failpoint("end_leases", BEFORE)
            return function(*args, **kwargs)

        return wrapper

    def _clocked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs, now=self.now)

        return wrapper

    def _placed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(**kwargs: Any) -> Any:
            return function(
                **{**kwargs, "unix_ms": next(self._ids), "rand_b": self.rng.getrandbits(62)}
            )

        return wrapper
