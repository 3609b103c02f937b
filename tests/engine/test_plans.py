"""Plans of the engine's statements: by their keys, and never more rows than a small multiple of the batch.

Fresh, with statistics, over tables of a believable size; and as prepared statements after six executions, with tables
that were empty when they were last analysed: in that state a generic plan guesses ten rows for any list, and a
statement that joins lists, or repeats one beside a join, turns quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection

from jobs.clock import database_now
from jobs.models import DeadLetter, Route
from jobs.queries.candidates import due_groups, due_rows, group_rows, seconds_to_next_due
from jobs.queries.fleet import expired_leases, lease_page
from jobs.states import Place
from jobs.transitions.cancel import acknowledge_cancels, cancel_job
from jobs.transitions.claim import claim_batch
from jobs.transitions.edit import edit_job
from jobs.transitions.finish import (
    complete_jobs,
    dead_letter_jobs,
    reject_completion,
    retry_jobs,
    snooze_jobs,
)
from jobs.transitions.lease import expire_published, expire_started, extend_leases, release_jobs
from jobs.transitions.requeue import requeue_dead_letter
from jobs.transitions.take import take_batch
from jobs.transitions.unpark import unpark_jobs
from tests.factories import BOOM, SCHEDULER, WORKER, all_shards, make_pool
from tests.support.crowd import HANDLER, Member, make_crowd
from tests.support.plans import Plan, fresh_plan, prepared_plan, statements_sent_by
from tests.support.sql import JOB_TABLES, Statement, touches_jobs

pytestmark = pytest.mark.django_db

FINISHED, DUE, FUTURE, PUBLISHED, RUNNING, LETTERS = 8_000, 500, 8_500, 1_250, 1_250, 500
BATCH = 200
ONE_PASS = 10_000  # through the due entries or the leases; far below the square of a batch
ITEM = {"delay": 60.0, "cause": "error", "error": BOOM, "reason": "permanent_error"}
FIRST = UUID(int=0)


class State(Enum):
    """When the statistics were taken."""

    ANALYSED = "after the tables were filled"
    NEW = "before, when they had neither rows nor pages"
    EMPTIED = (
        "of the calendar and the leases before, when they had pages and no rows: a queue at rest"
    )


@dataclass(frozen=True)
class Crowd:
    """The jobs of the filled tables, by place."""

    waiting: list[Member]
    future: list[Member]
    published: list[Member]
    running: list[Member]
    letters: list[tuple[UUID, int]]
    route_id: int


def fill() -> Crowd:
    """20,000 jobs: most of them finished, the others in every place; made and moved by the engine itself."""
    finished = make_crowd(FINISHED, place=Place.RUNNING)
    for start in range(0, FINISHED, 1000):
        results = {member.lease_id: {"paid": True} for member in finished[start : start + 1000]}
        complete_jobs(shards=all_shards(), worker_id=WORKER, results=results)
    dead = make_crowd(LETTERS, place=Place.RUNNING)
    failures = {member.lease_id: ITEM for member in dead}
    dead_letter_jobs(shards=all_shards(), worker_id=WORKER, failures=failures)
    return Crowd(
        running=make_crowd(RUNNING, place=Place.RUNNING),
        published=make_crowd(PUBLISHED, place=Place.PUBLISHED),
        waiting=make_crowd(DUE),
        future=make_crowd(FUTURE, delay_seconds=3600.0),
        letters=list(DeadLetter.objects.order_by("pk").values_list("pk", "shard")),
        route_id=Route.objects.get().pk,
    )


def settings(text: str) -> None:
    with connection.cursor() as cursor:
        for table in sorted(JOB_TABLES - {"jobs_jobevent"}):
            cursor.execute(f"alter table {table} {text}")


def run(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@pytest.fixture(scope="class")
def crowd(request, django_db_setup, django_db_blocker) -> Iterator[Crowd]:
    """The filled tables of the class's state. One filling serves all its tests: they undo what they do."""
    state: State = request.cls.state
    everything = ", ".join(sorted(JOB_TABLES))
    with django_db_blocker.unblock():
        settings("set (autovacuum_enabled = false)")  # its analyse would come at any moment
        try:
            run(f"truncate {everything}")
            if state is State.EMPTIED:
                fill()
                run("delete from jobs_dueentry; delete from jobs_lease")
                for table in ("jobs_dueentry", "jobs_lease"):
                    run(f"vacuum (truncate off) {table}")
                run("truncate jobs_job, jobs_jobevent, jobs_deadletter")
            if state is not State.ANALYSED:
                run(f"analyze {everything}")
            crowd = fill()
            if state is not State.NEW:
                run(f"analyze {everything if state is State.ANALYSED else 'jobs_job'}")
            yield crowd
        finally:
            settings("reset (autovacuum_enabled)")
            call_command("flush", verbosity=0, interactive=False)
            run("truncate jobs_jobevent")


