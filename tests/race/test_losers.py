"""Every transition against a row that somebody else is just moving: the loser waits, and then writes nothing.

The winner's transaction is held open until the loser is seen to wait for it, so that each outcome here is certain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jobs.errors import AlreadyFinished, NotDead, NotWaiting
from jobs.models import Job, JobEvent
from jobs.transitions.cancel import CancelOutcome
from jobs.transitions.claim import Claimed
from tests.factories import OTHER_WORKER
from tests.support import moves
from tests.support.books import assert_balanced
from tests.support.places import Standing, Start, stand
from tests.support.race import RACES, overtake, pass_by

pytestmark = RACES

type Move = Callable[[Standing], Any]


def expire_to_dead(it: Standing) -> Any:
    return moves.expire_started(
        it, deaths={it.lease_id: {**moves.DEATH, "cause": "lease_expired"}}
    )


# Every way in which a started lease ends, and the event that tells of it.
ENDS: dict[str, tuple[Move, str]] = {
    "complete": (moves.complete_jobs, "succeeded"),
    "retry": (moves.retry_jobs, "failed"),
    "dead letter": (moves.dead_letter_jobs, "dead"),
    "snooze": (moves.snooze_jobs, "snoozed"),
    "release": (moves.release_jobs, "released"),
    "cancel of its own": (moves.acknowledge_own, "cancelled"),
    "expiry": (moves.expire_started, "failed"),
    "expiry to dead": (expire_to_dead, "dead"),
}
FINISHED = {"complete": "succeeded", "dead letter": "dead", "expiry to dead": "dead"}
RUNNING = ["created", "leased", "started"]


def told(it: Standing) -> list[str]:
    events = JobEvent.objects.filter(job_id=it.job_id).order_by("seq")
    return list(events.values_list("kind", flat=True))


def standing(start: Start, key: str = "order-8812") -> Standing:
    return stand(start, bystanders=False, request_key=key)


@pytest.mark.parametrize("winner", ENDS)
def test_whoever_ends_a_lease_second_writes_nothing(winner):
    end, kind = ENDS[winner]
    for name, (other, _) in ENDS.items():
        it = standing(Start.RUNNING, name)
        won, (lost,) = overtake(partial(end, it), partial(other, it))
        assert won == {it.lease_id}
        assert lost == set(), name
        assert told(it) == [*RUNNING, kind], name
    assert_balanced()


@pytest.mark.parametrize("winner", ENDS)
def test_a_heartbeat_after_the_end_of_its_lease_hears_that_it_is_lost(winner):
    it = standing(Start.RUNNING)
    end, kind = ENDS[winner]
    _, (lost,) = overtake(partial(end, it), partial(moves.extend_leases, it))
    assert lost == {}
    assert told(it) == [*RUNNING, kind]


@pytest.mark.parametrize("winner", ENDS)
def test_f17_a_cancel_that_waited_for_the_end_of_a_lease_tells_what_it_found(winner):
    it = standing(Start.RUNNING)
    end, kind = ENDS[winner]
    _, (answer,) = overtake(partial(end, it), partial(moves.cancel_job, it))
    if status := FINISHED.get(winner):
        assert isinstance(answer, AlreadyFinished)
        assert answer.current == status
        assert told(it) == [*RUNNING, kind]
    elif kind == "cancelled":
        assert answer == CancelOutcome("cancelled", already=True)
        assert told(it) == [*RUNNING, kind]
    else:  # it waits again, so the cancel ends it
        assert answer == CancelOutcome("cancelled")
        assert told(it) == [*RUNNING, kind, "cancelled"]
    assert_balanced()


@pytest.mark.parametrize("loser", ["retry", "dead letter", "snooze", "release"])
def test_kf29_a_report_that_waited_for_a_cancel_request_changes_nothing(loser):
    it = standing(Start.RUNNING)
    report, _ = ENDS[loser]
    asked, (lost,) = overtake(partial(moves.cancel_job, it), partial(report, it))
    assert asked == CancelOutcome("cancel_requested")
    assert lost == set()
    assert told(it) == [*RUNNING, "cancel_requested"]
    assert_balanced()


@pytest.mark.parametrize(
    ("second", "end"),
    [
        (moves.complete_jobs, "succeeded"),
        (moves.expire_started, "cancelled"),
        (expire_to_dead, "cancelled"),
    ],
)
def test_f17_what_may_follow_a_cancel_request_follows_it(second, end):
    it = standing(Start.RUNNING)
    _, (ended,) = overtake(partial(moves.cancel_job, it), partial(second, it))
    assert ended == {it.lease_id}
    assert told(it) == [*RUNNING, "cancel_requested", end]
    assert_balanced()


def test_a_second_cancel_request_is_told_of_the_first():
    it = standing(Start.RUNNING)
    _, (answer,) = overtake(partial(moves.cancel_job, it), partial(moves.cancel_job, it))
    assert answer == CancelOutcome("cancel_requested", already=True)
    assert told(it) == [*RUNNING, "cancel_requested"]


def test_kf30_a_cancel_that_waited_for_a_take_asks_the_worker():
    it = standing(Start.PUBLISHED)
    _, (answer,) = overtake(partial(moves.take_batch, it), partial(moves.cancel_job, it))
    assert answer == CancelOutcome("cancel_requested")
    assert told(it) == [*RUNNING, "cancel_requested"]
    assert_balanced()


def test_kf30_a_take_passes_by_a_lease_that_is_just_being_cancelled():
    it = standing(Start.PUBLISHED)
    won, (taken,) = pass_by(partial(moves.cancel_job, it), partial(moves.take_batch, it))
    assert won == CancelOutcome("cancelled")
    assert taken == []
    assert told(it) == ["created", "leased", "cancelled"]
    assert_balanced()


def test_an_expiry_that_waited_for_a_take_leaves_the_taken_lease_alone():
    it = standing(Start.PUBLISHED)
    _, (expired,) = overtake(partial(moves.take_batch, it), partial(moves.expire_published, it))
    assert expired == set()
    assert told(it) == RUNNING
    assert_balanced()


def test_an_expiry_that_waited_for_a_heartbeat_leaves_the_lease_alone():
    it = standing(Start.RUNNING)
    kept, (expired,) = overtake(
        partial(moves.extend_leases, it), partial(moves.expire_started, it)
    )
    assert kept == {it.lease_id: False}
    assert expired == set()
    assert told(it) == RUNNING
    assert_balanced()


def test_a_take_passes_by_a_lease_that_another_worker_is_just_taking():
    it = standing(Start.PUBLISHED)
    other = partial(moves.take_batch, it, worker_id=OTHER_WORKER)
    (taken,), (nothing,) = pass_by(partial(moves.take_batch, it), other)
    assert taken.job_id == it.job_id
    assert nothing == []
    assert told(it) == RUNNING


@pytest.mark.parametrize("winner", [moves.claim_batch, moves.cancel_job, moves.edit_job])
def test_a_claim_passes_by_an_entry_that_is_just_being_moved(winner):
    it = standing(Start.DUE)
    _, (claimed,) = pass_by(partial(winner, it), partial(moves.claim_batch, it))
    assert claimed == Claimed(0, 1)
    assert told(it).count("leased") == (winner is moves.claim_batch)
    assert_balanced()


def test_f17_a_cancel_that_waited_for_a_claim_ends_the_published_job():
    it = standing(Start.DUE)
    _, (answer,) = overtake(partial(moves.claim_batch, it), partial(moves.cancel_job, it))
    assert answer == CancelOutcome("cancelled")
    assert told(it) == ["created", "leased", "cancelled"]
    assert_balanced()


@pytest.mark.parametrize(
    ("winner", "status"), [(moves.claim_batch, "leased"), (moves.cancel_job, "cancelled")]
)
def test_an_edit_that_waited_is_refused_with_the_new_status(winner, status):
    it = standing(Start.DUE)
    _, (refusal,) = overtake(partial(winner, it), partial(moves.edit_job, it))
    assert isinstance(refusal, NotWaiting)
    assert refusal.current == status
    assert "edited" not in told(it)
    assert Job.objects.get(pk=it.job_id).tags == []
    assert_balanced()


def test_f17_a_cancel_that_waited_for_an_edit_still_ends_the_job():
    it = standing(Start.DUE)
    _, (answer,) = overtake(partial(moves.edit_job, it), partial(moves.cancel_job, it))
    assert answer == CancelOutcome("cancelled")
    assert told(it) == ["created", "edited", "cancelled"]
    assert_balanced()


@pytest.mark.parametrize("winner", [moves.requeue_dead_letter, moves.discard_dead_letter])
@pytest.mark.parametrize("loser", [moves.requeue_dead_letter, moves.discard_dead_letter])
def test_f19_a_second_decision_about_a_dead_letter_is_refused(winner, loser):
    it = standing(Start.DEAD)
    _, (refusal,) = overtake(partial(winner, it), partial(loser, it))
    resolution = "requeued" if winner is moves.requeue_dead_letter else "discarded"
    assert isinstance(refusal, NotDead)
    assert refusal.current == resolution
    assert told(it)[3:] == ["dead", resolution]
    assert_balanced()


def test_a_completion_that_waited_for_the_note_of_a_stale_report_is_numbered_after_it():
    it = standing(Start.RUNNING)
    stale = partial(moves.reject_completion, it, lease_id=moves.NOBODY, token=0)
    _, (ended,) = overtake(stale, partial(moves.complete_jobs, it))
    assert ended == {it.lease_id}
    assert told(it) == [*RUNNING, "completion_rejected", "succeeded"]
    assert_balanced()


@pytest.mark.parametrize("winner", ENDS)
def test_kf25_a_stale_report_that_waited_for_an_end_is_noted_after_it(winner):
    it = standing(Start.RUNNING)
    end, kind = ENDS[winner]
    stale = partial(moves.reject_completion, it, lease_id=moves.NOBODY, token=0)
    _, (noted,) = overtake(partial(end, it), stale)
    assert noted is True
    assert told(it) == [*RUNNING, kind, "completion_rejected"]
    assert_balanced()
