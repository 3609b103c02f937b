"""A crash test on its stage: the job in its place, who acts on it, and what has happened in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from jobs.transitions.take import Taken
from tests.factories import take
from tests.support.places import Standing, Start, stand
from tests.support.receivers import ApplyOnce

CHARGE, REFUND = "billing.charge", "billing.refund"
SOON = {"kind": "fixed", "base_seconds": 0.02, "jitter": 0.0}

ONCE = "created leased started succeeded"
TWICE = "created leased started failed leased started succeeded"


class Scene(NamedTuple):
    """A job in its place; `taken` is the attempt that a worker has begun."""

    it: Standing
    taken: Taken | None
    log: Path  # of the receiver that handlers call


type Act = Callable[[Scene], object]


@dataclass(frozen=True, kw_only=True)
class Story:
    """One process at work on one job.

    Attributes:
        act: What it does; the commit in question is its last.
        before, after: All events in the end, when it died before the commit and right after it.
        start: Where the job is.
        begun: A worker has taken it and its handler has done its work, up to the report.
        prepare: What else had happened.
        repeats: The client asks again, having had no answer.
        fields: Of the job.
        alike: Leaves the rows that the commit leaves, where `act` does more, or cannot be undone by a surrounding
            transaction.
        alone: The commit and nothing else, where `act` does more.
    """

    act: Act
    before: str
    after: str
    start: Start = Start.DUE
    begun: bool = False
    prepare: Act = lambda scene: None
    repeats: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    alike: Act | None = None
    alone: Act | None = None

    def arrange(self, log: Path) -> Scene:
        """Everything up to the act, committed."""
        start = Start.PUBLISHED if self.begun else self.start
        it = stand(start, bystanders=False, **{"retry": SOON, **self.fields})
        scene = Scene(it, take(it.job_id) if self.begun else None, log)
        if self.begun:
            deliver(log, "acme/order-8812", it.job_id, 1)
        self.prepare(scene)
        return scene


def deliver(log: Path, token: str, job_id: UUID, lease_token: int) -> None:
    ApplyOnce(log).deliver(token, job_id, lease_token)
