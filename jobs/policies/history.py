"""What a job's history must obey: replays its events, compares the result with its rows, names what does not fit.

Plain Python over plain values, so that the checker itself can be tested on histories no engine would write. The
invariants carry the numbers of docs/faults.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobs.errors import InvalidField
from jobs.policies.retry import RetryPolicy, nominal_seconds
from jobs.policies.times import parse_time
from jobs.states import EventKind, JobStatus

# How an event moves a job: kind → (status before, status after). A completion_rejected moves nothing.
_K, _S = EventKind, JobStatus
MOVES: dict[str, tuple[str | None, str]] = {
    _K.CREATED: (None, _S.SCHEDULED),
    _K.LEASED: (_S.SCHEDULED, _S.LEASED),
    _K.STARTED: (_S.LEASED, _S.LEASED),
    _K.CANCEL_REQUESTED: (_S.LEASED, _S.LEASED),
    _K.SUCCEEDED: (_S.LEASED, _S.SUCCEEDED),
    _K.FAILED: (_S.LEASED, _S.SCHEDULED),
    _K.DEAD: (_S.LEASED, _S.DEAD),
    _K.SNOOZED: (_S.LEASED, _S.SCHEDULED),
    _K.RELEASED: (_S.LEASED, _S.SCHEDULED),
    _K.PUBLISH_EXPIRED: (_S.LEASED, _S.SCHEDULED),
    _K.EDITED: (_S.SCHEDULED, _S.SCHEDULED),
    _K.REQUEUED: (_S.DEAD, _S.SCHEDULED),
    _K.DISCARDED: (_S.DEAD, _S.DEAD),
}
REFUNDS = frozenset({_K.SNOOZED, _K.RELEASED, _K.PUBLISH_EXPIRED})
ENDS = frozenset({_K.SUCCEEDED, _K.FAILED, _K.DEAD, _K.SNOOZED, _K.RELEASED, _K.CANCELLED})
MOMENT = timedelta(milliseconds=1)  # rounding of seconds that went through JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of the history; names as in JobEvent, times aware."""

    seq: int
    at: datetime
    kind: str
    from_status: str | None
    to_status: str
    attempt: int
    actor: str
    lease: str | None = None
    token: int | None = None
    due_at: datetime | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    detail_lost: bool = False  # it was no JSON object, or could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """The job's lease as its row has it; `worker` and `started_at` are None while it is only published."""

    id: str
    token: int
    attempt: int
    worker: str | None
    started_at: datetime | None
    expires_at: datetime
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the tables say of one job now."""

    status: str
    attempt: int
    attempt_limit: int
    max_attempts: int
    lease_token: int
    seq: int  # counted on the lease while there is one
    retry: object = None
    due_at: datetime | None = None  # of the due entry
    has_due_entry: bool = False
    cancel_requested: bool = False  # somebody asked for a cancel, whatever came of it
    lease: LeaseFacts | None = None
    open_dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the invariant's number and what was seen. `seq` is the event it was noticed at, 0 for rows."""

    invariant: str
    seq: int
    detail: str


