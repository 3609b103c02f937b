"""The machine: what the engine's processes do, what people decide in between, and what goes wrong meanwhile.

Each act asks the model first and the engine then, and the answers must agree.
"""

from __future__ import annotations

from collections import Counter

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from jobs.models import Worker
from jobs.transitions.cancel import cancel_job
from jobs.transitions.edit import edit_job
from jobs.transitions.requeue import discard_dead_letter, requeue_dead_letter
from tests.stateful.acts import act, acts_of, chosen, next_step
from tests.stateful.engine_acts import EngineActs, batches, endings, lanes, pick, requests
from tests.stateful.model import Ending, ModelJob, after
from tests.stateful.seam import Seam
from tests.stateful.world import SLOTS, answer_of


class EngineMachine(EngineActs):
    """All acts, drawn one after the other."""

    def __init__(self, seam: Seam, reached: Counter[str]) -> None:
        super().__init__(seam, reached)
        self.acts = acts_of(EngineMachine)

    @initialize(first=st.lists(requests, min_size=2, max_size=4))
    def begin(self, first):
        for request in first:
            self.submit(request)

    @rule(step=next_step())
    def go_on(self, step):
        name, arguments = step
        getattr(self, name)(**arguments)

    # --- people ---------------------------------------------------------------------------------------------------

    @act(
        3,
        when=lambda self: self.model.at("running"),
        number=pick,
        if_running=st.sampled_from(["ask", "ask", "refuse"]),
    )
    def cancel_what_runs(self, number: int, if_running: str) -> None:
        self._cancel(self.model.at("running"), number, if_running)

    @act(1, number=pick, if_running=st.sampled_from(["ask", "refuse"]))
    def cancel(self, number: int, if_running: str) -> None:
        self._cancel(list(self.model.jobs.values()), number, if_running)

    def _cancel(self, jobs: list[ModelJob], number: int, if_running: str) -> None:
        now = self._tick()
        (job,) = chosen(jobs, [number])
        expected = self.model.cancel(job, if_running)
        answer = answer_of(
            cancel_job,
            shard=job.shard,
            job_id=job.id,
            actor="user:anna",
            reason="sold out",
            if_running=if_running,
            now=now,
        )
        assert answer == expected

    @act(
        1,
        when=lambda self: self.model.at("due"),
        number=pick,
        delay=st.sampled_from([None, 0.0, 5.0, 60.0]),
        lane=st.none() | lanes,
    )
    def edit_what_waits(self, number: int, delay: float | None, lane: str | None) -> None:
        self._edit(self.model.at("due"), number, delay, lane)

    @act(1, number=pick)
    def edit(self, number: int) -> None:
        self._edit(list(self.model.jobs.values()), number, 0.0, None)

    def _edit(
        self, jobs: list[ModelJob], number: int, delay: float | None, lane: str | None
    ) -> None:
        now = self._tick()
        (job,) = chosen(jobs, [number])
        due_at = None if delay is None else now + after(delay)
        expected = self.model.edit(job, due_at, lane)
        answer = answer_of(
            edit_job,
            shard=job.shard,
            job_id=job.id,
            actor="user:anna",
            due_at=due_at,
            lane_id=self.lanes[lane] if lane else None,
            tags=["vip"],
            now=now,
        )
        assert answer == (expected or None)

    @act(
        2, when=lambda self: self._mourned(), number=pick, delay=st.sampled_from([0.0, 5.0, 60.0])
    )
    def requeue(self, number: int, delay: float) -> None:
        now = self._tick()
        (job,) = chosen(self._mourned(), [number])
        letter = self._letter(job)
        expected = self.model.requeue(job, delay, now)
        answer = answer_of(
            requeue_dead_letter,
            shard=job.shard,
            dead_letter_id=letter,
            actor="user:anna",
            note="provider is back",
            delay_seconds=delay,
            now=now,
        )
        assert answer == (expected or job.id)

    @act(1, when=lambda self: self._mourned(), number=pick)
    def discard(self, number: int) -> None:
        now = self._tick()
        (job,) = chosen(self._mourned(), [number])
        letter = self._letter(job)
        expected = self.model.discard(job)
        answer = answer_of(
            discard_dead_letter,
            shard=job.shard,
            dead_letter_id=letter,
            actor="user:anna",
            note="obsolete",
            now=now,
        )
        assert answer == (expected or job.id)

    # --- misfortunes ----------------------------------------------------------------------------------------------

    @act(1, when=lambda self: self._busy(), number=pick)
    def kill_a_worker(self, number: int) -> None:
        """Its attempts are never reported by it; another process takes its place."""
        (killed,) = chosen(self._busy(), [number])
        Worker.objects.filter(pk=killed.id).delete()
        at = self.workers.index(killed)
        self.workers[at] = self._start(killed.pool.name, killed.handlers)

    @act(
        2,
        what=st.sampled_from(["dispatch", "reap", "take", "report"]),
        number=pick,
        batch=batches,
    )
    def die_before_a_commit(self, what: str, number: int, batch: list[tuple[int, Ending]]) -> None:
        """All that it wrote is undone, and nobody but the dead process has seen it."""
        jobs, attempts = self.model.copy(), list(self.attempts)
        holds = [list(worker.holds) for worker in self.workers]
        with transaction.atomic():
            self._work(what, number, batch)
            transaction.set_rollback(True)
        self.model.jobs, self.attempts = jobs, attempts
        for worker, held in zip(self.workers, holds, strict=True):
            worker.holds = held

    @act(
        2,
        what=st.sampled_from(["reap", "report", "dispatch"]),
        number=pick,
        batch=batches,
        commit=st.integers(1, 4),
    )
    def die_between_two_commits(
        self, what: str, number: int, batch: list[tuple[int, Ending]], commit: int
    ) -> None:
        """What it had committed stays, and every job is either moved or not: what was to be reported is known still."""
        self.before = self.model.copy()
        with self.seam.dying(commit):
            self._work(what, number, batch)

    @act(1, when=lambda self: self.model.at("published"), number=pick)
    def take_and_hear_no_answer(self, number: int) -> None:
        """The worker does not know what it was given: its leases run out."""
        (worker,) = chosen(self.workers, [number])
        held = list(worker.holds)
        self.take(number, SLOTS)
        worker.holds = held

    @act(1, when=lambda self: self._busy(), number=pick, how=endings)
    def report_and_hear_no_answer(self, number: int, how: Ending) -> None:
        """The worker reports again what was accepted, or refused, already."""
        (worker,) = chosen(self._busy(), [number])
        attempt = worker.holds.pop()
        self._report(worker.id, [(attempt, how)])
        self.rows_are_as_the_model_says()
        self._report(worker.id, [(attempt, how)])

    def _work(self, what: str, number: int, batch: list[tuple[int, Ending]]) -> None:
        match what:
            case "dispatch":
                self.dispatch()
            case "reap":
                self.reap("all")
            case "take":
                self.take(number, SLOTS)
            case "report":
                (worker,) = chosen(self.workers, [number])
                held = [one for one in worker.holds if self._is_held(one)]
                how = [ending for _, ending in batch]
                self._report(worker.id, list(zip(held, how, strict=False)))
