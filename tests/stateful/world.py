"""The world of a story: one tenant, its model, its workers and its clock, in a transaction that never commits.

What a process would commit is a savepoint of it. After every act, rows and model are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from hypothesis.stateful import RuleBasedStateMachine, invariant

from jobs.errors import JobError
from jobs.models import DeadLetter, Lane, Pool, Tenant, Worker
from jobs.queries.catalog import catalog, forget
from jobs.transitions.take import Taken
from tests.factories import all_shards
from tests.stateful.comparison import compare
from tests.stateful.model import TOLERANCE, Attempt, Model, ModelJob, after
from tests.stateful.seam import TICK, Seam

TENANT = 900_001  # always the same, for the shards of its jobs follow from it
SLOTS = 2  # of each worker
KINDS: dict[str, dict[str, Any]] = {
    "charge": {"handler": "billing.charge"},
    "mail": {"handler": "mail.send"},
    "render": {"handler": "billing.charge", "labels": {"gpu": "a100"}},
    "stranded": {"handler": "mail.send", "labels": {"gpu": "a100"}},  # no worker there knows it
}
HOMES = {"charge": "plain", "mail": "plain", "render": "gpu", "stranded": ""}


@dataclass
class Process:
    """A worker: its row, and the attempts that it believes to hold."""

    id: UUID
    pool: Pool
    handlers: list[str]
    holds: list[Attempt]


class World(RuleBasedStateMachine):
    """One tenant, three workers in two pools, any number of schedulers and people."""

    def __init__(self, seam: Seam, reached: Counter[str]) -> None:
        """Pools, handlers and routes are committed already; `reached` counts the events of all stories."""
        super().__init__()
        self.seam, self.reached, self.model = seam, reached, Model()
        seam.restart()
        forget()
        catalog()  # kept from here on: one of a transaction that has written is read again at every use
        self.shards = all_shards()
        self.lanes: dict[str, int] = dict(Lane.objects.values_list("name", "pk"))
        self.pools = {pool.name: pool for pool in Pool.objects.order_by("pk")}
        self.before: dict[UUID, ModelJob] = {}
        self.touched = True  # since the last comparison
        self.taken: dict[UUID, Taken] = {}
        self.attempts: list[Attempt] = []  # all that were ever given to a worker
        self._story = transaction.atomic()
        self._story.__enter__()
        self.tenant = Tenant.objects.create(pk=TENANT, slug="acme", name="Acme")
        both = ["billing.charge", "mail.send"]
        self.workers = [
            self._start("plain", both),
            self._start("plain", both),
            self._start("gpu", both[:1]),
        ]

    def teardown(self) -> None:
        for job in self.model.jobs.values():
            self.reached.update(job.told)
        transaction.set_rollback(True)
        self._story.__exit__(None, None, None)
        forget()

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        if self.touched:
            compare(self.model, self.before, tenant=TENANT, shards=self.shards)
        self.before, self.touched = {}, False

    def _tick(self) -> datetime:
        """The time of the next act; no two happen at one moment."""
        self.touched = True
        self.seam.now += TICK
        return self.seam.now

    def _start(self, pool: str, handlers: list[str]) -> Process:
        """A worker process whose row counts as alive for the whole story."""
        row = Worker.objects.create(
            id=self.seam.new_id(),
            pool=self.pools[pool],
            host="host-a",
            pid=1,
            slots=SLOTS,
            handlers=handlers,
            last_seen_at=self.seam.now + timedelta(days=365),
        )
        return Process(row.pk, self.pools[pool], handlers, [])

    def _brinks(self) -> list[datetime]:
        found = [job.due[0] for job in self.model.at("due")]
        found += [
            job.expires_at + after(TOLERANCE)
            for job in self._owned()
            if job.expires_at is not None
        ]
        return [moment for moment in found if moment > self.seam.now + 2 * TICK]

    def _unfinished(self) -> int:
        return len(self.model.at("due", "published", "running"))

    def _owned(self) -> list[ModelJob]:
        return self.model.at("published", "running")

    def _busy(self) -> list[Process]:
        return [worker for worker in self.workers if worker.holds]

    def _is_held(self, attempt: Attempt) -> bool:
        return self.model.jobs[attempt.job_id].held_by(attempt.lease, attempt.worker)

    def _mourned(self) -> list[ModelJob]:
        """Jobs that died at least once: of the others there is no letter to decide about."""
        return [job for job in self.model.jobs.values() if "dead" in job.told]

    def _letter(self, job: ModelJob) -> UUID:
        """The open dead letter of this job, or the last one."""
        found = DeadLetter.objects.filter(job_id=job.id).order_by("-died_at").first()
        assert found is not None
        return found.pk


def answer_of(function: Callable[..., Any], **given: Any) -> Any:
    """What it returned, or the code of its refusal."""
    try:
        return function(**given)
    except JobError as refusal:
        return refusal.code
