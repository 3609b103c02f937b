"""For each commit of the product: who makes it, at which job, and what has happened in the end if its process dies.

The events are those of the whole history, once by a death just before the commit and once by a death just after.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models.functions import Now

from jobs.database import rows
from jobs.errors import NotDead, NotPaused
from jobs.models import (
    DueEntry,
    Handler,
    Job,
    Lease,
    Pause,
    Schedule,
    SchedulerNode,
    Shard,
    Tenant,
)
from jobs.policies.retry import RetryPolicy
from jobs.queries.schedules import lock_schedule
from jobs.services.credentials import create_token
from jobs.services.dispatch import dispatch
from jobs.services.expansion import (
    defaults,
    expand_schedule,
    expand_schedules,
    judge_missed_jobs,
    settle_occurrences,
)
from jobs.services.fleet import (
    advertise_handlers,
    ensure_pool,
    report_demand,
    report_worker,
    retire_worker,
)
from jobs.services.memory import Memory
from jobs.services.outcomes import AttemptOutcome, Ending, report_outcomes
from jobs.services.pausing import end_pauses, pause, resume
from jobs.services.reaping import reap
from jobs.services.requests import parse_request
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    create_schedule,
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    tenant_defaults,
)
from jobs.services.submit import _new_route, submit_job, submit_jobs
from jobs.states import FINISHED
from jobs.transitions.take import Taken
from jobs.transitions.unpark import unpark_jobs
from jobs.transitions.withdraw import let_late_jobs, withdraw_jobs
from tests.factories import (
    BOOM,
    SCHEDULER,
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_handler,
    make_pool,
    make_tenant,
    make_worker,
    take,
)
from tests.support import moves
from tests.support.places import Standing, Start, stand
from tests.support.receivers import ApplyOnce
from workers.execution import Execution
from workers.executors.threads import ThreadSlots
from workers.handlers import HandlerSpec, JobContext, PermanentFailure
from workers.heartbeat import Heartbeat
from workers.ownership import Ownership
from workers.scheduler import Scheduler
from workers.worker import Worker

CHARGE, REFUND = "billing.charge", "billing.refund"
SOON = {"kind": "fixed", "base_seconds": 0.02, "jitter": 0.0}
SOMEBODY, DEAD_SCHEDULER = UUID(int=7), UUID(int=8)
PATIENCE_SECONDS = 20.0

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


# The acts


def deliver(log: Path, token: str, job_id: UUID, lease_token: int) -> None:
    ApplyOnce(log).deliver(token, job_id, lease_token)


def submit(scene: Scene) -> None:
    given = {"handler": CHARGE, "request_key": scene.it.request_key, "retry": SOON}
    submit_job(tenant=make_tenant(), request=parse_request(given), actor="token:test0001")


def submit_two(scene: Scene) -> None:
    given = {"handler": CHARGE, "retry": SOON}
    keys = (scene.it.request_key, "order-8813")
    requests = [parse_request({**given, "request_key": key}) for key in keys]
    submit_jobs(tenant=make_tenant(), requests=requests, actor="token:test0001")


def submit_the_first_of_its_kind(scene: Scene) -> None:
    given = {"handler": REFUND, "request_key": scene.it.request_key, "retry": SOON}
    submit_job(tenant=make_tenant(), request=parse_request(given), actor="token:test0001")


def store_its_kind(scene: Scene) -> None:
    _new_route(REFUND, "", {})


def claim(scene: Scene) -> None:
    dispatch(shards=all_shards(), memory=Memory(), scheduler_id=SCHEDULER_ID, fresh=True)


def sweep(scene: Scene) -> None:
    reap(shards=all_shards(), actor=SCHEDULER, rng=random.Random(1))


def report(ending: Ending, **how: Any) -> Act:
    return Report(ending, tuple(how.items()))


@dataclass(frozen=True)
class Report:
    """A worker tells how its attempt ended. A class, for a child process must be told of it too."""

    ending: Ending
    how: tuple[tuple[str, Any], ...]

    def __call__(self, scene: Scene) -> None:
        assert scene.taken is not None
        outcome = AttemptOutcome(taken=scene.taken, ending=self.ending, **dict(self.how))
        report_outcomes(
            shards=[scene.it.shard], worker_id=WORKER, outcomes=[outcome], rng=random.Random(1)
        )


def execution(scene: Scene) -> Execution:
    assert scene.taken is not None
    return Execution(
        scene.taken,
        spec=spec(Transfer(scene.log), transactional=True),
        tenant="acme",
        sent_at=time.monotonic(),
        drain=threading.Event(),
        worker_id=WORKER,
    )


@dataclass(frozen=True)
class Transfer:
    """A transactional handler: its effect is a row, and commits with the completion or not at all."""

    log: Path

    def __call__(self, ctx: JobContext) -> None:
        make_tenant(f"effect-of-{ctx.idempotency_token.rpartition('/')[2]}")


def run_transactional(scene: Scene) -> None:
    execution(scene).run()


def transfer_and_complete(scene: Scene) -> None:
    make_tenant(f"effect-of-{scene.it.request_key}")
    moves.complete_jobs(scene.it, now=None, results={scene.it.lease_id: None})


def beat(scene: Scene) -> None:
    held = {scene.it.lease_id: execution(scene)}
    Heartbeat(
        worker_id=WORKER, held=held, shards=all_shards(), report_alive=lambda: None
    ).run_once()


def move(function: Callable[..., object]) -> Act:
    return Move(function)


@dataclass(frozen=True)
class Move:
    """One transition on the job, by the database's clock."""

    function: Callable[..., object]

    def __call__(self, scene: Scene) -> None:
        with suppress(NotDead):  # the answer to a client whose first request had come through
            self.function(scene.it, now=None)