@dataclass(slots=True)
class _State:
    """The job as its events tell it, up to the one being read."""

    status: str | None = None
    attempt: int = 0
    token: int = 0
    limit: int = 0
    due_at: datetime | None = None
    lease: str | None = None
    worker: str | None = None  # actor that started this lease
    started_at: datetime | None = None
    cancel_asked: bool = False  # of the worker that runs it
    cancel_known: bool = False  # somebody cancelled it, running or not
    discarded: bool = False
    leases: set[str] = field(default_factory=set)
    last_failure: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What expiries are held to.

    Attributes:
        tolerance_seconds: Clock tolerance that every expiry must have waited.
        latest_seconds: After the tolerance, a scheduler that is alive has expired by then; None when there may have
            been none alive.
        now: Time of the snapshot, for leases that should be gone by now.
    """

    tolerance_seconds: float
    latest_seconds: float | None = None
    now: datetime | None = None


def check_history(
    events: Sequence[Event],
    facts: Facts,
    *,
    tolerance_seconds: float,
    latest_seconds: float | None = None,
    now: datetime | None = None,
) -> list[Violation]:
    """Every rule that this job's history or rows break; empty when all is well.

    Args:
        events: All events of the job in order of seq.
        facts: Its rows, read in the same snapshot.
        tolerance_seconds: Clock tolerance that expiries must have waited.
        latest_seconds: A scheduler was alive all the time: it expires a lease so soon after the tolerance.
        now: When the rows were read, to find a lease that should be gone by now.

    Nothing that a row may hold makes this raise: what cannot be read is a violation where a rule needs it.

    >>> facts = Facts(status="scheduled", attempt=0, attempt_limit=1, max_attempts=1, lease_token=0, seq=0)
    >>> [violation.invariant for violation in check_history([], facts, tolerance_seconds=1.0)]
    ['I18', 'I1']
    """
    bounds = Bounds(tolerance_seconds=tolerance_seconds, latest_seconds=latest_seconds, now=now)
    state, found = _State(limit=facts.max_attempts), []
    for position, event in enumerate(events, start=1):
        if event.seq != position:
            found.append(Violation("I18", event.seq, f"seq {event.seq} where {position} was next"))
            return found  # everything after a gap would only repeat this
        found.extend(_step(state, event, facts, bounds))
    found.extend(_compare(state, facts, len(events)))
    found.extend(_check_overdue(facts, bounds))
    return found


def _step(state: _State, event: Event, facts: Facts, bounds: Bounds) -> Iterator[Violation]:
    """Rules that an event breaks where it stands; then the state after it."""
    if event.detail_lost:
        yield Violation("I18", event.seq, "its detail is no JSON object that can be read")
    if event.kind != EventKind.LEASED and event.attempt != state.attempt:
        yield Violation("I9", event.seq, f"attempt {event.attempt} in attempt {state.attempt}")
    if event.kind == EventKind.COMPLETION_REJECTED:
        yield from _check_refusal(state, event)
        return
    yield from _check_move(state, event)
    match event.kind:
        case EventKind.LEASED:
            yield from _check_claim(state, event)
        case EventKind.STARTED:
            yield from _check_lease(state, event)
            if state.worker is not None:
                yield Violation("I2", event.seq, "started twice under one lease")
        case EventKind.CANCEL_REQUESTED:
            yield from _check_lease(state, event)
            if state.cancel_asked:
                yield Violation("I11", event.seq, "a cancel was asked twice")
            if state.worker is None:
                yield Violation("I11", event.seq, "a cancel was asked of nobody")
    if event.kind in ENDS and state.status == JobStatus.LEASED:
        yield from _check_end(state, event, bounds)
    if event.kind == EventKind.PUBLISH_EXPIRED:
        yield from _check_publish_expiry(state, event, bounds)
    if event.kind == EventKind.FAILED:
        yield from _check_backoff(event, facts.retry)
    _apply(state, event, facts)


def _check_refusal(state: _State, event: Event) -> Iterator[Violation]:
    if (event.from_status, event.to_status) != (state.status, state.status):
        yield Violation("I4", event.seq, "a refused report changed the status")
    if event.lease is not None and event.lease == state.lease:
        yield Violation("I4", event.seq, "the report of the current lease was refused")
    if event.token is not None and event.token > state.token:
        yield Violation("I3", event.seq, f"refused token {event.token} before it was issued")


def _check_move(state: _State, event: Event) -> Iterator[Violation]:
    if event.kind not in MOVES and event.kind != EventKind.CANCELLED:
        yield Violation("I18", event.seq, f"an event of an unknown kind, {event.kind!r}")
        return
    before, after = MOVES.get(event.kind, (state.status, JobStatus.CANCELLED))
    if state.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED):
        yield Violation("I5", event.seq, f"{event.kind} after the job was {state.status}")
    elif state.status == JobStatus.DEAD and event.kind not in (_K.REQUEUED, _K.DISCARDED):
        yield Violation("I5", event.seq, f"{event.kind} after the job was dead")
    elif state.discarded:
        yield Violation("I5", event.seq, f"{event.kind} after its dead letter was discarded")
    elif before != state.status:
        rule = "I2" if event.kind in (_K.LEASED, _K.STARTED) else "I18"
        yield Violation(rule, event.seq, f"{event.kind} while the job was {state.status}")
    if (event.from_status, event.to_status) != (state.status, after):
        told = f"{event.from_status} → {event.to_status}"
        yield Violation(
            "I18", event.seq, f"{event.kind} says {told}, not {state.status} → {after}"
        )
    if state.cancel_asked and event.kind in (_K.LEASED, _K.STARTED):
        yield Violation("I11", event.seq, f"{event.kind} after a cancel was asked")


def _check_claim(state: _State, event: Event) -> Iterator[Violation]:
    if event.attempt != state.attempt + 1:
        yield Violation("I9", event.seq, f"attempt {event.attempt} after {state.attempt}")
    if event.token is None or event.token <= state.token:
        yield Violation("I3", event.seq, f"token {event.token} after {state.token}")
    if event.lease is None or event.lease in state.leases:
        yield Violation("I3", event.seq, f"lease {event.lease} was used before")
    if state.due_at is not None and event.at < state.due_at:
        yield Violation("I6", event.seq, f"claimed at {event.at}, due at {state.due_at}")
    if _differ(event.due_at, state.due_at):
        yield Violation("I18", event.seq, f"due {event.due_at} where {state.due_at} was set")
    if event.attempt > state.limit:
        yield Violation("I9", event.seq, f"attempt {event.attempt} of {state.limit}")
    failure = state.last_failure
    if failure is not None and failure.due_at is not None and event.at < failure.due_at:
        yield Violation("I10", event.seq, f"claimed before the backoff ended at {failure.due_at}")


def _check_end(state: _State, event: Event, bounds: Bounds) -> Iterator[Violation]:
    expired = event.detail.get("cause") == "lease_expired"
    yield from _check_lease(state, event)
    yield from _check_cancel(state, event)
    if expired:
        if state.worker is None and event.kind != EventKind.CANCELLED:
            yield Violation("I9", event.seq, "an attempt that never started was counted")
        yield from _check_expiry(event, bounds)
    elif state.worker is not None:
        if event.actor != state.worker:
            yield Violation("I4", event.seq, f"{event.actor} ended what {state.worker} holds")
    elif event.kind != EventKind.CANCELLED:
        yield Violation("I4", event.seq, f"{event.kind} of an attempt that never started")
    if event.kind == EventKind.DEAD:
        permanent = event.detail.get("reason") == "permanent_error"
        if not permanent and event.attempt < state.limit:
            told = f"dead at attempt {event.attempt} of {state.limit} without a permanent error"
            yield Violation("I9", event.seq, told)
    if event.kind == EventKind.FAILED and event.attempt >= state.limit:
        yield Violation(
            "I9", event.seq, f"tried again after attempt {event.attempt} of {state.limit}"
        )


def _check_cancel(state: _State, event: Event) -> Iterator[Violation]:
    """An attempt that was asked to stop ends as cancelled, or succeeds and says that the wish came too late."""
    outcome = event.detail.get("cancel")
    if event.kind == EventKind.SUCCEEDED:
        if (outcome == "too_late") != state.cancel_asked:
            asked = "was" if state.cancel_asked else "was never"
            told = f"succeeded with cancel {outcome!r}, and a cancel {asked} asked"
            yield Violation("I11", event.seq, told)
    elif event.kind != EventKind.CANCELLED:
        if state.cancel_asked:
            yield Violation("I11", event.seq, f"{event.kind} after a cancel was asked")
    elif state.worker is not None and not state.cancel_asked and outcome != "by_handler":
        yield Violation("I11", event.seq, "cancelled while it ran, and nobody had asked")


def _check_lease(state: _State, event: Event) -> Iterator[Violation]:
    if (event.lease, event.token) != (state.lease, state.token):
        yield Violation("I4", event.seq, f"{event.kind} with another lease or token")


def _check_publish_expiry(state: _State, event: Event, bounds: Bounds) -> Iterator[Violation]:
    yield from _check_lease(state, event)
    if state.worker is not None:
        yield Violation("I4", event.seq, f"{event.kind} of what {state.worker} holds")
    yield from _check_expiry(event, bounds)


def _check_expiry(event: Event, bounds: Bounds) -> Iterator[Violation]:
    try:
        expires_at = parse_time(event.detail.get("expires_at"), "/expires_at")
    except InvalidField:
        yield Violation("I7", event.seq, "an expiry without the expires_at it saw")
        return
    waited = (event.at - expires_at).total_seconds()
    if waited < bounds.tolerance_seconds - MOMENT.total_seconds():
        yield Violation("I7", event.seq, f"expired at {event.at}, lease ran to {expires_at}")
    if _is_late(waited, bounds):
        told = f"expired at {event.at}, {waited:.3f} s after the lease ran out"
        yield Violation("I8", event.seq, told)


def _check_overdue(facts: Facts, bounds: Bounds) -> Iterator[Violation]:
    if bounds.now is None or facts.lease is None:
        return
    waits = (bounds.now - facts.lease.expires_at).total_seconds()
    if _is_late(waits, bounds):
        yield Violation("I8", 0, f"its lease ran out {waits:.3f} s ago and nobody took it back")


def _is_late(waited: float, bounds: Bounds) -> bool:
    latest = bounds.latest_seconds
    return latest is not None and waited > bounds.tolerance_seconds + latest


def _check_backoff(event: Event, retry: object) -> Iterator[Violation]:
    """The wait that a failure set, against the policy; a handler's own wish is marked in the detail."""
    delay = _number(event.detail.get("delay"))
    if event.due_at is None or delay is None:
        yield Violation("I10", event.seq, "a retry without its delay")
        return
    waits = (event.due_at - event.at).total_seconds()
    if abs(waits - delay) > MOMENT.total_seconds():
        yield Violation("I10", event.seq, f"due {event.due_at} does not follow from {delay} s")
    if "retry_after" in event.detail:
        return
    try:
        policy = RetryPolicy.parse(retry)
    except InvalidField:
        return  # a row written past validation; the engine fell back to its default
    nominal = nominal_seconds(policy, max(1, event.attempt))
    least, most = nominal * (1 - policy.jitter), nominal * (1 + policy.jitter)
    if not least - 0.001 <= delay <= most + 0.001:
        told = f"waits {delay} s, the policy says {least} to {most} s"
        yield Violation("I10", event.seq, told)


