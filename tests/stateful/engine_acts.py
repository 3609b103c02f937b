"""What clients, schedulers and workers do, each as the engine's own processes would: model first, engine then."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from jobs.models import Lease
from jobs.services import outcomes
from jobs.services.dispatch import dispatch
from jobs.services.memory import Memory
from jobs.services.reaping import reap
from jobs.services.requests import parse_request
from jobs.services.submit import submit_job
from jobs.transitions.cancel import acknowledge_cancels
from jobs.transitions.claim import claim_batch
from jobs.transitions.finish import complete_jobs, dead_letter_jobs, retry_jobs, snooze_jobs
from jobs.transitions.lease import extend_leases, release_jobs
from jobs.transitions.take import take_batch
from tests.factories import BOOM, SCHEDULER, SCHEDULER_ID
from tests.stateful.acts import act, chosen
from tests.stateful.model import HEAD_STARTS, POLICIES, Attempt, Ending, ModelJob, after
from tests.stateful.seam import TICK
from tests.stateful.world import HOMES, KINDS, SLOTS, World, answer_of

MOST_OPEN = 6  # jobs at a time

pick = st.integers(0, 63)
picks = st.lists(pick, min_size=1, max_size=3, unique=True)
lanes = st.sampled_from(sorted(HEAD_STARTS))
requests = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["charge", "charge", "mail", "mail", "render", "stranded"]),
        "delay": st.sampled_from([0.0, 0.0, 0.0, 30.0]),
        "lane": lanes,
        "priority": st.sampled_from([0, 0, 40, -40]),
        "budget": st.integers(1, 3),
        "policy": st.sampled_from(sorted(POLICIES)),
        "keyed": st.booleans(),
    }
)
endings = st.sampled_from(
    [
        *(Ending("succeeded"), Ending("failed"), Ending("failed"), Ending("failed", delay=7.0)),
        *(Ending("failed", permanent=True), Ending("snoozed", delay=20.0), Ending("released")),
    ]
)
batches = st.lists(st.tuples(pick, endings), min_size=1, max_size=3, unique_by=lambda one: one[0])


class EngineActs(World):
    """Everything that happens without a person and without a misfortune."""

    # --- clients and the clock ------------------------------------------------------------------------------------

    @act(3, when=lambda self: self._unfinished() < MOST_OPEN, request=requests)
    def submit(self, request: dict[str, Any]) -> None:
        now, number = self._tick(), len(self.model.jobs)
        key = f"order-{number}" if request["keyed"] else None
        body = {
            **KINDS[request["kind"]],
            "payload": {"order": number},
            "delay_seconds": request["delay"],
            "lane": request["lane"],
            "priority": request["priority"],
            "max_attempts": request["budget"],
            "retry": POLICIES[request["policy"]],
            **({"request_key": key} if key else {}),
        }
        made = submit_job(tenant=self.tenant, request=parse_request(body), actor="token:test0001")
        assert made.created
        self.model.jobs[made.job_id] = ModelJob(
            id=made.job_id,
            shard=made.shard,
            pool=HOMES[request["kind"]],
            lane=request["lane"],
            priority=request["priority"],
            policy=request["policy"],
            max_attempts=request["budget"],
            limit=request["budget"],
            due=(now + after(request["delay"]),) * 2,
            key=key,
            body=body,
        )

    @act(1, when=lambda self: self.model.keyed(), number=pick, same=st.booleans())
    def submit_again(self, number: int, same: bool) -> None:
        self._tick()
        (job,) = chosen(self.model.keyed(), [number])
        body = job.body if same else {**job.body, "payload": {"order": -1}}
        answer = answer_of(
            submit_job, tenant=self.tenant, request=parse_request(body), actor="token:test0002"
        )
        assert answer == ((job.id, job.shard, False) if same else "request_key_reused")

    @act(3, seconds=st.sampled_from([0.5, 5.0, 12.0, 31.5, 61.5, 300.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.seam.now += after(seconds)

    @act(3, when=lambda self: self._brinks(), number=pick, step=st.sampled_from([-1, 0, 1]))
    def come_to_a_brink(self, number: int, step: int) -> None:
        """The next act is a millisecond before, at, or after a due time or the end of a lease's tolerance."""
        (brink,) = chosen(self._brinks(), [number])
        self.seam.now = max(self.seam.now, brink + (step - 1) * TICK)

    # --- schedulers -----------------------------------------------------------------------------------------------

    @act(4, when=lambda self: self.model.at("due"))
    def dispatch(self) -> None:
        now = self._tick()
        try:
            done = dispatch(
                shards=self.shards, memory=Memory(), scheduler_id=SCHEDULER_ID, now=now
            )
        finally:  # or it has died between two commits, and the model knows what it was about to do
            leased = set(Lease.objects.values_list("job_id", flat=True))
            expected = 0
            for pool in self.pools:
                workers = [worker.id for worker in self.workers if worker.pool.name == pool]
                best = self.model.best(pool, workers, SLOTS, now, leased)
                expected += self.model.publish(best, pool, now)
        assert (done.published, done.lost) == (expected, 0)

    @act(1, number=pick, others=picks)
    def claim(self, number: int, others: list[int]) -> None:
        """Candidates as a scheduler may hold them: due or not, waiting or not, all of one pool."""
        now = self._tick()
        (first,) = chosen(list(self.model.jobs.values()), [number])
        alike = [job for job in self.model.jobs.values() if job.pool == first.pool]
        jobs = chosen(alike, others)
        pool = first.pool or "gpu"
        expected = self.model.publish(jobs, pool, now)
        done = claim_batch(
            shards=self.shards,
            job_ids=[job.id for job in jobs],
            pool=self.pools[pool],
            actor=SCHEDULER,
            now=now,
        )
        assert (done.published, done.lost) == (expected, len(jobs) - expected)

    @act(4, when=lambda self: self._owned(), part=st.sampled_from(["all", "all", "even", "odd"]))
    def reap(self, part: str) -> None:
        now = self._tick()
        shards = [n for n in self.shards if part == "all" or n % 2 == (part == "odd")]
        seen = sum(job.shard in shards for job in self._owned())
        expected = self.model.expire(shards, now)
        done = reap(shards=shards, actor=SCHEDULER, rng=self.seam.rng, now=now)
        assert (done.seen, done.expired, done.failed) == (seen, expected, 0)

    # --- workers --------------------------------------------------------------------------------------------------

    @act(
        8,
        when=lambda self: self.model.at("published"),
        number=pick,
        limit=st.integers(1, SLOTS + 1),
    )
    def take(self, number: int, limit: int) -> None:
        now = self._tick()
        (worker,) = chosen(self.workers, [number])
        waiting = self.model.takeable(worker.pool.name)
        waiting = [job for job in waiting if job.body["handler"] in worker.handlers]
        # Which of several with one rank come first is left open, so none of them is left behind.
        while limit < len(waiting) and waiting[limit - 1].rank == waiting[limit].rank:
            limit += 1
        taken = take_batch(
            shards=self.shards,
            pool_id=worker.pool.pk,
            handlers=worker.handlers,
            worker_id=worker.id,
            limit=limit,
            now=now,
        )
        found = {one.job_id: one for one in taken}
        assert len(taken) == len(found)
        assert found.keys() == {job.id for job in waiting[:limit]}
        for job in waiting[:limit]:
            one = found[job.id]
            assert one.lease_id == job.lease
            assert (one.attempt, one.token, one.attempt_limit) == (job.attempt,) * 2 + (job.limit,)
            self.model.take(job, worker.id, now)
            attempt = Attempt(job.id, one.lease_id, worker.id)
            self.taken[one.lease_id] = one
            self.attempts.append(attempt)
            worker.holds.append(attempt)

    @act(2, when=lambda self: self.attempts, number=pick, others=picks)
    def beat(self, number: int, others: list[int]) -> None:
        """For what the worker holds, and for leases that it lost or that were never its own."""
        now = self._tick()
        (worker,) = chosen(self.workers, [number])
        attempts = list(dict.fromkeys([*worker.holds, *chosen(self.attempts, others)]))
        expected = self.model.extend(attempts, worker.id, now)
        answer = extend_leases(
            shards=self.shards,
            worker_id=worker.id,
            lease_ids=[attempt.lease for attempt in attempts],
            now=now,
        )
        assert answer == expected

    @act(8, when=lambda self: self._busy(), number=pick, batch=batches)
    def report(self, number: int, batch: list[tuple[int, Ending]]) -> None:
        """Some of what a worker believes to hold; a part of it may be lost."""
        (worker,) = chosen(self._busy(), [number])
        attempts = chosen(worker.holds, [at for at, _ in batch])
        how = [ending for _, ending in batch]
        self._report(worker.id, list(zip(attempts, how, strict=False)))
        worker.holds = [one for one in worker.holds if one not in attempts]

    @act(2, when=lambda self: self.attempts, number=pick, how=endings)
    def report_late_or_again(self, number: int, how: Ending) -> None:
        """By the process that was once given the attempt, whatever has become of it and of the process."""
        (attempt,) = chosen(self.attempts, [number])
        self._report(attempt.worker, [(attempt, how)])

    @act(2, when=lambda self: self.model.at("running"), number=pick, by_handler=st.booleans())
    def stop_as_asked(self, number: int, by_handler: bool) -> None:
        """A handler that was asked to stop did, or one that decided for itself that its job is void."""
        running = self.model.at("running")
        (job,) = chosen([job for job in running if job.asked] or running, [number])
        ending = Ending("cancelled", by_handler=by_handler or not job.asked)
        assert job.lease is not None
        assert job.worker is not None
        self._report(job.worker, [(Attempt(job.id, job.lease, job.worker), ending)])

    @act(1, when=lambda self: self.model.at("running"), number=pick)
    def report_by_somebody_else(self, number: int) -> None:
        """The lease is right and the process is not: nothing may move."""
        now = self._tick()
        (job,) = chosen(self.model.at("running"), [number])
        mine: dict[str, Any] = {"shards": self.shards, "worker_id": self.seam.new_id(), "now": now}
        item = {"delay": 0.0, "reason": "attempts_exhausted", "cause": "error", "error": BOOM}
        assert job.lease is not None
        items = {job.lease: item}
        assert complete_jobs(results={job.lease: None}, **mine) == set()
        assert retry_jobs(failures=items, **mine) == set()
        assert dead_letter_jobs(failures=items, **mine) == set()
        assert snooze_jobs(snoozes=items, **mine) == set()
        assert release_jobs(reasons=items, **mine) == set()
        assert acknowledge_cancels(stopped=items, by_handler=True, **mine) == set()

    def _report(self, worker: UUID, reports: list[tuple[Attempt, Ending]]) -> None:
        expected = self.model.report(reports, self._tick())
        refused = outcomes.report_outcomes(
            shards=self.shards,
            worker_id=worker,
            outcomes=[self._outcome(*report) for report in reports],
            rng=self.seam.rng,
        )
        assert {outcome.taken.lease_id for outcome in refused} == expected

    def _outcome(self, attempt: Attempt, ending: Ending) -> outcomes.AttemptOutcome:
        return outcomes.AttemptOutcome(
            taken=self.taken[attempt.lease],
            ending=outcomes.Ending(ending.kind),
            error=BOOM if ending.kind == "failed" else None,
            permanent=ending.permanent,
            delay_seconds=ending.delay,
            by_handler=ending.by_handler,
        )