def start_a_pool(scene: Scene) -> None:
    ensure_pool(name="large", labels={"size": "xl"})


def advertise(scene: Scene) -> None:
    advertise_handlers([Handler(name=REFUND, max_attempts=1, timeout_seconds=1.0, retry=SOON)])


def report_alive(scene: Scene) -> None:
    facts = {"host": "host-a", "pid": 1, "slots": 1, "running": 0, "handlers": [CHARGE]}
    report_worker(SOMEBODY, make_pool(), **facts, state="running", clock_skew_seconds=0.0)


def a_worker_is_there(scene: Scene) -> None:
    """For as long as this test takes."""
    make_worker(last_seen_at=Now() + timedelta(hours=1))


def retire(scene: Scene) -> None:
    retire_worker(SOMEBODY)


def tell_demand(scene: Scene) -> None:
    report_demand(DEAD_SCHEDULER, {"due": {"1": {"3": [1.0, 1.0, 0.0]}}, "published": {}})


def park(scene: Scene) -> None:
    DueEntry.objects.update(parked=True, concurrency_key="key")


def unpark(scene: Scene) -> None:
    unpark_jobs(shards=all_shards())


def own_shards(scene: Scene) -> None:
    Ownership(DEAD_SCHEDULER, all_shards()).refresh()


def give_up_shards(scene: Scene) -> None:
    Ownership(DEAD_SCHEDULER, all_shards()).give_up()


def make_partitions(scene: Scene) -> None:
    Scheduler(shards=all_shards())._ensure_partitions()


def drop_the_last_partition(scene: Scene) -> None:
    ((last,),) = rows(
        "select max(relname) from pg_class where relname ~ '^jobs_jobevent_[0-9]+$' and relkind = 'r'",
        {},
    )
    with connection.cursor() as cursor:
        cursor.execute(f'drop table "{last}"')


def make_token(scene: Scene) -> None:
    create_token(Tenant.objects.get(slug="acme"), "shop", ["jobs:read"], "user:anna")


def pause_a_lane(scene: Scene) -> None:
    """Not the one of the job: a pause holds until somebody ends it."""
    pause(kind=Pause.Kind.LANE, target="low", actor="user:anna", reason="billing run")


def resume_the_lane(scene: Scene) -> None:
    with suppress(NotPaused):  # the answer to a client whose first request had come through
        resume(kind=Pause.Kind.LANE, target="low", actor="user:anna")


def pause_is_over(scene: Scene) -> None:
    pause_a_lane(scene)
    Pause.objects.update(resume_at=Now() - timedelta(minutes=1))


def end_what_is_over(scene: Scene) -> None:
    end_pauses()


IN_TIME = datetime(
    2031, 3, 3, 3, 3, tzinfo=UTC
)  # of the clock that the acts on schedules are given


def rule(minute: str) -> dict[str, Any]:
    return {
        "name": "hourly",
        "cron": f"{minute} * * * *",
        "misfire": "skip",
        "job": {"handler": CHARGE},
    }


def make_a_schedule(scene: Scene) -> None:
    request = parse_schedule(rule("0"), defaults=tenant_defaults(make_tenant()))
    create_schedule(tenant=make_tenant(), request=request, actor="user:anna", now=IN_TIME)


