"""The checker of the books is itself checked: each kind of disorder is seen, and a busy history is not called one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F

from jobs.models import DeadLetter, DueEntry, Job, JobEvent, Lease
from tests.factories import OTHER_WORKER
from tests.support import moves
from tests.support.books import assert_balanced, violations
from tests.support.places import Standing, Start, stand

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("start", list(Start))
def test_every_place_a_job_can_stand_in_is_in_order(start):
    stand(start)
    assert_balanced()


def test_a_long_history_is_in_order():
    it = stand(Start.RUNNING, max_attempts=2)
    moves.release_jobs(it)
    ends: list[tuple[Callable[..., object], str, dict[str, Any]]] = [
        (moves.snooze_jobs, "snoozes", {"delay": 0.0, "reason": "the bank is closed"}),
        (moves.retry_jobs, "failures", {**moves.RETRY, "delay": 0.0}),
        (moves.dead_letter_jobs, "failures", moves.DEATH),
    ]
    for end, name, item in ends:
        moves.claim_batch(it)
        moves.take_batch(it)
        end(it, **{name: {Lease.objects.get(job_id=it.job_id).pk: item}})
    moves.requeue_dead_letter(it, dead_letter_id=DeadLetter.objects.get(job_id=it.job_id).pk)
    moves.edit_job(it)
    moves.claim_batch(it)
    published = Lease.objects.get(job_id=it.job_id)
    moves.expire_published(it, lease_ids=[published.pk], now=it.now + timedelta(hours=1))
    moves.cancel_job(it)
    assert_balanced()
    assert Job.objects.get(pk=it.job_id).attempt == 5


def row(model, it):
    key = "pk" if model is Job else "job_id"
    return model.objects.filter(**{key: it.job_id})


def event(it, **which):
    return JobEvent.objects.filter(job_id=it.job_id, **which)


def told_again(it: Standing, **changed) -> None:
    """Add a copy of the last event, numbered after it, with these columns."""
    last = event(it).order_by("-seq")[0]
    last.pk, last.seq = last.pk + 1, last.seq + 1
    for name, value in changed.items():
        setattr(last, name, value)
    last.save(force_insert=True)
    counts = row(Lease if row(Lease, it).exists() else Job, it)
    counts.update(seq=F("seq") + 1)


DISORDERS: dict[str, tuple[Start, Callable[[Standing], object], str]] = {
    "waiting without an entry": (Start.DUE, lambda it: row(DueEntry, it).delete(), "I1"),
    "owned without a lease": (Start.RUNNING, lambda it: row(Lease, it).delete(), "I1"),
    "in two places": (
        Start.RUNNING,
        lambda it: DueEntry.objects.create(
            job_id=it.job_id,
            due_at=it.now,
            shard=it.shard,
            route_id=it.route_id,
            lane_id=3,
            priority=0,
            tenant_id=it.tenant_id,
        ),
        "I1",
    ),
    "an entry without a job": (Start.DUE, lambda it: row(Job, it).delete(), "I1"),
    "a lease without a job": (Start.RUNNING, lambda it: row(Job, it).delete(), "I1"),
    "a status that no event tells of": (
        Start.SUCCEEDED,
        lambda it: row(Job, it).update(status="cancelled"),
        "I18",
    ),
    "a missing event": (Start.SUCCEEDED, lambda it: event(it, seq=3).delete(), "I19"),
    "an event twice": (Start.SUCCEEDED, lambda it: told_again(it), "I5"),
    "cancelled after it succeeded": (
        Start.SUCCEEDED,
        lambda it: told_again(it, kind="cancelled", from_status="succeeded"),
        "I5",
    ),
    "started twice": (
        Start.RUNNING,
        lambda it: told_again(it, actor=f"worker:{OTHER_WORKER}"),
        "I2",
    ),
    "leased while running": (
        Start.RUNNING,
        lambda it: told_again(it, kind="leased", lease=uuid4(), token=2, attempt=2),
        "I2",
    ),
    "leased early": (
        Start.PUBLISHED,
        lambda it: event(it, kind="leased").update(due_at=it.now),
        "I6",
    ),
    "a token used again": (
        Start.RUNNING,
        lambda it: event(it, kind="leased").update(token=0),
        "I3",
    ),
    "another worker's report": (
        Start.SUCCEEDED,
        lambda it: event(it, kind="succeeded").update(actor=f"worker:{OTHER_WORKER}"),
        "I4",
    ),
    "a report with another lease": (
        Start.SUCCEEDED,
        lambda it: event(it, kind="succeeded").update(lease=uuid4()),
        "I4",
    ),
    "leased again after a cancel": (
        Start.STOPPING,
        lambda it: told_again(it, kind="leased", lease=uuid4(), token=2, attempt=2),
        "I11",
    ),
    "failed after a cancel": (
        Start.STOPPING,
        lambda it: told_again(it, kind="failed", to_status="scheduled"),
        "I11",
    ),
    "cancelled without a wish": (
        Start.CANCELLED,
        lambda it: event(it, kind="cancel_requested").update(
            kind="completion_rejected", detail={"reported": "x", "current_token": 1}
        ),
        "I11",
    ),
    "attempts that do not count up": (
        Start.RETRYING,
        lambda it: row(Job, it).update(attempt=7, attempt_limit=9),
        "I18",
    ),
    "a budget from nowhere": (
        Start.DUE,
        lambda it: row(Job, it).update(attempt_limit=F("attempt_limit") + 1),
        "I9",
    ),
    "more attempts than the budget": (
        Start.RETRYING,
        lambda it: row(Job, it).update(attempt_limit=0),
        "I9",
    ),
    "dead without a letter": (
        Start.DEAD,
        lambda it: DeadLetter.objects.filter(job_id=it.job_id).delete(),
        "I18",
    ),
    "a counter ahead of its events": (
        Start.DUE,
        lambda it: row(Job, it).update(seq=F("seq") + 1),
        "I18",
    ),
    "another worker on the lease": (
        Start.RUNNING,
        lambda it: row(Lease, it).update(worker=OTHER_WORKER),
        "I18",
    ),
    "a wish that no event tells of": (
        Start.RUNNING,
        lambda it: row(Lease, it).update(cancel_requested=True),
        "I18",
    ),
}


@pytest.mark.parametrize("disorder", DISORDERS)
def test_disorder_is_seen_and_named(disorder):
    start, disturb, rule = DISORDERS[disorder]
    it = stand(start)
    disturb(it)
    found = [(job_id, fault) for job_id, fault in violations() if fault.startswith(rule)]
    assert it.job_id in {job_id for job_id, _ in found}, list(violations())


def test_an_expiry_before_its_time_is_seen():
    it = stand(Start.RUNNING)
    moves.expire_started(it)
    assert_balanced()
    told = event(it, kind="failed").get()
    told.detail["expires_at"] = it.now.isoformat()
    told.save(update_fields=["detail"])
    assert [fault for _, fault in violations()] == ["I7 expired too early at #4"]


def test_the_first_culprits_story_is_told():
    it = stand(Start.DUE)
    row(DueEntry, it).delete()
    with pytest.raises(AssertionError, match=rf"(?s){it.job_id}: I1 .*first job:.*#1 .*created"):
        assert_balanced()
