"""From decisions about firings to rows: their occurrences, and the jobs of those that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from jobs.models import Tenant
from jobs.policies.misfire import Decision
from jobs.policies.timing import Timing
from jobs.policies.zones import ZONE_DATA
from jobs.queries.schedules import StoredSchedule
from jobs.services.requests import JobRequest
from jobs.services.submit import submit_without_keys
from jobs.transitions.ledger import NewOccurrence, give_jobs


class Wanted(NamedTuple):
    """A job that an occurrence is to get."""

    occurrence: int
    tenant_id: int
    request: JobRequest


def occurrence_of(
    stored: StoredSchedule, timing: Timing, decision: Decision, *, caught_up: bool = False
) -> NewOccurrence:
    """The row of the ledger for one decision."""
    firing, recurrence = decision.firing, timing.recurrence
    return NewOccurrence(
        schedule_id=stored.id,
        shard=stored.shard,
        version=stored.version,
        fire_at=firing.fire_at,
        known_at=firing.known_at,
        slot=firing.slot.isoformat(),
        number=firing.number,
        resolution=firing.resolution.value,
        due_at=decision.due_at,
        verdict=decision.verdict,
        reason=decision.reason,
        timezone=recurrence.zone,
        on_gap=recurrence.on_gap.value,
        on_overlap=recurrence.on_overlap.value,
        zone_data=ZONE_DATA,
        caught_up=caught_up,
    )


def wanted_job(
    stored: StoredSchedule,
    request: JobRequest,
    decision: Decision,
    occurrence: int,
    misfire_at: datetime | None,
) -> Wanted:
    """The job of one firing.

    Args:
        stored: Its schedule.
        request: The schedule's template.
        decision: The firing and when it is due.
        occurrence: Key of its row in the ledger.
        misfire_at: When its schedule decides about it, if nobody has claimed it by then.
    """
    own = replace(
        request,
        due_at=decision.due_at,
        fire_at=decision.firing.fire_at,
        schedule_id=stored.id,
        misfire_at=misfire_at,
        concurrency_key=stored.key or request.concurrency_key,
        request_key=None,  # each firing is a job of its own
    )
    return Wanted(occurrence, stored.tenant_id, own)


def make_jobs(wanted: Sequence[Wanted], actor: str) -> None:
    """Create them together, and name each in its occurrence.

    Raises:
        JobError: As in submit.
    """
    if not wanted:
        return
    tenants = Tenant.objects.in_bulk(sorted({one.tenant_id for one in wanted}))
    in_order = sorted(wanted, key=attrgetter("tenant_id"))
    pairs = [(tenants[one.tenant_id], one.request) for one in in_order]
    made = submit_without_keys(pairs, actor=actor)
    give_jobs(
        jobs={
            one.occurrence: (job.job_id, job.shard)
            for one, job in zip(in_order, made, strict=True)
        }
    )