def of_the_schedule() -> dict[str, Any]:
    return {
        "tenant": make_tenant(),
        "schedule_id": Schedule.objects.get().pk,
        "actor": "user:anna",
        "now": IN_TIME,
    }


def edit_the_schedule(scene: Scene) -> None:
    request = parse_schedule(rule("30"), defaults=tenant_defaults(make_tenant()))
    edit_schedule(**of_the_schedule(), version=1, request=request)


def pause_the_schedule(scene: Scene) -> None:
    pause_schedule(**of_the_schedule(), reason="billing run")


def pause_one(scene: Scene) -> None:
    make_a_schedule(scene)
    pause_the_schedule(scene)


def resume_the_schedule(scene: Scene) -> None:
    resume_schedule(**of_the_schedule())


def delete_the_schedule(scene: Scene) -> None:
    delete_schedule(**of_the_schedule())


def expand_it(scene: Scene) -> None:
    """A day later: all that it missed is skipped, and the jobs of the next hour are made."""
    later = IN_TIME + timedelta(days=1)
    expand_schedules(shards=all_shards(), actor=SCHEDULER, now=later)


def expand_it_alone(scene: Scene) -> None:
    found = lock_schedule(
        schedule_id=Schedule.objects.get().pk, defaults=defaults(), now=IN_TIME + timedelta(days=1)
    )
    assert found is not None
    expand_schedule(found, actor=SCHEDULER, now=IN_TIME + timedelta(days=1))


def judge_it(scene: Scene) -> None:
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=IN_TIME + timedelta(days=1))


def cancel_its_job(scene: Scene) -> None:
    make_a_schedule(scene)
    job = Job.objects.get(schedule_id__isnull=False)
    moves.cancel_job(scene.it, shard=job.shard, job_id=job.pk, now=IN_TIME)


def can_be_missed(scene: Scene) -> None:
    """As a schedule's own job, for as long as this test takes."""
    DueEntry.objects.update(misfire_at=Now() + timedelta(hours=1))


def withdraw_its_job(scene: Scene) -> None:
    given: dict[str, Any] = {"shards": [scene.it.shard], "job_ids": [scene.it.job_id]}
    withdraw_jobs(**given, reason="edited", actor="user:anna")


def let_its_job_late(scene: Scene) -> None:
    let_late_jobs(shards=[scene.it.shard], job_ids=[scene.it.job_id])


def settle_it(scene: Scene) -> None:
    settle_occurrences(shards=all_shards(), now=IN_TIME + timedelta(days=1))


def limit_the_backlog(scene: Scene) -> None:
    make_tenant()
    Tenant.objects.filter(slug="acme").update(max_backlog=5)


def lapse_lease(scene: Scene) -> None:
    """Its time is over for everybody."""
    past = Now() - timedelta(minutes=1)
    Lease.objects.filter(job_id=scene.it.job_id).update(
        published_at=past - timedelta(minutes=1), expires_at=past
    )


def lose_lease(scene: Scene) -> None:
    lapse_lease(scene)
    sweep(scene)


def ask_to_stop(scene: Scene) -> None:
    moves.cancel_job(scene.it, now=None)


def ask_to_stop_and_lapse(scene: Scene) -> None:
    ask_to_stop(scene)
    lapse_lease(scene)


