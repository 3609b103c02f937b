"""F17, KF-29, KF-30 and KF-31: a cancel against everything that can move the job at the same instant.

The answer a caller got must equal what is committed, and a job whose cancel was accepted never runs again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from jobs.clock import database_now
from jobs.errors import AlreadyFinished, NotWaiting
from jobs.models import Job, JobEvent, Lease, Pool
from jobs.policies.retry import RetryPolicy
from jobs.services.outcomes import Ending, report_outcomes
from jobs.states import JobStatus, Place
from jobs.transitions.cancel import CancelOutcome, acknowledge_cancels, cancel_job
from jobs.transitions.claim import claim_batch
from jobs.transitions.edit import edit_job
from jobs.transitions.finish import complete_jobs, dead_letter_jobs, retry_jobs, snooze_jobs
from jobs.transitions.lease import expire_published, expire_started, extend_leases, release_jobs
from jobs.transitions.take import Taken, take_batch
from tests.factories import BOOM, SCHEDULER, WORKER, all_shards, make_pool
from tests.support.books import assert_balanced
from tests.support.crowd import HANDLER, Member, make_crowd, publish_all, take_all
from tests.support.race import RACES, ROUNDS, Pace, Team
from workers.execution import Execution
from workers.handlers import HandlerSpec, JobContext

pytestmark = RACES

LATER = timedelta(hours=1)  # beyond every lease, and beyond the time an unused publish is kept
RETRY = {"delay": 0.0, "cause": "error", "error": BOOM}
EXPIRY = {"delay": 0.0, "cause": "lease_expired", "error": BOOM}


@dataclass(frozen=True)
class Rival:
    """What races with the cancel: where the job stands, the call, and whether the call came first."""

    place: Place
    call: Callable[[Member, Pool], Any]
    came_first: Callable[[Any, Any], bool] = lambda answer, cancelled: bool(answer)


def held(member: Member) -> dict[str, Any]:
    return {"shards": [member.shard], "worker_id": WORKER}


def claim(member: Member, pool: Pool) -> int:
    return claim_batch(
        shards=[member.shard], job_ids=[member.job_id], pool=pool, actor=SCHEDULER
    ).published


def take(member: Member, pool: Pool) -> list[Taken]:
    """Only this round's lease is published, so that is the one it takes."""
    return take_batch(
        shards=[member.shard], pool_id=pool.pk, handlers=[HANDLER], worker_id=WORKER, limit=1
    )


def edit(member: Member, pool: Pool) -> bool:
    try:
        edit_job(shard=member.shard, job_id=member.job_id, actor="user:otto", tags=["vip"])
    except NotWaiting:
        return False
    return True


def expire(member: Member, pool: Pool, *, again: bool) -> set[UUID]:
    death = {**EXPIRY, "reason": "permanent_error"}
    return expire_started(
        shards=[member.shard],
        actor=SCHEDULER,
        retries={member.lease_id: EXPIRY} if again else {},
        deaths={} if again else {member.lease_id: death},
        now=database_now() + LATER,
    )


def before_the_request(answer: Any, cancelled: Any) -> bool:
    """Of two writes that both succeed: the cancel found no worker any more, or none yet."""
    return bool(answer) and cancelled != CancelOutcome("cancel_requested")


RIVALS = {
    "claim": Rival(Place.DUE_ENTRY, claim),
    "edit": Rival(Place.DUE_ENTRY, edit),
    "take": Rival(Place.PUBLISHED, take),
    "publish expiry": Rival(
        Place.PUBLISHED,
        lambda m, _: expire_published(
            shards=[m.shard],
            lease_ids=[m.lease_id],
            actor=SCHEDULER,
            now=database_now() + LATER,
        ),
    ),
    "complete": Rival(
        Place.RUNNING,
        lambda m, _: complete_jobs(results={m.lease_id: {"paid": True}}, **held(m)),
        before_the_request,
    ),
    "retry": Rival(
        Place.RUNNING, lambda m, _: retry_jobs(failures={m.lease_id: RETRY}, **held(m))
    ),
    "dead letter": Rival(
        Place.RUNNING,
        lambda m, _: dead_letter_jobs(
            failures={m.lease_id: {**RETRY, "reason": "permanent_error"}}, **held(m)
        ),
    ),
    "snooze": Rival(
        Place.RUNNING,
        lambda m, _: snooze_jobs(snoozes={m.lease_id: {"delay": 0.0, "reason": ""}}, **held(m)),
    ),
    "release": Rival(
        Place.RUNNING, lambda m, _: release_jobs(reasons={m.lease_id: {"reason": ""}}, **held(m))
    ),
    "heartbeat": Rival(
        Place.RUNNING,
        lambda m, _: extend_leases(lease_ids=[m.lease_id], **held(m)),
        lambda answer, _: not all(answer.values()),
    ),
    "expiry to a retry": Rival(Place.RUNNING, partial(expire, again=True), before_the_request),
    "expiry to the dead letters": Rival(
        Place.RUNNING, partial(expire, again=False), before_the_request
    ),
}


def cancel(member: Member) -> CancelOutcome:
    return cancel_job(
        shard=member.shard, job_id=member.job_id, actor="user:anna", reason="order withdrawn"
    )


def race(name: str, rounds: int) -> tuple[dict[UUID, Any], list[int]]:
    """Rounds of cancel against the rival; the cancels' answers by job, and how often each side came first."""
    rival, pool, pace = RIVALS[name], make_pool(), Pace()
    crowd = make_crowd(rounds, place=Place.DUE_ENTRY if rival.call is take else rival.place)
    answers: dict[UUID, Any] = {}
    with Team(2) as team:
        for member in crowd:
            if rival.call is take:
                claim(member, pool)
            answer, moved = team.together(
                pace.first(partial(cancel, member)),
                pace.second(partial(rival.call, member, pool)),
            )
            pace.won(int(rival.came_first(moved, answer)))
            answers[member.job_id] = answer
    return answers, pace.wins


