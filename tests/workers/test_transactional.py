"""Transactional handlers: their effects in this database and the completion are one, exactly once or not at all."""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from jobs.clock import database_now
from jobs.models import Job, Tenant
from jobs.services.outcomes import Ending, report_outcomes
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.lease import expire_started
from jobs.transitions.take import Taken
from tests.factories import (
    BOOM,
    OTHER_WORKER,
    SCHEDULER,
    WORKER,
    make_job,
    make_tenant,
    publish,
    take,
)
from tests.support.books import assert_balanced
from tests.workers.attempts import execution
from tests.workers.stage import expire_lease, finished, spec, story, until
from tests.workers.stage import publish as published
from workers.handlers import Cancelled, PermanentFailure, RetryAfter, Snooze

pytestmark = pytest.mark.usefixtures("committed")


def taken(**fields) -> Taken:
    return take(make_job(place=Place.PUBLISHED, **fields).pk)


def effects() -> set[str]:
    return set(Tenant.objects.filter(slug__startswith="effect").values_list("slug", flat=True))


def book(slug: str = "effect"):
    make_tenant(slug)
    return {"booked": slug}


def report(outcome) -> None:
    report_outcomes(
        shards=[outcome.taken.shard],
        worker_id=WORKER,
        outcomes=[outcome],
        rng=random.Random(1),
    )


def test_effect_and_completion_are_committed_together():
    one = taken()
    assert execution(lambda ctx: book(), transactional=True, of=one).run() is None
    assert effects() == {"effect"}
    job = Job.objects.get(pk=one.job_id)
    assert (job.status, job.result) == ("succeeded", {"booked": "effect"})
    assert_balanced()


def test_a_coroutine_writes_in_the_same_transaction():
    async def function(ctx):
        await Tenant.objects.acreate(slug="effect", name="effect")
        if ctx.job_id == one.job_id:
            raise ValueError("boom")
        return {"booked": "effect"}

    one, other = taken(), taken(request_key="other")
    outcome = execution(function, transactional=True, of=one).run()
    assert outcome is not None
    assert outcome.ending is Ending.FAILED
    assert effects() == set()
    assert execution(function, transactional=True, of=other).run() is None
    assert effects() == {"effect"}
    assert finished(other.job_id)


def test_the_handler_sees_its_own_writes_and_nobody_else_does_before_the_end():
    one, seen = taken(), []

    def function(ctx):
        book()
        seen.append(effects())
        seen.append(transaction.get_connection().in_atomic_block)

    execution(function, transactional=True, of=one).run()
    assert seen == [{"effect"}, True]


@pytest.mark.parametrize(
    ("error", "ending", "told"),
    [
        (ValueError("boom"), Ending.FAILED, "failed"),
        (RetryAfter(5), Ending.FAILED, "failed"),
        (PermanentFailure("no"), Ending.FAILED, "dead"),
        (Snooze(5), Ending.SNOOZED, "snoozed"),
        (Cancelled("void"), Ending.CANCELLED, "cancelled"),
        (SystemExit(1), Ending.FAILED, "failed"),
    ],
)
def test_a_handler_that_raises_leaves_no_effect(error, ending, told):
    one = taken()

    def function(ctx):
        book()
        raise error

    outcome = execution(function, transactional=True, of=one).run()
    assert outcome is not None
    assert outcome.ending is ending
    report(outcome)
    assert effects() == set()
    assert story(one.job_id) == ["created", "leased", "started", told]
    assert_balanced()


def test_an_effect_whose_lease_was_lost_meanwhile_is_undone_and_its_report_refused():
    one = taken()
    expire_elsewhere(one)
    outcome = execution(lambda ctx: book(), transactional=True, of=one).run()
    assert outcome is not None
    assert outcome.ending is Ending.FAILED
    report(outcome)
    assert effects() == set()
    assert story(one.job_id)[-1] == "completion_rejected"
    assert_balanced()


def expire_elsewhere(one: Taken) -> None:
    failure = {"delay": 0.0, "cause": "lease_expired", "error": BOOM}
    expire_lease(one.job_id)
    ended = expire_started(
        shards=[one.shard], actor=SCHEDULER, retries={one.lease_id: failure}, deaths={}
    )
    assert ended == {one.lease_id}


def test_two_owners_of_one_job_leave_one_effect():
    """The stale one ends last, the fresh one first, each with an effect of its own name."""
    stale = taken()
    expire_elsewhere(stale)
    publish(stale.job_id, stale.shard)
    fresh = take(stale.job_id, OTHER_WORKER)
    new = execution(lambda ctx: book("effect-fresh"), transactional=True, of=fresh)
    new.worker_id = OTHER_WORKER
    assert new.run() is None
    outcome = execution(lambda ctx: book("effect-stale"), transactional=True, of=stale).run()
    assert outcome is not None
    report(outcome)
    assert effects() == {"effect-fresh"}
    assert Job.objects.get(pk=stale.job_id).result == {"booked": "effect-fresh"}
    assert_balanced()


def test_a_cancel_that_comes_while_the_effect_is_made_comes_too_late():
    one = taken()
    cancel_job(shard=one.shard, job_id=one.job_id, actor="user:anna", reason="withdrawn")
    assert execution(lambda ctx: book(), transactional=True, of=one).run() is None
    assert effects() == {"effect"}
    assert story(one.job_id)[-2:] == ["cancel_requested", "succeeded"]
    assert_balanced()


def test_kf33_a_result_is_cleaned_before_it_is_committed_with_the_effect():
    one = taken()
    odd = {"text": "a\x00b\ud800", "at": database_now()}
    execution(lambda ctx: [book(), odd], transactional=True, of=one).run()
    assert effects() == {"effect"}
    stored = Job.objects.get(pk=one.job_id).result
    assert stored is not None
    assert "\x00" not in str(stored)


def test_a_worker_runs_transactional_handlers_beside_others(stage):
    def function(ctx):
        return book(f"effect-{ctx.payload['n']}")

    stage.worker_with([spec(function, transactional=True)], slots=4)
    jobs = [published(payload={"n": n}, request_key=f"k{n}") for n in range(20)]
    until(lambda: finished(*jobs), "all are finished")
    assert effects() == {f"effect-{n}" for n in range(20)}
    assert set(Job.objects.values_list("status", "attempt")) == {("succeeded", 1)}
    assert_balanced()