# Commit → the stories in which it is made. A commit of the code without one fails a test.
STORIES: dict[str, Sequence[Story]] = {
    "schedules.create_schedule": [Story(act=make_a_schedule, before=ONCE, after=ONCE)],
    "schedules.edit_schedule": [
        Story(act=edit_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "schedules.pause_schedule": [
        Story(act=pause_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "schedules.resume_schedule": [
        Story(act=resume_the_schedule, prepare=pause_one, before=ONCE, after=ONCE)
    ],
    "schedules.delete_schedule": [
        Story(act=delete_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "expansion.expand_schedules": [
        Story(act=expand_it, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "expansion.expand_schedule": [
        Story(act=expand_it_alone, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "expansion.judge_missed_jobs": [
        Story(act=judge_it, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "withdraw.withdraw_jobs": [
        Story(act=withdraw_its_job, prepare=can_be_missed, before=ONCE, after="created cancelled")
    ],
    "withdraw.let_late_jobs": [
        Story(act=let_its_job_late, prepare=can_be_missed, before=ONCE, after=ONCE)
    ],
    "expansion.settle_occurrences": [
        Story(act=settle_it, prepare=cancel_its_job, before=ONCE, after=ONCE)
    ],
    "submit._store_together": [
        Story(act=submit_two, start=Start.MISSING, repeats=True, before=ONCE, after=ONCE)
    ],
    "submit._submit_within_backlog": [
        Story(
            act=submit,
            start=Start.MISSING,
            prepare=limit_the_backlog,
            repeats=True,
            before=ONCE,
            after=ONCE,
        )
    ],
    "submit._new_route": [
        Story(
            act=submit_the_first_of_its_kind,
            alike=store_its_kind,
            alone=store_its_kind,
            start=Start.MISSING,
            prepare=lambda scene: make_handler(REFUND),
            repeats=True,
            before=ONCE,
            after=ONCE,
        )
    ],
    "enqueue.create_jobs": [
        Story(act=submit, start=Start.MISSING, repeats=True, before=ONCE, after=ONCE),
        Story(
            act=move(moves.create_jobs),
            start=Start.MISSING,
            repeats=True,
            before=ONCE,
            after=ONCE,
        ),
    ],
    "claim.claim_batch": [
        Story(act=claim, prepare=a_worker_is_there, before=ONCE, after=ONCE),
    ],
    "take.take_batch": [
        Story(act=move(moves.take_batch), start=Start.PUBLISHED, before=ONCE, after=TWICE)
    ],
    "lease.extend_leases": [Story(act=beat, begun=True, before=TWICE, after=TWICE)],
    "lease.release_jobs": [
        Story(
            act=report(Ending.RELEASED, reason="draining"),
            begun=True,
            before=TWICE,
            after=TWICE.replace("failed", "released"),
        )
    ],
    "lease.expire_published": [
        Story(
            act=sweep,
            start=Start.PUBLISHED,
            prepare=lapse_lease,
            before=f"created leased publish_expired {ONCE.removeprefix('created ')}",
            after=f"created leased publish_expired {ONCE.removeprefix('created ')}",
        )
    ],
    "lease.expire_started": [
        Story(act=sweep, begun=True, prepare=lapse_lease, before=TWICE, after=TWICE),
        Story(
            act=sweep,
            begun=True,
            prepare=lapse_lease,
            fields={"max_attempts": 1},
            before="created leased started dead",
            after="created leased started dead",
        ),
        Story(
            act=sweep,
            begun=True,
            prepare=ask_to_stop_and_lapse,
            before="created leased started cancel_requested cancelled",
            after="created leased started cancel_requested cancelled",
        ),
    ],
    "finish.complete_jobs": [
        Story(
            act=report(Ending.SUCCEEDED, result={"paid": True}),
            begun=True,
            before=TWICE,
            after=ONCE,
        )
    ],
    "execution.Execution._run_transactional": [
        Story(
            act=run_transactional,
            alike=transfer_and_complete,
            begun=True,
            before=TWICE,
            after=ONCE,
        )
    ],
    "finish.retry_jobs": [
        Story(act=report(Ending.FAILED, error=BOOM), begun=True, before=TWICE, after=TWICE)
    ],
    "finish.dead_letter_jobs": [
        Story(
            act=report(Ending.FAILED, error=BOOM, permanent=True),
            begun=True,
            fields={"payload": {"declined": True}},
            before=TWICE.replace("succeeded", "dead"),
            after=ONCE.replace("succeeded", "dead"),
        )
    ],
    "finish.snooze_jobs": [
        Story(
            act=report(Ending.SNOOZED, delay_seconds=0.01, reason="busy"),
            begun=True,
            before=TWICE,
            after=TWICE.replace("failed", "snoozed"),
        )
    ],
    "finish.reject_completion": [
        Story(
            act=report(Ending.SUCCEEDED),
            begun=True,
            prepare=lose_lease,
            before=TWICE,
            after=TWICE.replace("failed", "failed completion_rejected"),
        )
    ],
    "cancel.cancel_job": [
        Story(
            act=move(moves.cancel_job),
            repeats=True,
            before="created cancelled",
            after="created cancelled",
        ),
        Story(
            act=move(moves.cancel_job),
            begun=True,
            repeats=True,
            before="created leased started cancel_requested cancelled",
            after="created leased started cancel_requested cancelled",
        ),
    ],
    "cancel.acknowledge_cancels": [
        Story(
            act=report(Ending.CANCELLED),
            begun=True,
            prepare=ask_to_stop,
            before="created leased started cancel_requested cancelled",
            after="created leased started cancel_requested cancelled",
        )
    ],
    "requeue.requeue_dead_letter": [
        Story(
            act=move(moves.requeue_dead_letter),
            start=Start.DEAD,
            repeats=True,
            before="created leased started dead requeued leased started succeeded",
            after="created leased started dead requeued leased started succeeded",
        )
    ],
    "requeue.discard_dead_letter": [
        Story(
            act=move(moves.discard_dead_letter),
            start=Start.DEAD,
            repeats=True,
            before="created leased started dead discarded",
            after="created leased started dead discarded",
        )
    ],
    "edit.edit_job": [
        Story(
            act=move(moves.edit_job),
            repeats=True,
            before=ONCE.replace("leased", "edited leased"),
            after=ONCE.replace("leased", "edited edited leased"),
        )
    ],
    "fleet.ensure_pool": [Story(act=start_a_pool, repeats=True, before=ONCE, after=ONCE)],
    "fleet.advertise_handlers": [Story(act=advertise, repeats=True, before=ONCE, after=ONCE)],
    "fleet.report_worker": [Story(act=report_alive, before=ONCE, after=ONCE)],
    "fleet.report_demand": [Story(act=tell_demand, prepare=own_shards, before=ONCE, after=ONCE)],
    "unpark.unpark_jobs": [Story(act=unpark, prepare=park, before=ONCE, after=ONCE)],
    "fleet.retire_worker": [Story(act=retire, prepare=report_alive, before=ONCE, after=ONCE)],
    "ownership.Ownership.refresh": [Story(act=own_shards, before=ONCE, after=ONCE)],
    "ownership.Ownership.give_up": [
        Story(act=give_up_shards, prepare=own_shards, before=ONCE, after=ONCE)
    ],
    "scheduler.Scheduler._ensure_partitions": [
        Story(act=make_partitions, prepare=drop_the_last_partition, before=ONCE, after=ONCE)
    ],
    "pausing.pause": [Story(act=pause_a_lane, repeats=True, before=ONCE, after=ONCE)],
    "pausing.resume": [
        Story(act=resume_the_lane, prepare=pause_a_lane, repeats=True, before=ONCE, after=ONCE)
    ],
    "pausing.end_pauses": [
        Story(act=end_what_is_over, prepare=pause_is_over, before=ONCE, after=ONCE)
    ],
    "credentials.create_token": [Story(act=make_token, repeats=True, before=ONCE, after=ONCE)],
}


@dataclass(frozen=True)
class Fatal:
    """The act, by a process that dies right after it has sent so many statements and had their answers."""

    act: Act
    statements: int

    def __call__(self, scene: Scene) -> None:
        sent = 0

        def count(execute: Callable[..., object], *statement: Any) -> object:
            nonlocal sent
            answer = execute(*statement)
            sent += 1
            if sent == self.statements:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        with connection.execute_wrapper(count):
            self.act(scene)


# Those who come after


def spec(function: Callable[[JobContext], object], name: str = CHARGE, **more: Any) -> HandlerSpec:
    values = {"timeout_seconds": 30.0, "max_attempts": 3, "transactional": False, **more}
    retry = RetryPolicy.parse(SOON, "")
    return HandlerSpec(name=name, function=function, retry=retry, **values)


@dataclass(frozen=True)
class Charge:
    """The handler: tells its receiver, which collapses by the idempotency token."""

    log: Path

    def __call__(self, ctx: JobContext) -> None:
        deliver(self.log, ctx.idempotency_token, ctx.job_id, ctx.fencing_token)
        if ctx.payload and ctx.payload.get("declined"):
            raise PermanentFailure("card declined")


def go_on(log: Path) -> None:
    """Whoever died is silent for so long that all it held has run out; a new scheduler and a new worker do the rest."""
    past = Now() - timedelta(minutes=1)
    Lease.objects.running().update(published_at=past - timedelta(minutes=1), expires_at=past)
    Shard.objects.exclude(owner=None).update(expires_at=past)
    SchedulerNode.objects.update(expires_at=past)
    scheduler = Scheduler(shards=all_shards())
    worker = Worker(
        pool=make_pool(),
        handlers={name: spec(Charge(log), name) for name in (CHARGE, REFUND)},
        executor=ThreadSlots(2),
        drain_seconds=5.0,
    )
    scheduler.run_once()  # the sweep comes first: a worker would take published work that has lapsed
    threads = [threading.Thread(target=one.run) for one in (scheduler, worker)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unfinished() and time.monotonic() < deadline:
        time.sleep(0.005)
    worker.stop()
    scheduler.stop()
    for thread in threads:
        thread.join()


def unfinished() -> bool:
    return Job.objects.exclude(status__in=FINISHED).exists() or DueEntry.objects.exists()
