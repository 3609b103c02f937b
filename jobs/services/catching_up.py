"""Catch up: a past range of a schedule runs after all, once and by request, whatever its misfire policy said."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from jobs.clock import database_now
from jobs.database import atomically
from jobs.errors import InvalidField, NotFound, ScheduleInvalid
from jobs.models import Tenant
from jobs.policies.misfire import Decision
from jobs.policies.recurrence import expand
from jobs.queries.schedules import lock_schedule
from jobs.services.firings import make_jobs, occurrence_of, wanted_job
from jobs.services.requests import parse_request
from jobs.services.timings import defaults, timing_of
from jobs.states import Verdict
from jobs.transitions.ledger import record_occurrences, reopen_occurrences

MOST_FIRINGS = 1_000
SECOND = timedelta(seconds=1)


class CaughtUp(NamedTuple):
    """Of the firings in the range: how many get a job now, had or have one, and fall on closed days."""

    made: int
    known: int
    closed: int


@atomically
def catch_up(
    *,
    tenant: Tenant,
    schedule_id: UUID,
    begin: datetime,
    until: datetime,
    actor: str,
    now: datetime | None = None,
) -> CaughtUp:
    """A job that is due now for every firing of a past range that has not run: skipped, dropped, or never recorded.

    By the rule in force, also from before the schedule was there or started, but not from after its end. Asking again makes nothing twice. These jobs are
    withdrawn by nobody; if runs of the schedule must not overlap, they wait for each other.

    Args:
        tenant: Owner.
        schedule_id: Which.
        begin: Aware; included.
        until: Aware; included; not in the future.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Raises:
        NotFound: There is no such schedule of this tenant.
        ScheduleInvalid: The range is empty, reaches into the future or has more than 1,000 firings.
        ValidationFailed: The stored rule cannot be read.
        JobError: As in submit. Nothing is stored.
    """
    moment = now or database_now()
    stored = lock_schedule(schedule_id=schedule_id, defaults=defaults(), now=now)
    if stored is None or stored.tenant_id != tenant.pk:
        raise NotFound
    if begin > until or until > moment:
        reason = "must not be before from, and not in the future"
        raise ScheduleInvalid([InvalidField("/until", "out_of_range", reason)])
    timing = timing_of(stored)
    request = parse_request(json.loads(stored.template), "/job")
    end = min(until, timing.ends_at or until)
    found = list(islice(expand(timing.recurrence, begin - SECOND, end), MOST_FIRINGS + 1))
    if len(found) > MOST_FIRINGS:
        reason = f"leaves more than {MOST_FIRINGS} firings in the range"
        raise ScheduleInvalid([InvalidField("/until", "out_of_range", reason)])
    found = [one for one in found if one.known_at >= begin]
    open_ones = [one for one in found if timing.due_at(one) is not None]
    decisions = [Decision(one, Verdict.PENDING, moment) for one in open_ones]
    instants = [one.firing.known_at for one in decisions]
    again = reopen_occurrences(dict.fromkeys(instants, moment), schedule_id=schedule_id, now=now)
    told = [occurrence_of(stored, timing, one, caught_up=True) for one in decisions]
    new = record_occurrences(told, now=now)
    jobs = [
        wanted_job(stored, request, one, key, None)
        for one in decisions
        if (key := again.get(one.firing.known_at) or new.get(_identity(stored.id, one)))
    ]
    make_jobs(jobs, actor)
    return CaughtUp(len(jobs), len(open_ones) - len(jobs), len(found) - len(open_ones))


def _identity(schedule_id: UUID, decision: Decision) -> tuple[UUID, str, int]:
    return schedule_id, decision.firing.slot.isoformat(), decision.firing.number
