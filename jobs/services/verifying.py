"""verify: does every history obey the rules and lead to the rows that are there, and is every ledger what a calendar says?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from jobs.conf import conf
from jobs.policies.deliveries import Delivery, Receiver, check_deliveries
from jobs.policies.history import Event, Violation, check_history
from jobs.queries.fleet import forsaken_shards
from jobs.queries.histories import histories, orphans
from jobs.services.verifying_schedules import Finding, check_ledgers, check_strays

SLACK_SECONDS = 1.0  # beyond a tick, for the work of a turn
KEPT = 1000  # violations listed one by one; all are counted


@dataclass(slots=True)
class Verdict:
    """What a verification found.

    Attributes:
        jobs: Jobs read.
        events: Events read.
        schedules: Schedules whose ledger was held against the calendar.
        occurrences: Rows of their ledgers.
        unchecked: Versions that cannot be read, and differences that other zone data may explain.
        by_invariant: Number of violations of each invariant.
        violations: The first ones, with their job (None: a row without a job).
        first_job: The first offending job that has events.
        first_story: All of them, in order.
    """

    jobs: int = 0
    events: int = 0
    schedules: int = 0
    occurrences: int = 0
    unchecked: int = 0
    by_invariant: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[UUID | None, Violation]] = field(default_factory=list)
    first_job: UUID | None = None
    first_story: list[Event] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True when nothing was found."""
        return not self.by_invariant

    def add(self, job_id: UUID | None, violation: Violation) -> None:
        """Count one violation, and keep it while there is room."""
        self.by_invariant[violation.invariant] += 1
        if len(self.violations) < KEPT:
            self.violations.append((job_id, violation))


def verify_history(
    *,
    tenant_id: int | None = None,
    handler: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    job_id: UUID | None = None,
    at_rest: bool = False,
    scheduler_alive: bool = False,
    deliveries: Mapping[UUID, Sequence[Delivery]] | None = None,
    receiver: Receiver = Receiver.APPLY_ONCE,
) -> Verdict:
    """Check histories, rows and ledgers in one snapshot, so that a running system can be verified too.

    Args:
        tenant_id: Only this tenant's jobs.
        handler: Only jobs of this handler.
        since: Only jobs created, and firings of schedules due, then or later, aware.
        until: Only jobs created, and firings due, before, aware.
        job_id: Only this job; with it, or with a handler, no ledger is looked at.
        at_rest: Nothing runs and nothing is due: a leased job, or one waiting past its time, is a violation too.
        scheduler_alive: A scheduler was at work all the time, so an expiry that came late is a violation too.
            (An outage is none: without this, lateness is no concern.)
        deliveries: What a receiver logged, by job; then every job that is chosen must be one that calls it.
        receiver: What that receiver promises.
    """
    verdict, shards = Verdict(), range(conf().shards)
    latest = conf().tick_seconds + SLACK_SECONDS if scheduler_alive else None
    everything = not any((tenant_id, handler, since, until, job_id))
    unseen = set(deliveries or ()) if everything else set()
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read, read only")
            cursor.execute("select transaction_timestamp()")
            (now,) = cursor.fetchone() or (None,)
        chosen = histories(
            shards=shards,
            tenant_id=tenant_id,
            handler=handler,
            since=since,
            until=until,
            job_id=job_id,
        )
        for history in chosen:
            verdict.jobs += 1
            verdict.events += len(history.events)
            unseen.discard(history.job_id)
            found = check_history(
                history.events,
                history.facts,
                tolerance_seconds=conf().clock_tolerance_seconds,
                latest_seconds=latest,
                now=now,
            )
            if at_rest and (history.facts.lease or _overdue(history.facts.due_at, now)):
                found.append(Violation("I1", 0, f"{history.facts.status} although all is at rest"))
            if deliveries is not None:
                found += check_deliveries(
                    deliveries.get(history.job_id, ()),
                    history.events,
                    history.facts.status,
                    receiver=receiver,
                )
            if found and not verdict.first_story:
                verdict.first_job, verdict.first_story = history.job_id, history.events
            for violation in found:
                verdict.add(history.job_id, violation)
        if job_id is None:
            for kind, orphan in orphans(shards=shards):
                verdict.add(orphan, Violation("I1", 0, f"a {kind} whose job is gone"))
        for stranger in sorted(unseen):
            verdict.add(stranger, Violation("I16", 0, "delivered for a job that is not there"))
        if handler is None and job_id is None:
            _verify_schedules(verdict, shards, tenant_id, since, until)
        if latest is not None:
            for shard in forsaken_shards(seconds=latest):
                verdict.add(None, Violation("I8", 0, f"shard {shard} has had no owner for long"))
    return verdict


def _verify_schedules(
    verdict: Verdict,
    shards: Sequence[int],
    tenant_id: int | None,
    since: datetime | None,
    until: datetime | None,
) -> None:
    for checked in check_ledgers(shards=shards, tenant_id=tenant_id, since=since, until=until):
        verdict.schedules += 1
        verdict.occurrences += checked.occurrences
        verdict.unchecked += checked.unreadable
        _take(verdict, checked.findings)
    _take(verdict, check_strays(shards=shards, tenant_id=tenant_id, since=since, until=until))


def _take(verdict: Verdict, findings: Sequence[Finding]) -> None:
    for job_id, violation in findings:
        if violation is None:
            verdict.unchecked += 1
        else:
            verdict.add(job_id, violation)


def _overdue(due_at: datetime | None, now: datetime | None) -> bool:
    return due_at is not None and now is not None and due_at <= now
