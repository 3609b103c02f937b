"""Expansion: every firing of every schedule gets its verdict, and its job if it is to run, in one transaction.

Who wins: whoever has locked the schedule's row. Twice is harmless all the same: a firing is unique in the ledger.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, commits, rows
from jobs.errors import InvalidField, JobError, QuotaExceeded, ValidationFailed
from jobs.models import Schedule, Tenant
from jobs.policies.misfire import Plan, Timing, jitter_delay, judge_missed, plan
from jobs.policies.zones import ZONE_DATA
from jobs.queries.schedules import (
    StoredSchedule,
    lock_due_schedules,
    lock_missed,
)
from jobs.services.preview import parse_recurrence
from jobs.services.requests import JobRequest, parse_request
from jobs.services.submit import submit_jobs
from jobs.states import Misfire, Verdict
from jobs.transitions.ledger import (
    NewOccurrence,
    give_jobs,
    judge_occurrences,
    record_occurrences,
)
from jobs.transitions.withdraw import let_late_jobs, withdraw_jobs

log = logging.getLogger(__name__)

QUOTA_SECONDS = 10.0  # a tenant with a full backlog is tried again then
MISSED_BATCH = 500

# A pause that ends by its time ends here.
RESUMED = ", ".join(
    f"{name} = case when resume_at <= {NOW_SQL} then {value} else {name} end"
    for name, value in (
        ("skip_until", "resume_at"),
        ("paused_at", "null"),
        ("paused_by", "''"),
        ("pause_reason", "''"),
        ("resume_at", "null"),
    )
)
ADVANCE = f"""
update jobs_schedule schedule set expanded_until = done.expanded_until, look_at = done.look_at,
    runs = schedule.runs + done.runs, {RESUMED}, zone_data = greatest(schedule.zone_data, %(zone_data)s)
from unnest(%(ids)s::uuid[], %(untils)s::timestamptz[], %(looks)s::timestamptz[], %(runs)s::int[])
    as done(id, expanded_until, look_at, runs)
where schedule.id = done.id"""
# Of those whose time has come: whether, and how late, its job was claimed. The history of a job begins with its first
# claim, however often it is tried.
SETTLE = f"""
with settled as (
    select occurrence.id, occurrence.due_at, version.grace_seconds, job.status, (
        select min(event.at) from jobs_jobevent event
        where event.shard = any(%(shards)s) and event.shard = job.shard and event.job_id = job.id
            and event.kind = 'leased') as claimed_at
    from jobs_occurrence occurrence
    join jobs_scheduleversion version
        on version.schedule_id = occurrence.schedule_id and version.number = occurrence.version
    left join jobs_job job on job.shard = occurrence.job_shard and job.id = occurrence.job_id
        and job.shard = any(%(shards)s)
    where occurrence.job_shard = any(%(shards)s) and occurrence.verdict = 'pending' and occurrence.due_at <= {NOW_SQL}
        and (job.status is null or job.status <> 'scheduled' or job.attempt > 0)
    order by occurrence.due_at limit %(limit)s
)
update jobs_occurrence occurrence set decided_at = {NOW_SQL},
    verdict = case when claimed_at is null then 'skipped'
        when claimed_at > settled.due_at + grace_seconds * interval '1 second' then 'late' else 'ran' end,
    reason = case when claimed_at is null then 'cancelled' else '' end