def assert_answers_were_true(answers: dict[UUID, Any]) -> None:
    """Each answer against the committed rows; a job that still has a lease must carry the wish to stop."""
    jobs = Job.objects.in_bulk(list(answers))
    asked = set(Lease.objects.filter(cancel_requested=True).values_list("job_id", flat=True))
    too_late = set(
        JobEvent.objects.filter(kind="succeeded", detail__cancel="too_late").values_list(
            "job_id", flat=True
        )
    )
    for job_id, answer in answers.items():
        status = jobs[job_id].status
        match answer:
            case CancelOutcome("cancelled", False):
                assert status == JobStatus.CANCELLED
            case CancelOutcome("cancel_requested", False):
                honoured = status == JobStatus.CANCELLED
                assert (
                    honoured
                    or (status == JobStatus.LEASED and job_id in asked)
                    or (status == JobStatus.SUCCEEDED and job_id in too_late)
                )
            case AlreadyFinished():
                assert status == answer.current
                assert job_id not in too_late
            case _:
                pytest.fail(f"a cancel was answered {answer!r}")


def run_whatever_is_left() -> None:
    """Let holders fail, everything due be claimed, taken and completed: no accepted cancel may come back."""
    for lease in Lease.objects.running():
        failure = {lease.pk: RETRY}
        if lease.cancel_requested:
            assert not retry_jobs(shards=[lease.shard], worker_id=WORKER, failures=failure)
            stopped = {lease.pk: {"cancel": "honoured", "error": BOOM}}
            assert acknowledge_cancels(shards=[lease.shard], worker_id=WORKER, stopped=stopped)
        else:
            assert retry_jobs(shards=[lease.shard], worker_id=WORKER, failures=failure)
    waiting = list(Job.objects.filter(status="scheduled").values_list("pk", flat=True))
    publish_all(waiting)
    take_all()
    results = dict.fromkeys(Lease.objects.running().values_list("pk", flat=True))
    assert len(complete_jobs(shards=all_shards(), worker_id=WORKER, results=results)) == len(
        results
    )


@pytest.mark.parametrize("rival", RIVALS)
def test_f17_the_answer_to_a_cancel_is_what_was_committed(rival):
    answers, wins = race(rival, ROUNDS)
    assert_balanced()
    assert_answers_were_true(answers)
    run_whatever_is_left()
    assert_balanced()
    accepted = {job_id for job_id, answer in answers.items() if isinstance(answer, CancelOutcome)}
    left = Job.objects.filter(pk__in=accepted).exclude(status="cancelled")
    assert set(left.values_list("status", flat=True)) <= {"succeeded"}
    assert left.count() == JobEvent.objects.filter(detail__cancel="too_late").count()
    assert min(wins) > 0, f"one side always came first: {wins}"


def test_kf31_five_hundred_completions_against_cancels_leave_one_final_event_each():
    answers, wins = race("complete", max(500, ROUNDS))
    finals = Counter(
        JobEvent.objects.filter(kind__in=["succeeded", "cancelled"]).values_list(
            "job_id", flat=True
        )
    )
    asked = Lease.objects.filter(cancel_requested=True)
    stopped = {lease.pk: {"cancel": "honoured"} for lease in asked}
    assert set(finals.values()) <= {1}
    assert len(finals) + len(stopped) == len(answers)
    assert acknowledge_cancels(shards=all_shards(), worker_id=WORKER, stopped=stopped) == set(
        stopped
    )
    assert_balanced()
    assert_answers_were_true(answers)
    assert min(wins) > 0, f"one side always came first: {wins}"


def test_kf30_a_cancel_between_claim_and_start_is_never_followed_by_a_side_effect():
    """A worker that takes and runs at once, and a cancel 0 to 20 ms after the claim."""
    effects: Counter[UUID] = Counter()

    def charge(ctx: JobContext) -> None:
        effects[ctx.job_id] += 1

    spec = HandlerSpec(
        name=HANDLER,
        function=charge,
        timeout_seconds=30,
        max_attempts=3,
        retry=RetryPolicy.from_stored(None),
        transactional=False,
    )
    pool, rng = make_pool(), random.Random(5)
    crowd = make_crowd(100)
    answers: dict[UUID, Any] = {}

    def work(member: Member) -> None:
        for taken in take(member, pool):
            execution = Execution(
                taken,
                spec=spec,
                tenant="acme",
                sent_at=time.monotonic(),
                drain=threading.Event(),
                worker_id=WORKER,
            )
            outcome = execution.run()
            assert outcome is not None
            assert outcome.ending is Ending.SUCCEEDED
            report_outcomes(
                shards=[member.shard], worker_id=WORKER, outcomes=[outcome], rng=random.Random(1)
            )

    def late(seconds: float, call: Callable[[], Any]) -> Any:
        time.sleep(seconds)
        return call()

    with Team(2) as team:
        for member in crowd:
            claim(member, pool)
            answer, _ = team.together(
                partial(late, rng.uniform(0, 0.02), partial(cancel, member)),
                partial(late, rng.uniform(0, 0.02), partial(work, member)),
            )
            answers[member.job_id] = answer
    assert_answers_were_true(answers)
    assert_balanced()
    for job_id, answer in answers.items():
        ran = effects[job_id]
        if answer == CancelOutcome("cancelled"):
            assert ran == 0
        else:
            assert ran == 1
            assert isinstance(answer, AlreadyFinished) or answer.outcome == "cancel_requested"
    assert 0 < sum(effects.values()) < 100, "the two never met"