def _apply(state: _State, event: Event, facts: Facts) -> None:
    state.status = event.to_status
    if event.due_at is not None and event.kind != EventKind.LEASED:
        state.due_at = event.due_at
    match event.kind:
        case EventKind.LEASED:
            state.attempt, state.token = event.attempt, event.token or state.token
            state.lease, state.worker, state.last_failure = event.lease, None, None
            state.started_at = None
            state.leases.add(str(event.lease))
        case EventKind.STARTED:
            state.worker, state.started_at = event.actor, event.at
        case EventKind.CANCEL_REQUESTED:
            state.cancel_asked = state.cancel_known = True
        case EventKind.CANCELLED:  # one that ran tells by its request, if there was one
            state.cancel_known = state.cancel_known or state.worker is None
        case EventKind.REQUEUED:
            state.limit = state.attempt + facts.max_attempts
        case EventKind.DISCARDED:
            state.discarded = True
        case EventKind.FAILED:
            state.last_failure = event
        case EventKind.EDITED:
            state.last_failure = None  # a person may bring a retry forward
    if event.kind in REFUNDS:
        state.limit += 1
    if event.to_status != JobStatus.LEASED:
        state.lease = state.worker = None


def _compare(state: _State, facts: Facts, events: int) -> Iterator[Violation]:
    """The rows against the state that the events lead to."""
    told = [
        ("status", state.status, facts.status),
        ("attempt", state.attempt, facts.attempt),
        ("attempt_limit", state.limit, facts.attempt_limit),
        ("lease_token", state.token, facts.lease_token),
        ("seq", events, facts.seq),
        ("cancel_requested", state.cancel_known, facts.cancel_requested),
    ]
    for name, said, stored in told:
        if said != stored:
            yield Violation("I18", 0, f"{name}: events say {said}, the row says {stored}")
    waits, owned = facts.status == JobStatus.SCHEDULED, facts.status == JobStatus.LEASED
    has_lease = facts.lease is not None
    if facts.has_due_entry != waits or has_lease != owned:
        places = [
            n
            for n, is_there in (("due entry", facts.has_due_entry), ("lease", has_lease))
            if is_there
        ]
        yield Violation(
            "I1",
            0,
            f"{facts.status}, and it has {' and '.join(places) or 'neither due entry nor lease'}",
        )
    if waits and _differ(facts.due_at, state.due_at):
        yield Violation("I18", 0, f"due at {facts.due_at}, events say {state.due_at}")
    if facts.lease is not None:
        yield from _compare_lease(state, facts.lease)
    if facts.open_dead_letters != (facts.status == JobStatus.DEAD and not state.discarded):
        yield Violation(
            "I18", 0, f"{facts.open_dead_letters} open dead letters of a {facts.status} job"
        )


def _compare_lease(state: _State, lease: LeaseFacts) -> Iterator[Violation]:
    told: list[tuple[str, object, object]] = [
        ("id", state.lease, lease.id),
        ("token", state.token, lease.token),
        ("attempt", state.attempt, lease.attempt),
        ("worker", state.worker, None if lease.worker is None else f"worker:{lease.worker}"),
        ("cancel_requested", state.cancel_asked, lease.cancel_requested),
    ]
    for name, said, stored in told:
        if said != stored:
            yield Violation("I18", 0, f"lease {name}: events say {said}, the row says {stored}")
    if _differ(lease.started_at, state.started_at):
        told_at = f"lease started at {lease.started_at}, events say {state.started_at}"
        yield Violation("I18", 0, told_at)


def _number(value: object) -> float | None:
    """The value if it is a number, whatever its size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _differ(one: datetime | None, other: datetime | None) -> bool:
    """True when both are known and are not the same moment."""
    return one is not None and other is not None and abs(one - other) > MOMENT