from settled where occurrence.id = settled.id and occurrence.verdict = 'pending'
returning occurrence.id"""


@dataclass(slots=True)
class Expanded:
    """What one round did; `more` says that another one is due at once."""

    schedules: int = 0
    made: int = 0
    skipped: int = 0
    faults: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class _Round:
    """One schedule in one round."""

    stored: StoredSchedule
    timing: Timing
    request: JobRequest
    plan: Plan


def defaults() -> dict[str, str]:
    """What holds where neither a schedule nor its tenant says anything."""
    return {"timezone": conf().timezone, "on_gap": conf().on_gap, "on_overlap": conf().on_overlap}


def timing_of(stored: StoredSchedule) -> Timing:
    """When it runs.

    Raises:
        ValidationFailed: A field of the row has a value that cannot be.
    """
    recurrence = parse_recurrence(
        {
            "cron": stored.cron or None,
            "every": stored.every or None,
            "anchor": stored.anchor or None,
            "timezone": stored.timezone,
            "on_gap": stored.on_gap,
            "on_overlap": stored.on_overlap,
        }
    )
    if stored.misfire not in set(Misfire):
        raise ValidationFailed([InvalidField("/misfire", "bad_policy", "is no policy")])
    return Timing(
        recurrence=recurrence,
        misfire=Misfire(stored.misfire),
        grace_seconds=stored.grace_seconds,
        catch_up_most=stored.catch_up_most,
        catch_up_seconds=stored.catch_up_seconds,
        delay_seconds=jitter_delay(stored.id, stored.jitter_seconds),
        starts_at=stored.starts_at,
        ends_at=stored.ends_at,
        max_runs=stored.max_runs,
    )


@atomically
def expand_schedules(
    *, shards: Sequence[int], actor: str, now: datetime | None = None
) -> Expanded:
    """One batch of schedules whose expansion is due; a bad row is flagged and stops nobody.

    Args:
        shards: Of this scheduler.
        actor: This scheduler, for history.
        now: Aware UTC; default is the database clock.
    """
    done = Expanded()
    stored = lock_due_schedules(
        shards=shards,
        limit=conf().expand_batch,
        zone_data=ZONE_DATA,
        defaults=defaults(),
        now=now,
    )
    rounds = [found for one in stored if (found := _planned(one, done)) is not None]
    try:
        with transaction.atomic():
            _store(rounds, actor, now)
    except (JobError, IntegrityError):
        # One of them is at fault: each alone, so that the others go on.
        rounds = [one for one in rounds if _stored_alone(one, actor, now, done)]
    done.schedules = len(stored)
    done.more = len(stored) >= conf().expand_batch
    for one in rounds:
        pending = sum(each.verdict is Verdict.PENDING for each in one.plan.decisions)
        done.made += pending
        done.skipped += len(one.plan.decisions) - pending
        done.more |= one.plan.look_at is not None and one.plan.look_at <= one.stored.read_at
    return done


@atomically
def expand_schedule(stored: StoredSchedule, *, actor: str, now: datetime | None) -> None:
    """One round of one schedule, inside the transaction that has locked it.

    Args:
        stored: The schedule.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Raises:
        JobError: As in submit.
    """
    done = Expanded()
    if (one := _planned(stored, done)) is not None:
        _store([one], actor, now)


def _planned(stored: StoredSchedule, done: Expanded) -> _Round | None:
    try:
        timing = timing_of(stored)
        request = parse_request(json.loads(stored.template), "/job")
        made = plan(
            timing,
            expanded_until=stored.expanded_until,
            now=stored.read_at,
            ahead_seconds=conf().expand_ahead_seconds,
            most=conf().expand_firings,
            runs=stored.runs,
            paused=stored.paused,
            skip_until=stored.skip_until,
        )
    except Exception as error:  # noqa: BLE001  whatever is in the row: its neighbours must go on
        _flag(stored, error, done)
        return None
    return _Round(stored, timing, request, made)


def _stored_alone(one: _Round, actor: str, now: datetime | None, done: Expanded) -> bool:
    try:
        with transaction.atomic():
            _store([one], actor, now)
    except QuotaExceeded:
        again = one.stored.read_at + timedelta(seconds=QUOTA_SECONDS)
        Schedule.objects.filter(pk=one.stored.id).update(look_at=again)
        return False
    except (JobError, IntegrityError) as error:
        _flag(one.stored, error, done)
        return False
    return True


def _flag(stored: StoredSchedule, error: Exception, done: Expanded) -> None:
    """Set a schedule aside until somebody mends it."""
    fault = error.errors[0] if isinstance(error, ValidationFailed) else error
    told = {
        "pointer": getattr(fault, "pointer", ""),
        "code": getattr(fault, "field_code", None) or getattr(fault, "code", "internal"),
        "detail": str(fault)[:500],
    }
    Schedule.objects.filter(pk=stored.id).update(fault=told)
    done.faults += 1
    log.error(telemetry.SCHEDULE_FAULTY, extra={"schedule": str(stored.id), **told})


def _store(rounds: Sequence[_Round], actor: str, now: datetime | None) -> None:
    """Ledger, jobs and how far each is, together."""
    found = [_occurrence(one, place) for one in rounds for place in range(len(one.plan.decisions))]
    keys = record_occurrences(found, now=now)
    runs: dict[UUID, int] = {}
    by_tenant: dict[int, list[tuple[int, UUID, JobRequest]]] = {}
    for one in rounds:
        for decision in one.plan.decisions:
            slot = decision.firing.slot.isoformat(), decision.firing.number
            key = keys.get((one.stored.id, *slot))
            if key is None or decision.verdict is not Verdict.PENDING:
                continue
            request = replace(
                one.request,
                due_at=decision.due_at,
                schedule_id=one.stored.id,
                misfire_at=_misfire_at(one, decision.due_at),
            )
            by_tenant.setdefault(one.stored.tenant_id, []).append((key, one.stored.id, request))
            runs[one.stored.id] = runs.get(one.stored.id, 0) + 1
    tenants = Tenant.objects.in_bulk(list(by_tenant))
    for tenant_id, wanted in by_tenant.items():
        made = submit_jobs(
            tenant=tenants[tenant_id], requests=[each for _, _, each in wanted], actor=actor
        )
        give_jobs(
            jobs={
                key: (one.job_id, one.shard) for (key, _, _), one in zip(wanted, made, strict=True)
            }
        )
    if rounds:
        _advance(rounds, runs, now)


def _misfire_at(one: _Round, due_at: datetime | None) -> datetime | None:
    """A job that is made late is missed already and runs all the same."""
    if due_at is None:
        return None
    until = due_at + timedelta(seconds=one.timing.grace_seconds)
    return until if until > one.stored.read_at else None


def _occurrence(one: _Round, place: int) -> NewOccurrence:
    decision, stored = one.plan.decisions[place], one.stored
    recurrence = one.timing.recurrence
    return NewOccurrence(
        schedule_id=stored.id,
        shard=stored.shard,
        version=stored.version,
        fire_at=decision.firing.fire_at,
        slot=decision.firing.slot.isoformat(),
        number=decision.firing.number,
        resolution=decision.firing.resolution.value,
        due_at=decision.due_at,
        verdict=decision.verdict,
        reason=decision.reason,
        timezone=recurrence.zone,
        on_gap=recurrence.on_gap.value,
        on_overlap=recurrence.on_overlap.value,
        zone_data=ZONE_DATA,
    )


def _look_at(one: _Round) -> datetime | None:
    """A pause that ends by itself has to be seen when it does."""
    if one.stored.paused and one.stored.resume_at is not None:
        return min(one.plan.look_at or one.stored.resume_at, one.stored.resume_at)
    return one.plan.look_at


def _advance(rounds: Sequence[_Round], runs: dict[UUID, int], now: datetime | None) -> None:
    params: dict[str, Any] = {
        "ids": [one.stored.id for one in rounds],
        "untils": [one.plan.expanded_until for one in rounds],
        "looks": [_look_at(one) for one in rounds],
        "runs": [runs.get(one.stored.id, 0) for one in rounds],
        "zone_data": ZONE_DATA,
        "now": now,
    }
    rows(ADVANCE + " returning schedule.id", params)


@atomically
def judge_missed_jobs(*, shards: Sequence[int], actor: str, now: datetime | None = None) -> int:
    """Waiting jobs of schedules that nobody began within their grace: each runs late, or is withdrawn, by its policy.

    Args:
        shards: Of the jobs.
        actor: This scheduler.
        now: Aware UTC; default is the database clock.

    Returns:
        How many were judged.
    """
    missed = lock_missed(shards=shards, limit=MISSED_BATCH, defaults=defaults(), now=now)
    late: list[UUID] = []
    gone: dict[UUID, tuple[int, Verdict, str]] = {}
    for one in missed:
        verdict, reason = _judged(one.schedule, one.fire_at)
        if verdict is Verdict.PENDING:
            late.append(one.job_id)
        else:
            gone[one.job_id] = one.occurrence_id, verdict, reason
    held = sorted({one.job_shard for one in missed})
    let_late_jobs(shards=held, job_ids=late, now=now)
    withdrawn = withdraw_jobs(
        shards=held, job_ids=list(gone), reason="misfire", actor=actor, now=now
    )
    judge_occurrences(
        {key: (verdict, why) for job, (key, verdict, why) in gone.items() if job in withdrawn},
        now=now,
    )
    return len(missed)


def _judged(stored: StoredSchedule, fire_at: datetime) -> tuple[Verdict, str]:
    try:
        return judge_missed(timing_of(stored), fire_at, stored.read_at)
    except Exception:  # noqa: BLE001  a rule that cannot be read any more: better late than lost
        return Verdict.PENDING, ""


@commits
def settle_occurrences(
    *, shards: Sequence[int], limit: int = 1000, now: datetime | None = None
) -> int:
    """pending → ran, late, or skipped because somebody cancelled its job first.

    Args:
        shards: Of the jobs.
        limit: Most in one statement.
        now: Aware UTC; default is the database clock.

    Returns:
        How many.
    """
    return len(rows(SETTLE, {"shards": list(shards), "limit": limit, "now": now}))
