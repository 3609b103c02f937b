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
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
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
    SchedulerNode,
    Shard,
    Tenant,
)
from jobs.policies.retry import RetryPolicy
from jobs.services.credentials import create_token
from jobs.services.dispatch import dispatch
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
from jobs.services.submit import _new_route, submit_job, submit_jobs
from jobs.states import FINISHED
from jobs.transitions.unpark import unpark_jobs
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
)
from tests.process.scenes import CHARGE, ONCE, REFUND, SOON, TWICE, Act, Scene, Story, deliver
from tests.process.schedule_stories import SCHEDULE_STORIES
from tests.support import moves
from tests.support.places import Start
from workers.execution import Execution
from workers.executors.threads import ThreadSlots
from workers.handlers import HandlerSpec, JobContext, PermanentFailure
from workers.heartbeat import Heartbeat
from workers.ownership import Ownership
from workers.scheduler import Scheduler
from workers.worker import Worker

SOMEBODY, DEAD_SCHEDULER = UUID(int=7), UUID(int=8)
PATIENCE_SECONDS = 20.0


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
    **SCHEDULE_STORIES,
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
    """Whether anything is still to be done in this hour: jobs that schedules made for later years are not."""
    later = Now() + timedelta(hours=1)
    waiting = DueEntry.objects.filter(due_at__lt=later)
    return (
        waiting.exists()
        or Job.objects.exclude(status__in=FINISHED).filter(due_at__lt=later).exists()
    )
