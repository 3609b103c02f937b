"""requeue_dead_letter and discard_dead_letter: what a person does with a dead letter, once."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from jobs.errors import NotDead, NotFound
from jobs.models import DeadLetter, Job
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.states import EventKind, JobStatus
from jobs.transitions import claim, finish, requeue, take
from tests.factories import (
    BOOM,
    SCHEDULER,
    WORKER,
    all_shards,
    dead_letter_of,
    make_handler,
    make_pool,
    make_tenant,
)
from tests.support.moves import (
    DEATH,
    claim_batch,
    complete_jobs,
    dead_letter_jobs,
    discard_dead_letter,
    requeue_dead_letter,
    retry_jobs,
    take_batch,
)
from tests.support.places import (
    Start,
    due_row,
    event,
    moved,
    stand,
    starting,
    starting_anywhere_but,
    story,
    unchanged,
    watching,
)

pytestmark = pytest.mark.django_db

RESOLVE = pytest.mark.parametrize("resolve", [requeue_dead_letter, discard_dead_letter])


def resolved(it, how):
    return {
        "resolution": how,
        "resolved_at": it.now,
        "resolved_by": "user:otto",
        "note": "provider is back",
    }


def told(it, kind, end, due_at=None):
    return event(
        it,
        kind,
        JobStatus.DEAD,
        end,
        seq=5,
        attempt=1,
        actor="user:otto",
        due_at=due_at,
        detail={"note": "provider is back", "dead_letter": str(it.dead_letter_id)},
    )


def test_a_requeued_job_waits_again_with_a_fresh_budget_beyond_its_attempts():
    it = stand(Start.DEAD)
    with watching() as change:
        assert requeue_dead_letter(it) == it.job_id
    job = {"status": "scheduled", "finished_at": None, "attempt_limit": 4, "seq": 5}
    assert change.rows == moved(
        it,
        Job={**job, "updated_at": it.now},
        DueEntry=due_row(it, it.now),
        DeadLetter=resolved(it, "requeued"),
    )
    assert change.events == [told(it, EventKind.REQUEUED, JobStatus.SCHEDULED, it.now)]


def test_a_discarded_job_stays_dead_and_its_letter_is_closed():
    it = stand(Start.DEAD)
    with watching() as change:
        assert discard_dead_letter(it) == it.job_id
    job = {"seq": 5, "updated_at": it.now}
    assert change.rows == moved(it, Job=job, DeadLetter=resolved(it, "discarded"))
    assert change.events == [told(it, EventKind.DISCARDED, JobStatus.DEAD)]


@RESOLVE
@starting_anywhere_but(Start.DEAD, Start.DISCARDED)
def test_without_a_dead_letter_there_is_nothing_to_resolve(resolve, start):
    it = stand(start)
    with unchanged(), pytest.raises(NotFound):
        resolve(it)


@RESOLVE
def test_a_discarded_letter_cannot_be_resolved_again(resolve):
    it = stand(Start.DISCARDED)
    with unchanged(), pytest.raises(NotDead) as refused:
        resolve(it)
    assert refused.value.current == "discarded"


@RESOLVE
def test_a_requeued_letter_cannot_be_resolved_again(resolve):
    it = stand(Start.DEAD)
    requeue_dead_letter(it)
    with unchanged(), pytest.raises(NotDead) as refused:
        resolve(it)
    assert refused.value.current == "requeued"


@RESOLVE
def test_a_letter_is_looked_for_in_its_own_shard_only(resolve):
    it = stand(Start.DEAD)
    with unchanged(), pytest.raises(NotFound):
        resolve(it, shard=(it.shard + 1) % len(all_shards()))


@RESOLVE
def test_the_letter_of_an_earlier_death_does_not_touch_the_one_that_is_open(resolve):
    it = stand(Start.DEAD)
    requeue_dead_letter(it)
    die_again(it)
    with unchanged(), pytest.raises(NotDead):
        resolve(it)
    assert DeadLetter.objects.filter(job_id=it.job_id).count() == 2
    assert resolve(it, dead_letter_id=dead_letter_of(it.job).pk) == it.job_id


def test_a_requeue_may_be_delayed():
    it = stand(Start.DEAD)
    with watching() as change:
        requeue_dead_letter(it, delay_seconds=12.5)
    due = due_row(it, it.now + timedelta(seconds=12.5))
    assert change.rows["DueEntry", it.job_id] == due


def test_schedulers_are_woken_by_a_requeue_and_not_by_a_discard(
    django_capture_on_commit_callbacks,
):
    it = stand(Start.DEAD)
    with django_capture_on_commit_callbacks() as planned:
        requeue_dead_letter(it)
    assert len(planned) == 1
    die_again(it)
    with django_capture_on_commit_callbacks() as planned:
        discard_dead_letter(it, dead_letter_id=dead_letter_of(it.job).pk)
    assert planned == []


@starting(Start.DEAD)
def test_attempts_and_tokens_go_on_after_a_requeue(start):
    it = stand(start)
    requeue_dead_letter(it)
    claim_batch(it)
    (taken,) = take_batch(it)
    assert (taken.attempt, taken.token, taken.attempt_limit) == (2, 2, 4)
    with unchanged():
        assert complete_jobs(it) == set()  # the lease of the life before


def test_kf37_a_requeue_keeps_the_errors_the_key_and_the_payload():
    it = stand(Start.DUE, payload={"invoice": 8812}, max_attempts=3)
    now = it.now
    for number, end in enumerate([retry_jobs, retry_jobs, dead_letter_jobs]):
        now += timedelta(hours=1)
        failure = {"delay": 0, "reason": "attempts_exhausted", "cause": "error"}
        error = {**BOOM, "message": f"boom {number}"}
        run(it, now, end, failures=lambda lease, f={**failure, "error": error}: {lease: f})
    before = Job.objects.filter(pk=it.job_id).values("request_key", "request_hash", "payload")[0]
    requeue_dead_letter(it, dead_letter_id=dead_letter_of(it.job).pk, now=now)
    run(it, now + timedelta(hours=1), complete_jobs, results=lambda lease: {lease: None})

    job = it.job
    assert (job.status, job.attempt, job.attempt_limit) == ("succeeded", 4, 3 + 3)
    assert Job.objects.filter(pk=it.job_id).values(*before)[0] == before
    history = story(it.job_id)
    failed = [told for told in history if told.kind in ("failed", "dead")]
    assert [told.detail["error"]["message"] for told in failed] == ["boom 0", "boom 1", "boom 2"]
    assert len({told.at for told in failed}) == 3
    (requeued,) = (told for told in history if told.kind == "requeued")
    assert (requeued.actor, requeued.detail["note"]) == ("user:otto", "provider is back")


def test_kf36_a_hundred_dead_jobs_requeued_twice_run_once_more_and_are_a_hundred_dead_letters():
    make_handler()
    pool = make_pool()
    request = parse_request({"handler": "billing.charge"})
    made = submit_jobs(tenant=make_tenant(), requests=[request] * 100, actor="token:test0001")
    shards, ids = [made[0].shard], [job.job_id for job in made]
    assert die_together(shards, ids, pool) == {1}
    letters = DeadLetter.objects.filter(resolution="open")
    for letter in letters.all():
        send_back = partial(
            requeue.requeue_dead_letter,
            shard=letter.shard,
            dead_letter_id=letter.pk,
            actor="user:anna",
            note="provider is back",
        )
        assert send_back() == letter.job_id
        with pytest.raises(NotDead):
            send_back()
    assert not letters.exists()
    assert die_together(shards, ids, pool) == {2}
    assert {letter.job_id for letter in letters} == set(ids)
    assert (letters.count(), DeadLetter.objects.count()) == (100, 200)


def die_together(shards, ids, pool):
    """Run all of these jobs once more into their graves; the numbers of the attempts they ran."""
    done = claim.claim_batch(shards=shards, job_ids=ids, pool=pool, actor=SCHEDULER)
    assert (done.published, done.lost) == (len(ids), 0)
    taken = take.take_batch(
        shards=shards,
        pool_id=pool.pk,
        handlers=["billing.charge"],
        worker_id=WORKER,
        limit=1000,
    )
    assert {each.job_id for each in taken} == set(ids)
    failures = {each.lease_id: DEATH for each in taken}
    ended = finish.dead_letter_jobs(shards=shards, worker_id=WORKER, failures=failures)
    assert len(ended) == len(ids)
    return {each.attempt for each in taken}


def run(it, now, end, **items):
    """One attempt that ends in this way."""
    assert claim_batch(it, now=now).published == 1
    (taken,) = take_batch(it, now=now)
    ((name, item),) = items.items()
    assert end(it, **{name: item(taken.lease_id), "now": now}) == {taken.lease_id}


def die_again(it):
    failure = {"reason": "attempts_exhausted", "cause": "error", "error": BOOM}
    later = it.now + timedelta(hours=1)
    run(it, later, dead_letter_jobs, failures=lambda lease: {lease: failure})
