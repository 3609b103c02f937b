"""Expansion: every firing of every schedule gets its verdict, and its job if it is to run, in one transaction.

Who wins: whoever has locked the schedule's row. Twice is harmless all the same: a firing is unique in the ledger.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, rows
from jobs.errors import JobError, QuotaExceeded, ValidationFailed
from jobs.models import Occurrence, Schedule
from jobs.policies.misfire import Decision, Plan, first_runs, plan
from jobs.policies.timing import Timing
from jobs.policies.zones import ZONE_DATA
from jobs.queries.catalog import MAX_AGE_SECONDS, catalog
from jobs.queries.schedules import StoredSchedule, lock_due_schedules
from jobs.services.firings import Wanted, make_jobs, occurrence_of, wanted_job
from jobs.services.missed import judge_again_at
from jobs.services.requests import JobRequest, parse_request
from jobs.services.revision import revise, staleness
from jobs.services.timings import defaults, timing_of
from jobs.states import OnOverlap, Resolution, Verdict
from jobs.transitions.ledger import record_occurrences

log = logging.getLogger(__name__)

PLAN_SECONDS = 0.5  # of working rules out in one transaction, which may not be silent for long
QUOTA_SECONDS = 10.0  # a tenant with a full backlog is tried again then

# A pause that ends by its time ends here.
RESUMED = ", ".join(
    f"{name} = case when resume_at <= {NOW_SQL} then {value} else {name} end"
    for name, value in (
        ("skip_until", "resume_at"),
        ("skip_reason", "'paused'"),
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
    # Fresh, while nothing is locked: what is read later in this transaction is not kept, and read for each tenant.
    catalog(max_age_seconds=MAX_AGE_SECONDS / 2)
    stored = lock_due_schedules(
        shards=shards,
        limit=conf().expand_batch,
        zone_data=ZONE_DATA,
        defaults=defaults(),
        now=now,
    )
    until = time.monotonic() + PLAN_SECONDS
    rounds: list[_Round] = []
    for row in stored:
        if (found := _planned(row, done, actor, now)) is not None:
            rounds.append(found)
        done.schedules += 1
        if time.monotonic() > until:  # the others stay due; nobody's dear rule keeps them waiting
            done.more = True
            break
    try:
        with transaction.atomic():
            _store(rounds, actor, now)
    except (JobError, IntegrityError):
        # One of them is at fault: each alone, so that the others go on.
        rounds = [one for one in rounds if _stored_alone(one, actor, now, done)]
    done.more |= len(stored) >= conf().expand_batch
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
    if (one := _planned(stored, done, actor, now)) is not None:
        _store([one], actor, now)


def _planned(
    stored: StoredSchedule, done: Expanded, actor: str, now: datetime | None
) -> _Round | None:
    try:
        if why := staleness(stored):
            with transaction.atomic():
                stored = revise(stored, why, actor=actor, now=now)
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
            skip_reason=stored.skip_reason,
        )
        made = _once_an_overlap(stored, timing, made)
    except Exception as error:  # noqa: BLE001  whatever is in the row: its neighbours must go on
        _flag(stored, error, done)
        return None
    return _Round(stored, timing, request, made)


def _once_an_overlap(stored: StoredSchedule, timing: Timing, made: Plan) -> Plan:
    """A policy that changed from the first pass to the second between the two: what has run does not run again."""
    recurrence = timing.recurrence
    second = [
        one.firing.slot.isoformat()
        for one in made.decisions
        if one.firing.resolution is Resolution.SECOND_PASS and one.verdict is Verdict.PENDING
    ]
    if not second or recurrence.on_overlap is not OnOverlap.SECOND or recurrence.is_interval:
        return made
    ran = Occurrence.objects.filter(
        schedule=stored.id,
        timezone=recurrence.zone,
        slot__in=second,
        number=1,
        verdict__in=[Verdict.PENDING, Verdict.RAN, Verdict.LATE],
    )
    known = set(ran.values_list("slot", flat=True))
    decisions = [
        Decision(one.firing, Verdict.SKIPPED, reason="first_pass")
        if one.firing.number == 2 and one.firing.slot.isoformat() in known
        else one
        for one in made.decisions
    ]
    return replace(made, decisions=decisions)


def _stored_alone(one: _Round, actor: str, now: datetime | None, done: Expanded) -> bool:
    try:
        with transaction.atomic():
            _store([one], actor, now)
    except QuotaExceeded as full:
        return _stored_in_part(one, max(0, full.limit - full.used), actor, now)
    except (JobError, IntegrityError) as error:
        _flag(one.stored, error, done)
        return False
    return True


def _stored_in_part(one: _Round, room: int, actor: str, now: datetime | None) -> bool:
    """As many of its jobs as the tenant's backlog has room for, the earliest first; the others soon."""
    again = one.stored.read_at + timedelta(seconds=QUOTA_SECONDS)
    part = replace(one, plan=first_runs(one.plan, room, again))
    log.warning(
        telemetry.SCHEDULE_DELAYED,
        extra={"schedule": str(one.stored.id), "tenant": one.stored.tenant_id, "room": room},
    )
    if part.plan.decisions:
        with suppress(QuotaExceeded), transaction.atomic():
            _store([part], actor, now)
            return True
    Schedule.objects.filter(pk=one.stored.id).update(look_at=again)
    return False


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
    found = [
        occurrence_of(one.stored, one.timing, decision)
        for one in rounds
        for decision in one.plan.decisions
    ]
    keys = record_occurrences(found, now=now)
    runs: dict[UUID, int] = {}
    wanted: list[Wanted] = []
    for one in rounds:
        for decision in one.plan.decisions:
            slot = decision.firing.slot.isoformat(), decision.firing.number
            key = keys.get((one.stored.id, *slot))
            if key is None or decision.verdict is not Verdict.PENDING:
                continue
            misfire_at = _misfire_at(one, decision.due_at)
            wanted.append(wanted_job(one.stored, one.request, decision, key, misfire_at))
            runs[one.stored.id] = runs.get(one.stored.id, 0) + 1
    make_jobs(wanted, actor)
    if rounds:
        _advance(rounds, runs, now)


def _misfire_at(one: _Round, due_at: datetime | None) -> datetime | None:
    """A job that is made late is missed already and runs all the same."""
    if due_at is None:
        return None
    until = due_at + timedelta(seconds=one.timing.grace_seconds)
    return until if until > one.stored.read_at else judge_again_at(one.stored)


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
