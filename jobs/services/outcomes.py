"""report: what a worker's attempts came to, written in batches, each through the one transition it calls for.

Nothing in here can fail on odd input: texts and results were cleaned when the outcome was made.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobs import telemetry
from jobs.policies.cleaning import fingerprint
from jobs.policies.retry import Exhausted, RetryPolicy, decide
from jobs.transitions.cancel import acknowledge_cancels
from jobs.transitions.finish import (
    complete_jobs,
    dead_letter_jobs,
    reject_completion,
    retry_jobs,
    snooze_jobs,
)
from jobs.transitions.lease import release_jobs
from jobs.transitions.take import Taken

log = logging.getLogger(__name__)


class Ending(StrEnum):
    """How an attempt ended, as its worker saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)  # not frozen: one is made per job, and freezing triples that
class AttemptOutcome:
    """One attempt's end. Durations are seconds.

    Attributes:
        taken: The attempt.
        ending: How it ended.
        result: Cleaned JSON of a success.
        error: {"type", "message", "where"} of a failure, cleaned.
        cause: Why it failed: "error", "timeout" or "crashed".
        permanent: No further attempt makes sense.
        delay_seconds: Of a snooze, or as the handler asked for the next attempt.
        reason: In the handler's words.
        by_handler: A cancel that the handler decided itself.
    """

    taken: Taken
    ending: Ending
    result: object = None
    error: Mapping[str, Any] | None = None
    cause: str = "error"
    permanent: bool = False
    delay_seconds: float | None = None
    reason: str = ""
    by_handler: bool = False

    def stripped(self) -> AttemptOutcome:
        """The same end without anything the handler produced, for a database that refuses its contents."""
        error = None
        if self.error is not None:
            error = {
                "type": "Unrecordable",
                "message": "the error could not be stored",
                "where": "",
            }
        return replace(self, result=None, error=error, reason="")


def failure_plan(
    *,
    attempt: int,
    attempt_limit: int,
    retry: str,
    handler: str,
    error: Mapping[str, Any],
    cause: str,
    permanent: bool = False,
    retry_after_seconds: float | None = None,
    rng: random.Random,
) -> tuple[bool, dict[str, Any]]:
    """What a failed attempt calls for: (True, item for a retry) or (False, item for a dead letter)."""
    decision = decide(
        attempt=max(1, attempt),
        attempt_limit=attempt_limit,
        policy=_stored_policy(retry),
        rng=rng,
        permanent=permanent,
        retry_after_seconds=retry_after_seconds,
    )
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    where = str(error.get("where", ""))
    told = {
        **error,
        "type": kind,
        "message": message,
        "fingerprint": fingerprint(handler, kind, message, where),
        "attempt": attempt,
    }
    if isinstance(decision, Exhausted):
        return False, {"reason": decision.reason, "cause": cause, "error": told}
    plan: dict[str, Any] = {"delay": decision.seconds, "cause": cause, "error": told}
    if retry_after_seconds is not None:
        plan["retry_after"] = retry_after_seconds  # why this delay is not the policy's
    return True, plan


def _stored_policy(text: str) -> RetryPolicy:
    """The policy of a stored row, or the default one for a row that a hand wrote: an outcome must get recorded."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # a number of 5,000 digits, brackets 5,000 deep
        value = None
    return RetryPolicy.from_stored(value)


def report_outcomes(
    *,
    shards: Sequence[int],
    worker_id: UUID,
    outcomes: Sequence[AttemptOutcome],
    rng: random.Random,
) -> list[AttemptOutcome]:
    """Write a batch of outcomes: one statement per kind of ending that occurs in it.

    A failure, snooze or release whose job was asked to stop ends as cancelled. What finds no lease is recorded as
    a rejected completion, unless this very report had been accepted before.

    Args:
        shards: Shards of the leases.
        worker_id: The holder.
        outcomes: At most one per lease.
        rng: For retry jitter.

    Returns:
        Outcomes that were refused because the lease is no longer this worker's.

    Raises:
        DatabaseError: Nothing or a part was written; reporting all of it again is safe.
    """
    plans: dict[Callable[..., set[UUID]], dict[UUID, Any]] = {}
    for outcome in outcomes:
        write, item = _plan(outcome, rng)
        plans.setdefault(write, {})[outcome.taken.lease_id] = item
    accepted: set[UUID] = set()
    for write, items in plans.items():
        accepted |= write(shards=shards, worker_id=worker_id, items=items)
    left = [outcome for outcome in outcomes if outcome.taken.lease_id not in accepted]
    stopped = {
        outcome.taken.lease_id: _honoured(outcome)
        for outcome in left
        if outcome.ending is not Ending.SUCCEEDED
    }
    if stopped:
        accepted |= acknowledge_cancels(shards=shards, worker_id=worker_id, stopped=stopped)
    return [
        outcome
        for outcome in left
        if outcome.taken.lease_id not in accepted and _reject(outcome, worker_id)
    ]


def _plan(outcome: AttemptOutcome, rng: random.Random) -> tuple[Callable[..., set[UUID]], Any]:
    match outcome.ending:
        case Ending.SUCCEEDED:
            return _complete, outcome.result
        case Ending.SNOOZED:
            return _snooze, {"delay": outcome.delay_seconds or 0.0, "reason": outcome.reason}
        case Ending.RELEASED:
            return _release, {"reason": outcome.reason}
        case Ending.CANCELLED:
            return (_cancel_own if outcome.by_handler else _cancel), _honoured(outcome)
        case Ending.FAILED:
            taken = outcome.taken
            again, item = failure_plan(
                attempt=taken.attempt,
                attempt_limit=taken.attempt_limit,
                retry=taken.retry,
                handler=taken.handler,
                error=outcome.error or {},
                cause=outcome.cause,
                permanent=outcome.permanent,
                retry_after_seconds=outcome.delay_seconds,
                rng=rng,
            )
            return (_retry if again else _bury), item


def _complete(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, object]) -> set[UUID]:
    return complete_jobs(shards=shards, worker_id=worker_id, results=items)


def _retry(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return retry_jobs(shards=shards, worker_id=worker_id, failures=items)


def _bury(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return dead_letter_jobs(shards=shards, worker_id=worker_id, failures=items)


def _snooze(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return snooze_jobs(shards=shards, worker_id=worker_id, snoozes=items)


def _release(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return release_jobs(shards=shards, worker_id=worker_id, reasons=items)


def _cancel(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return acknowledge_cancels(shards=shards, worker_id=worker_id, stopped=items)


def _cancel_own(*, shards: Sequence[int], worker_id: UUID, items: dict[UUID, Any]) -> set[UUID]:
    return acknowledge_cancels(shards=shards, worker_id=worker_id, stopped=items, by_handler=True)


def _honoured(outcome: AttemptOutcome) -> dict[str, Any]:
    told: dict[str, Any] = {"cancel": "by_handler" if outcome.by_handler else "honoured"}
    if outcome.reason:
        told["reason"] = outcome.reason
    if outcome.error:
        told["error"] = dict(outcome.error)
    return told


def _reject(outcome: AttemptOutcome, worker_id: UUID) -> bool:
    taken = outcome.taken
    refused = reject_completion(
        shard=taken.shard,
        job_id=taken.job_id,
        lease_id=taken.lease_id,
        token=taken.token,
        worker_id=worker_id,
        reported=outcome.ending.value,
    )
    if refused:
        log.warning(
            telemetry.COMPLETION_REJECTED,
            extra={"job_id": str(taken.job_id), "attempt": taken.attempt, "token": taken.token},
        )
    return refused