def first(members: list[Member], count: int = BATCH) -> dict[UUID, dict[str, Any]]:
    return {member.lease_id: ITEM for member in members[:count]}


def held() -> dict[str, Any]:
    return {"shards": all_shards(), "worker_id": WORKER}


def later() -> datetime:
    return database_now() + timedelta(hours=1)


def one(members: list[Member]) -> dict[str, Any]:
    """A member in the middle of the crowd, as the arguments of a command."""
    member = members[len(members) // 2]
    return {"shard": member.shard, "job_id": member.job_id, "actor": "user:anna"}


@dataclass(frozen=True)
class Work:
    """What is asked of the engine, the indexes its statements must use, and the most rows any step may see."""

    ask: Callable[[Crowd], object]
    indexes: frozenset[str]
    most_rows: int = 4 * BATCH  # the batch, and dead versions of it that no vacuum has taken yet


ENTRY, JOB, LEASE = "jobs_dueentry_pkey", "jobs_job_pkey", "jobs_lease_pkey"
END = frozenset({LEASE, JOB})
WORKS: dict[str, Work] = {
    "claim": Work(
        lambda c: claim_batch(
            shards=all_shards(),
            job_ids=[member.job_id for member in c.waiting[:BATCH]],
            pool=make_pool(),
            actor=SCHEDULER,
        ),
        frozenset({ENTRY, JOB}),
    ),
    "take": Work(
        lambda c: take_batch(pool_id=make_pool().pk, handlers=[HANDLER], limit=BATCH, **held()),
        frozenset({"lease_to_take", LEASE, JOB}),
    ),
    "heartbeat": Work(
        lambda c: extend_leases(lease_ids=list(first(c.running)), **held()), frozenset({LEASE})
    ),
    "complete": Work(lambda c: complete_jobs(results=first(c.running), **held()), END),
    "retry": Work(lambda c: retry_jobs(failures=first(c.running), **held()), END),
    "dead letter": Work(lambda c: dead_letter_jobs(failures=first(c.running), **held()), END),
    "snooze": Work(lambda c: snooze_jobs(snoozes=first(c.running), **held()), END),
    "release": Work(lambda c: release_jobs(reasons=first(c.running), **held()), END),
    "cancel of its own": Work(
        lambda c: acknowledge_cancels(stopped=first(c.running), by_handler=True, **held()), END
    ),
    "reap: page": Work(
        lambda c: lease_page(shards=all_shards(), after=FIRST, limit=BATCH), frozenset({LEASE})
    ),
    "reap: later page": Work(
        lambda c: lease_page(
            shards=all_shards(),
            after=sorted(first(c.published + c.running, 3000))[1000],
            limit=BATCH,
        ),
        frozenset({LEASE}),
    ),
    "reap: plan": Work(
        lambda c: expired_leases(shards=all_shards(), lease_ids=list(first(c.running))), END
    ),
    "reap: publish expiry": Work(
        lambda c: expire_published(
            shards=all_shards(),
            lease_ids=list(first(c.published)),
            actor=SCHEDULER,
            now=later(),
        ),
        END,
        most_rows=2 * PUBLISHED,  # may also pass through the index of what is published
    ),
    "reap: expiry": Work(
        lambda c: expire_started(
            shards=all_shards(),
            actor=SCHEDULER,
            retries=first(c.running, BATCH // 2),
            deaths=first(c.running[BATCH:], BATCH // 2),
            now=later(),
        ),
        END,
    ),
    "due rows": Work(
        lambda c: due_rows(shards=all_shards(), limit=BATCH),
        frozenset({"due_by_shard"}),
        most_rows=DUE + 64,
    ),
    "due groups": Work(
        lambda c: due_groups(shards=all_shards()), frozenset({"due_by_group"}), most_rows=4 * 64
    ),
    "rows of groups": Work(
        lambda c: group_rows(limits={row.key: 3 for row in due_groups(shards=all_shards())}),
        frozenset({"due_by_group"}),
        most_rows=4 * 64,
    ),
    "unpark": Work(lambda c: unpark_jobs(shards=all_shards()), frozenset(), most_rows=64),
    "next due": Work(
        lambda c: seconds_to_next_due(shards=all_shards()), frozenset({"due_by_shard"}), 64
    ),
    "cancel of one that waits": Work(
        lambda c: cancel_job(reason="withdrawn", **one(c.waiting)), frozenset({ENTRY, JOB}), 2
    ),
    "cancel of one that runs": Work(
        lambda c: cancel_job(reason="withdrawn", **one(c.running)), frozenset({JOB}), 2
    ),
    "edit": Work(lambda c: edit_job(tags=["vip"], **one(c.waiting)), frozenset({ENTRY, JOB}), 2),
    "requeue": Work(
        lambda c: requeue_dead_letter(
            shard=c.letters[9][1], dead_letter_id=c.letters[9][0], actor="user:anna", note=""
        ),
        frozenset({JOB}),
        LETTERS // 10,  # by its key, or through the letters of its shard
    ),
    "refusal of a late report": Work(
        lambda c: reject_completion(
            shard=c.running[9].shard,
            job_id=c.running[9].job_id,
            lease_id=FIRST,
            token=0,
            worker_id=WORKER,
            reported="succeeded",
        ),
        frozenset(),
        8,
    ),
}


def statements_of(work: Work, crowd: Crowd) -> list[Statement]:
    make_pool()
    found = [one for one in statements_sent_by(lambda: work.ask(crowd)) if touches_jobs(one.sql)]
    assert found
    return found


def assert_good(work: Work, plans: list[Plan], *, by_guess: bool = False) -> None:
    """By key, and few rows. A planner that guesses may go through the small tables once, but not through the jobs."""
    indexes = work.indexes & {JOB} if by_guess else work.indexes
    most_rows = max(ONE_PASS, work.most_rows) if by_guess else work.most_rows
    told = "\n\n".join(map(str, plans))
    used = {index for plan in plans for index in plan.indexes()}
    assert indexes <= used, f"{indexes - used} not used\n{told}"
    for plan in plans:
        large = {"jobs_job"} if by_guess else JOB_TABLES
        assert large.isdisjoint(plan.scanned()), f"reads a table from end to end\n{told}"
        assert plan.most_rows() <= most_rows, f"{plan.most_rows()} rows\n{told}"


class Plans:
    """The tests of each state of the tables."""

    state: ClassVar[State]

    @pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
    def test_a_fresh_plan_reads_by_key_and_no_more_than_the_batch(self, crowd, work):
        plans = [fresh_plan(one) for one in statements_of(work, crowd)]
        assert_good(work, plans, by_guess=self.state is not State.ANALYSED)

    @pytest.mark.parametrize("forced", [False, True], ids=["after six", "generic"])
    @pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
    def test_a_prepared_plan_reads_by_key_and_no_more_than_the_batch(self, crowd, work, forced):
        found = [prepared_plan(one, force_generic=forced) for one in statements_of(work, crowd)]
        plans = [plan for plan, _ in found]
        assert_good(work, plans, by_guess=self.state is State.EMPTIED)
        if forced:
            assert all(generic for _, generic in found)

    def test_a_statement_that_compares_every_row_with_every_other_is_found(self, crowd):
        square = Statement(
            "select count(*) from jobs_lease lease, unnest(%(leases)s::uuid[]) as wanted(id)"
            " where lease.id::text like wanted.id::text",
            {"leases": list(first(crowd.running))},
        )
        everything = Statement("select count(*) from jobs_job where handler <> %s", ("",))
        fine = Work(lambda _: None, frozenset())
        for bad in (square, everything):
            with pytest.raises(AssertionError, match=r"end to end|\d rows"):
                assert_good(fine, [fresh_plan(bad)], by_guess=True)


class TestAnalysed(Plans):
    state = State.ANALYSED


class TestNew(Plans):
    state = State.NEW


class TestEmptied(Plans):
    state = State.EMPTIED
