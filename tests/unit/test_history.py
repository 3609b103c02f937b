"""The history checker is itself checked: a good history passes, and each way of spoiling it is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.history import Event, Facts, LeaseFacts, check_history
from jobs.states import EventKind, JobStatus

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WORKER, OTHER, SCHEDULER, PERSON = "worker:a", "worker:b", "scheduler:s", "user:anna"
RETRY = {"kind": "fixed", "base_seconds": 10, "jitter": 0.5}
STEPS: dict[str, tuple[str | None, str]] = {
    "created": (None, "scheduled"),
    "leased": ("scheduled", "leased"),
    "started": ("leased", "leased"),
    "failed": ("leased", "scheduled"),
    "succeeded": ("leased", "succeeded"),
    "cancel_requested": ("leased", "leased"),
    "cancelled": ("leased", "cancelled"),
    "dead": ("leased", "dead"),
    "requeued": ("dead", "scheduled"),
    "released": ("leased", "scheduled"),
    "publish_expired": ("leased", "scheduled"),
    "discarded": ("dead", "dead"),
}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def event(seq: int, kind: str, seconds: float, attempt: int, **more: Any) -> Event:
    start, end = STEPS[kind]
    return Event(
        seq=seq,
        at=at(seconds),
        kind=kind,
        attempt=attempt,
        **{"from_status": start, "to_status": end, "actor": WORKER, **more},
    )


def attempt(seq: int, number: int, seconds: float, due: float) -> list[Event]:
    """leased and started, under a lease of its own."""
    held = {"lease": f"lease-{number}", "token": number}
    return [
        event(seq, "leased", seconds, number, actor=SCHEDULER, due_at=at(due), **held),
        event(seq + 1, "started", seconds + 0.1, number, **held),
    ]


def lost_then_succeeded() -> list[Event]:
    """A worker is lost, the lease runs out, the second attempt succeeds."""
    lost = {
        "cause": "lease_expired",
        "delay": 12.0,
        "expires_at": at(30).isoformat(),
        "heartbeat_at": at(0.1).isoformat(),
    }
    first, second = {"lease": "lease-1", "token": 1}, {"lease": "lease-2", "token": 2}
    return [
        event(1, "created", -5, 0, actor=PERSON, due_at=at(0)),
        *attempt(2, 1, 0.01, 0),
        event(4, "failed", 31.5, 1, actor=SCHEDULER, due_at=at(43.5), detail=lost, **first),
        *attempt(5, 2, 43.6, 43.5),
        event(7, "succeeded", 44, 2, **second),
    ]


DONE = Facts(
    status="succeeded",
    attempt=2,
    attempt_limit=3,
    max_attempts=3,
    lease_token=2,
    seq=7,
    retry=RETRY,
)


RUNNING_LEASE = LeaseFacts(
    id="lease-1", token=1, attempt=1, worker="a", started_at=at(0.11), expires_at=at(30)
)
RUNNING = replace(  # after the first three events
    DONE, status="leased", attempt=1, lease_token=1, seq=3, lease=RUNNING_LEASE
)


def broken(events: list[Event], facts: Facts = DONE) -> set[str]:
    return {one.invariant for one in check_history(events, facts, tolerance_seconds=1.0)}


def test_a_good_history_has_no_violation():
    assert broken(lost_then_succeeded()) == set()


def changed(position: int, **fields: Any) -> Callable[[list[Event]], list[Event]]:
    def change(events: list[Event]) -> list[Event]:
        return [*events[:position], replace(events[position], **fields), *events[position + 1 :]]

    return change


SPOILED = {
    "a gap in seq": ("I18", lambda events: [*events[:3], *events[4:]]),
    "claimed twice at once": (
        "I2",
        lambda events: [*events[:3], replace(events[4], seq=4), *events[4:]],
    ),
    "started twice": ("I2", lambda events: [*events[:3], replace(events[2], seq=4), *events[3:]]),
    "a token used again": ("I3", changed(4, token=1)),
    "a lease used again": ("I3", changed(4, lease="lease-1")),
    "another worker's success": ("I4", changed(6, actor=OTHER)),
    "success under an old lease": ("I4", changed(6, lease="lease-1", token=1)),
    "success under an old lease with the token of the new one": (
        "I4",
        changed(6, lease="lease-1"),
    ),
    "success under the right lease with an old token": ("I4", changed(6, token=1)),
    "a start under another lease": ("I4", changed(5, lease="lease-1")),
    "an end with the number of another attempt": ("I9", changed(6, attempt=1)),
    "a start with the number of another attempt": ("I9", changed(5, attempt=1)),
    "claimed before it was due": ("I6", changed(1, at=at(-1))),
    "expired before the lease ran out": ("I7", changed(3, at=at(30.9), due_at=at(42.9))),
    "an expiry that does not say what it saw": (
        "I7",
        changed(3, detail={"cause": "lease_expired", "delay": 12.0}),
    ),
    "an attempt number skipped": ("I9", changed(4, attempt=3)),
    "backoff below the policy's jitter": (
        "I10",
        changed(
            3,
            due_at=at(33.5),
            detail={"cause": "lease_expired", "delay": 2.0, "expires_at": at(30).isoformat()},
        ),
    ),
    "backoff above the policy's jitter": (
        "I10",
        changed(
            3,
            due_at=at(46.6),
            detail={"cause": "lease_expired", "delay": 15.1, "expires_at": at(30).isoformat()},
        ),
    ),
    "a due time that does not follow from the delay": ("I10", changed(3, due_at=at(50))),
    "claimed before the backoff ended": ("I10", changed(4, at=at(40))),
    "a status that does not follow": ("I18", changed(6, from_status="scheduled")),
}


@pytest.mark.parametrize("name", SPOILED)
def test_each_way_of_spoiling_it_is_named(name):
    invariant, spoil = SPOILED[name]
    assert invariant in broken(spoil(lost_then_succeeded()))


def test_i5_nothing_follows_the_end():
    again = event(8, "leased", 50, 3, actor=SCHEDULER, lease="lease-3", token=3)
    assert "I5" in broken([*lost_then_succeeded(), again])


def test_i9_what_never_started_is_refunded_and_not_counted():
    events = [one for one in lost_then_succeeded() if one.seq != 3]
    later = [replace(one, seq=position) for position, one in enumerate(events, start=1)]
    assert "I9" in broken(later)


@pytest.mark.parametrize(("status", "letters"), [("dead", 0), ("dead", 2), ("succeeded", 1)])
def test_i18_a_dead_job_and_no_other_has_one_open_dead_letter(status, letters):
    facts = replace(DONE, status=status, open_dead_letters=letters)
    found = check_history(lost_then_succeeded(), facts, tolerance_seconds=1.0)
    assert any("open dead letters" in one.detail for one in found)


def test_i11_no_claim_after_a_cancel_was_asked():
    events = lost_then_succeeded()
    asked = event(4, "cancel_requested", 1, 1, actor=PERSON, lease="lease-1", token=1)
    later = [replace(one, seq=one.seq + 1) for one in events[3:]]
    found = check_history([*events[:3], asked, *later], DONE, tolerance_seconds=1.0)
    named = {(one.invariant, later[one.seq - 5].kind) for one in found if one.seq > 4}
    assert {("I11", "failed"), ("I11", "leased"), ("I11", "started")} <= named


def test_a_cancel_that_the_worker_honours_is_fine():
    held = {"lease": "lease-1", "token": 1}
    events = [
        *lost_then_succeeded()[:3],
        event(4, "cancel_requested", 1, 1, actor=PERSON, **held),
        event(5, "cancelled", 2, 1, **held),
    ]
    facts = replace(
        DONE, status="cancelled", attempt=1, lease_token=1, seq=5, cancel_requested=True
    )
    assert broken(events, facts) == set()


FIRST = {"lease": "lease-1", "token": 1}


def asked_and_then(*ends: Event, asks: int = 1) -> list[Event]:
    """A running attempt, asked to stop so often, and what came of it."""
    asked = [event(4 + n, "cancel_requested", 1, 1, actor=PERSON, **FIRST) for n in range(asks)]
    later = [replace(end, seq=4 + asks + n) for n, end in enumerate(ends)]
    return [*lost_then_succeeded()[:3], *asked, *later]


SUCCEEDED = event(0, "succeeded", 2, 1, **FIRST)
CANCELLED = event(0, "cancelled", 2, 1, **FIRST)
TOO_LATE = replace(SUCCEEDED, detail={"cancel": "too_late"})
BY_HANDLER = replace(CANCELLED, detail={"cancel": "by_handler"})
HONOURED = replace(CANCELLED, detail={"cancel": "honoured"})


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        (asked_and_then(TOO_LATE), set()),
        (asked_and_then(HONOURED), set()),
        (asked_and_then(BY_HANDLER, asks=0), set()),
        (asked_and_then(SUCCEEDED), {"I11"}),
        (asked_and_then(TOO_LATE, asks=0), {"I11"}),
        (asked_and_then(HONOURED, asks=0), {"I11"}),
        (asked_and_then(HONOURED, asks=2), {"I11"}),
        (asked_and_then(HONOURED, replace(TOO_LATE, from_status="cancelled")), {"I5"}),
        (asked_and_then(TOO_LATE, replace(HONOURED, from_status="succeeded")), {"I5"}),
    ],
    ids=[
        *("too late", "honoured", "by the handler", "too late and not told"),
        *("too late and not asked", "honoured and not asked", "asked twice"),
        *("succeeded although it was honoured", "honoured although it had succeeded"),
    ],
)
def test_i5_i11_a_wish_to_cancel_has_one_truthful_end(events, rules):
    facts = replace(
        DONE,
        status=events[-1].to_status,
        attempt=1,
        lease_token=1,
        seq=len(events),
        cancel_requested=any(one.kind == "cancel_requested" for one in events),
    )
    assert broken(events, facts) == rules


def test_i11_only_who_runs_a_job_is_asked_to_stop_it_and_under_its_lease():
    asked = event(3, "cancel_requested", 1, 1, actor=PERSON, **FIRST)
    assert "I11" in broken([*lost_then_succeeded()[:2], asked])
    stale = replace(asked, seq=4, token=0)
    assert "I4" in broken([*lost_then_succeeded()[:3], stale])


def test_i9_dead_needs_a_spent_budget_or_a_permanent_error():
    held = {"lease": "lease-1", "token": 1}
    start = lost_then_succeeded()[:3]
    facts = replace(DONE, status="dead", attempt=1, lease_token=1, seq=4, open_dead_letters=1)
    spent = event(4, "dead", 1, 1, detail={"reason": "attempts_exhausted"}, **held)
    permanent = event(4, "dead", 1, 1, detail={"reason": "permanent_error"}, **held)
    assert broken([*start, spent], facts) == {"I9"}
    assert broken([*start, permanent], facts) == set()


def test_a_requeue_grants_a_new_budget_and_a_refund_one_attempt():
    held = {"lease": "lease-1", "token": 1}
    events = [
        *lost_then_succeeded()[:3],
        event(4, "dead", 1, 1, detail={"reason": "permanent_error"}, **held),
        event(5, "requeued", 2, 1, actor=PERSON, due_at=at(2)),
        *attempt(6, 2, 2.5, 2),
        event(8, "released", 3, 2, due_at=at(3), lease="lease-2", token=2),
    ]
    facts = Facts(
        status="scheduled",
        attempt=2,
        attempt_limit=5,  # 1 + 3 by the requeue, 1 by the refund
        max_attempts=3,
        lease_token=2,
        seq=8,
        retry=RETRY,
        due_at=at(3),
        has_due_entry=True,
    )
    assert broken(events, facts) == set()
    assert broken(events, replace(facts, attempt_limit=4)) == {"I18"}


def test_a_late_report_changes_nothing_and_may_follow_the_end():
    refused = replace(
        lost_then_succeeded()[6],
        seq=8,
        kind="completion_rejected",
        from_status="succeeded",
        to_status="succeeded",
        lease="lease-1",
        token=1,
    )
    facts = replace(DONE, seq=8)
    assert broken([*lost_then_succeeded(), refused], facts) == set()
    assert "I4" in broken([*lost_then_succeeded(), replace(refused, to_status="leased")], facts)
    assert broken([*lost_then_succeeded(), replace(refused, token=3)], facts) == {"I3"}
    assert broken([*lost_then_succeeded(), replace(refused, attempt=1)], facts) == {"I9"}


@pytest.mark.parametrize(
    ("rows", "invariant"),
    [
        ({"status": "scheduled", "has_due_entry": True}, "I18"),
        ({"lease": RUNNING_LEASE}, "I1"),
        ({"has_due_entry": True}, "I1"),
        ({"attempt": 1}, "I18"),
        ({"attempt_limit": 2}, "I18"),
        ({"lease_token": 5}, "I18"),
        ({"seq": 9}, "I18"),
        ({"open_dead_letters": 1}, "I18"),
        ({"cancel_requested": True}, "I18"),
    ],
)
def test_i1_i18_rows_that_the_events_do_not_explain(rows, invariant):
    assert invariant in broken(lost_then_succeeded(), replace(DONE, **rows))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "lease-0"}, "lease id"),
        ({"token": 2}, "lease token"),
        ({"attempt": 2}, "lease attempt"),
        ({"worker": "b"}, "lease worker"),
        ({"worker": None, "started_at": None}, "lease worker"),
        ({"started_at": at(0.2)}, "lease started"),
        ({"cancel_requested": True}, "lease cancel_requested"),
    ],
)
def test_i18_a_lease_row_that_the_events_do_not_explain(changes, said):
    events = lost_then_succeeded()[:3]
    assert broken(events, RUNNING) == set()
    odd = replace(RUNNING, lease=replace(RUNNING_LEASE, **changes))
    (violation,) = check_history(events, odd, tolerance_seconds=1.0)
    assert violation.invariant == "I18"
    assert violation.detail.startswith(said)


def test_i18_a_published_lease_has_no_worker_that_no_event_tells_of():
    published = replace(RUNNING_LEASE, worker=None, started_at=None)
    facts = replace(RUNNING, seq=2)
    assert broken(lost_then_succeeded()[:2], replace(facts, lease=published)) == set()
    assert broken(lost_then_succeeded()[:2], facts) == {"I18"}


def test_i18_the_row_of_a_job_that_was_cancelled_before_it_ran_says_so():
    waiting = event(2, "cancelled", 1, 0, from_status="scheduled", actor=PERSON)
    facts = replace(
        DONE, status="cancelled", attempt=0, lease_token=0, seq=2, cancel_requested=True
    )
    assert broken([*lost_then_succeeded()[:1], waiting], facts) == set()
    silent = replace(facts, cancel_requested=False)
    assert broken([*lost_then_succeeded()[:1], waiting], silent) == {"I18"}


def test_i1_a_job_in_two_places_is_named():
    both = replace(RUNNING, has_due_entry=True)
    assert broken(lost_then_succeeded()[:3], both) == {"I1"}


# Expiries that come too early or too late


ALIVE: dict[str, Any] = {
    "tolerance_seconds": 1.0,
    "latest_seconds": 2.0,
}  # ran to 30, so it must be expired from 31 to 33


@pytest.mark.parametrize(("seconds", "rules"), [(32.9, set()), (33.1, {"I8"})])
def test_i8_an_expiry_is_late_only_if_a_scheduler_was_alive(seconds, rules):
    events = lost_then_succeeded()
    events[3] = replace(events[3], at=at(seconds), due_at=at(seconds + 12))
    events[4:] = [replace(one, at=one.at + timedelta(seconds=10)) for one in events[4:]]
    events[4] = replace(events[4], due_at=at(seconds + 12))
    assert broken(events) == set()
    found = check_history(events, DONE, **ALIVE)
    assert {(one.invariant, one.seq) for one in found} == {(rule, 4) for rule in rules}


@pytest.mark.parametrize(("seconds", "rules"), [(32.9, set()), (33.1, {"I8"})])
def test_i8_a_lease_that_nobody_takes_back_is_seen_while_it_is_there(seconds, rules):
    events = lost_then_succeeded()[:3]
    found = check_history(events, RUNNING, **ALIVE, now=at(seconds))
    assert {one.invariant for one in found} == rules
    assert check_history(events, RUNNING, tolerance_seconds=1.0, now=at(99)) == []


@pytest.mark.parametrize(
    ("kind", "more", "rows"),
    [
        ("failed", {"delay": 12.0}, {"has_due_entry": True}),
        ("dead", {"reason": "attempts_exhausted"}, {"open_dead_letters": 1, "max_attempts": 1}),
        ("cancelled", {"cancel": "lease_lost"}, {"cancel_requested": True}),
    ],
)
@pytest.mark.parametrize(("seconds", "rules"), [(31.0, set()), (30.9, {"I7"})])
def test_i7_every_way_an_expiry_may_end_is_held_to_the_expiry_that_it_saw(
    kind, more, rows, seconds, rules
):
    detail = {"cause": "lease_expired", "expires_at": at(30).isoformat(), **more}
    due_at = at(seconds + 12) if kind == "failed" else None
    end = event(0, kind, seconds, 1, actor=SCHEDULER, due_at=due_at, detail=detail, **FIRST)
    events = asked_and_then(end, asks=kind == "cancelled")
    facts = replace(
        DONE,
        **{"status": end.to_status, "attempt": 1, "lease_token": 1, "seq": len(events), **rows},
        due_at=due_at,
    )
    facts = replace(facts, attempt_limit=facts.max_attempts)
    assert broken(events, facts) == rules
    del detail["expires_at"]
    assert "I7" in broken([*events[:-1], replace(events[-1], detail=detail)], facts)


def published_in_vain(seconds: float, **more: Any) -> list[Event]:
    given = {"detail": {"expires_at": at(60).isoformat()}, "lease": "lease-1", "token": 1, **more}
    return [
        *lost_then_succeeded()[:2],
        event(3, "publish_expired", seconds, 1, actor=SCHEDULER, due_at=at(seconds), **given),
    ]


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        (published_in_vain(61.5), set()),
        (published_in_vain(60.9), {"I7"}),
        (published_in_vain(63.1), {"I8"}),
        (published_in_vain(61.5, detail={}), {"I7"}),
        (published_in_vain(61.5, token=2), {"I4"}),
        (published_in_vain(61.5, lease="lease-2"), {"I4"}),
    ],
    ids=["in time", "early", "late", "without its expires_at", "token", "lease"],
)
def test_i4_i7_i8_published_work_is_taken_back_in_time_under_its_own_lease(events, rules):
    facts = Facts(
        status="scheduled",
        attempt=1,
        attempt_limit=4,
        max_attempts=3,
        lease_token=1,
        seq=3,
        retry=RETRY,
        due_at=events[2].due_at,
        has_due_entry=True,
    )
    assert {one.invariant for one in check_history(events, facts, **ALIVE)} == rules


def test_i4_what_a_worker_has_begun_is_not_published_any_more():
    again = replace(published_in_vain(61.5)[2], seq=4)
    assert "I4" in broken([*lost_then_succeeded()[:3], again])


def test_i5_after_a_discard_nothing_follows():
    held = {"lease": "lease-1", "token": 1}
    events = [
        *lost_then_succeeded()[:3],
        event(4, "dead", 1, 1, detail={"reason": "permanent_error"}, **held),
        event(5, "discarded", 2, 1, actor=PERSON),
    ]
    facts = replace(DONE, status="dead", attempt=1, lease_token=1, seq=5)
    assert broken(events, facts) == set()
    requeued = event(6, "requeued", 3, 1, actor=PERSON, due_at=at(3))
    assert "I5" in broken([*events, requeued])


# Rows written past validation


def odd(*values: Any) -> tuple[Any, ...]:
    return values


POISON: dict[str, Any] = {
    "detail of another type": (changed(3, detail={}, detail_lost=True), {"I18", "I4", "I10"}),
    "expires_at absent": (changed(3, detail={"cause": "lease_expired", "delay": 12.0}), {"I7"}),
    **{
        f"expires_at {value!r}": (
            changed(3, detail={"cause": "lease_expired", "delay": 12.0, "expires_at": value}),
            {"I7"},
        )
        for value in odd(None, 7, "soon", "2026-06-01T12:00:30", "9999-12-31T23:59:59Z", {}, [])
    },
    **{
        f"delay {str(value)[:20]!r}": (
            changed(
                3,
                detail={
                    "cause": "lease_expired",
                    "delay": value,
                    "expires_at": at(30).isoformat(),
                },
            ),
            {"I10"},
        )
        for value in odd(None, "12", True, [], 10**400, 1e300, -1e300, float("inf"), float("nan"))
    },
    "due_at absent": (changed(3, due_at=None), {"I10"}),
    "due_at at the end of time": (changed(3, due_at=datetime.max.replace(tzinfo=UTC)), {"I10"}),
    "at the beginning of time": (changed(3, at=datetime.min.replace(tzinfo=UTC)), {"I7", "I10"}),
    "token null": (changed(4, token=None), {"I3"}),
    "lease null": (changed(4, lease=None), {"I3"}),
    "unknown kind": (changed(6, kind="exploded"), {"I18"}),
    "empty kind": (changed(2, kind=""), {"I18"}),
    "attempt below zero": (changed(4, attempt=-(2**31)), {"I9"}),
    "cause of another type": (
        changed(3, detail={"cause": ["lease_expired"], "delay": 12}),
        {"I4"},
    ),
}


@pytest.mark.parametrize("name", POISON)
def test_f65_a_poison_event_is_told_as_a_violation(name):
    spoil, rules = POISON[name]
    assert rules <= broken(spoil(lost_then_succeeded()))


@pytest.mark.parametrize(
    "retry", [None, [], 7, "fixed", {"kind": ["fixed"]}, {"kind": "fixed", "base_seconds": "soon"}]
)
def test_f65_a_poison_policy_bounds_nothing(retry):
    assert broken(lost_then_succeeded(), replace(DONE, retry=retry)) == set()


MOMENTS = st.datetimes(timezones=st.just(UTC))
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(["cause", "delay", "expires_at", "reason", "retry_after"])
VALUES = JUNK | st.sampled_from(
    ["lease_expired", "permanent_error", 12.0, 10**400, at(30).isoformat()]
)
STATUSES = st.sampled_from([*JobStatus, "exploded", ""])


@given(
    junk=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "at": MOMENTS,
                "kind": st.sampled_from([*EventKind, "exploded", ""]),
                "from_status": st.none() | STATUSES,
                "to_status": STATUSES,
                "attempt": st.integers(-(2**31), 2**31 - 1),
                "actor": st.text(max_size=5),
                "lease": st.none() | st.text(max_size=5),
                "token": st.none() | st.integers(-(2**31), 2**31 - 1),
                "due_at": st.none() | MOMENTS,
                "detail": st.dictionaries(NAMES, VALUES, max_size=4),
                "detail_lost": st.booleans(),
            },
        ),
        min_size=7,
        max_size=7,
    ),
    retry=VALUES,
    lease=st.none()
    | st.builds(
        LeaseFacts,
        id=st.text(max_size=5),
        worker=st.none() | st.text(max_size=5),
        started_at=st.none() | MOMENTS,
        expires_at=MOMENTS,
    ),
    now=MOMENTS,
)
def test_f65_no_history_whatever_ends_the_check(junk, retry, lease, now):
    events = [replace(one, **odd) for one, odd in zip(lost_then_succeeded(), junk, strict=True)]
    facts = replace(DONE, retry=retry, lease=lease)
    check_history(events, facts, **ALIVE, now=now)
