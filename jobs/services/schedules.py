"""Schedules as people and programs handle them: create, edit, pause, resume, delete, run now.

Every change locks the schedule's row first, as the expansion does: one of them happens before the other. Jobs that were
made ahead and that nobody has claimed are taken back; what was claimed goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError, transaction

from jobs import telemetry
from jobs.clock import database_now
from jobs.conf import conf
from jobs.database import atomically, notify, rows
from jobs.errors import (
    InvalidField,
    NoMatchingPool,
    NotFound,
    NotPaused,
    QuotaExceeded,
    ScheduleInvalid,
    UnknownHandler,
    VersionConflict,
)
from jobs.models import Schedule, ScheduleVersion, Tenant
from jobs.policies.sharding import shard_of
from jobs.queries.schedules import StoredSchedule, lock_schedule
from jobs.services.expansion import defaults, expand_schedule, timing_of
from jobs.services.preview import check_upcoming, parse_recurrence
from jobs.services.requests import parse_request
from jobs.services.schedule_requests import RECURRENCE, ScheduleRequest
from jobs.services.submit import Submitted, check_request, submit_jobs
from jobs.states import Verdict
from jobs.transitions.ledger import judge_occurrences
from jobs.transitions.withdraw import withdraw_jobs

log = logging.getLogger(__name__)

# Made ahead and not claimed; a due entry that is still there and was never claimed has a time to miss.
AHEAD = """
select occurrence.id, occurrence.job_id, occurrence.job_shard from jobs_occurrence occurrence
join jobs_dueentry due on due.shard = occurrence.job_shard and due.job_id = occurrence.job_id
where occurrence.schedule_id = %(schedule)s and occurrence.verdict = 'pending' and occurrence.fire_at > %(moment)s
    and due.misfire_at is not null
order by occurrence.job_id"""
FORGET = "delete from jobs_occurrence where id = any(%(ids)s::bigint[]) and verdict = 'superseded' returning id"
EMPTY = {"cron": "", "every": "", "anchor": "", "timezone": "", "on_gap": "", "on_overlap": ""}


def tenant_defaults(tenant: Tenant) -> dict[str, str]:
    """What holds for a schedule of this tenant that says nothing."""
    own = {"timezone": tenant.timezone, "on_gap": tenant.on_gap, "on_overlap": tenant.on_overlap}
    return {**defaults(), **{name: value for name, value in own.items() if value}}


@atomically
def create_schedule(
    *, tenant: Tenant, request: ScheduleRequest, actor: str, now: datetime | None = None
) -> Schedule:
    """Store it, and make what falls into the next hour.

    Args:
        tenant: Owner.
        request: From `parse_schedule`.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Raises:
        ScheduleInvalid: The name is in use, or nothing falls within ten years.
        UnknownHandler: As in submit. Nothing is stored.
        NoMatchingPool: As in submit. Nothing is stored.
    """
    moment = now or database_now()
    _check(tenant, request, moment)
    schedule_id = uuid4()
    schedule = Schedule(
        id=schedule_id,
        shard=shard_of(
            tenant_id=tenant.pk,
            key=request.name.encode(),
            spread=conf().shards,
            shards=conf().shards,
        ),
        tenant=tenant,
        name=request.name,
        version=1,
        expanded_until=moment,
        look_at=moment,
        created_by=actor,
    )
    try:
        with transaction.atomic():
            schedule.save(force_insert=True)
    except IntegrityError:
        raise ScheduleInvalid(
            [InvalidField("/name", "in_use", "another schedule has this name")]
        ) from None
    _write_version(schedule_id, 1, request, actor)
    _expand(schedule_id, actor, now)
    _tell("created", schedule_id, actor)
    return Schedule.objects.get(pk=schedule_id)


@atomically
def edit_schedule(
    *,
    tenant: Tenant,
    schedule_id: UUID,
    version: int,
    request: ScheduleRequest,
    actor: str,
    now: datetime | None = None,
) -> Schedule:
    """A new version from now on. What the old one had made ahead is replaced in this transaction.

    Args:
        tenant: Owner.
        schedule_id: Which.
        version: The one that the caller has seen.
        request: All of the new version.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Raises:
        VersionConflict: Somebody else has edited it since. Nothing is stored.
        NotFound: There is no such schedule of this tenant.
        ScheduleInvalid: As in create.
    """
    moment = now or database_now()
    stored = _locked(tenant, schedule_id, now)
    if stored.version != version:
        raise VersionConflict(current=stored.version)
    _check(tenant, request, moment)
    _write_version(schedule_id, version + 1, request, actor)
    old = _take_back(schedule_id, "edited", actor, moment)
    try:
        with transaction.atomic():
            Schedule.objects.filter(pk=schedule_id).update(
                name=request.name,
                version=version + 1,
                expanded_until=moment,
                look_at=moment,
                fault=None,
                runs=max(0, stored.runs - len(old)),
                updated_at=moment,
            )
    except IntegrityError:
        raise ScheduleInvalid(
            [InvalidField("/name", "in_use", "another schedule has this name")]
        ) from None
    _expand(schedule_id, actor, now)
    _tell("edited", schedule_id, actor)
    return Schedule.objects.get(pk=schedule_id)


@atomically
def pause_schedule(
    *,
    tenant: Tenant,
    schedule_id: UUID,
    actor: str,
    reason: str,
    resume_at: datetime | None = None,
    now: datetime | None = None,
) -> Schedule:
    """Nothing fires until it is resumed; each firing meanwhile is recorded as skipped.

    Args:
        tenant: Owner.
        schedule_id: Which.
        actor: Who asks.
        reason: Why.
        resume_at: Aware; when it goes on by itself.
        now: Aware UTC; default is the database clock.

    Raises:
        NotFound: There is no such schedule of this tenant.
    """
    moment = now or database_now()
    stored = _locked(tenant, schedule_id, now)
    if not stored.paused:  # what fired before this moment does not fall into the pause
        _expand_if_room(stored, actor, moment)
        stored = _locked(tenant, schedule_id, now)
    old = _take_back(schedule_id, "paused", actor, moment)
    _forget(old)
    Schedule.objects.filter(pk=schedule_id).update(
        paused_at=moment,
        paused_by=actor,
        pause_reason=reason,
        resume_at=resume_at,
        expanded_until=min(stored.expanded_until, moment),
        look_at=moment,
        runs=max(0, stored.runs - len(old)),
        updated_at=moment,
    )
    _tell("paused", schedule_id, actor)
    return Schedule.objects.get(pk=schedule_id)


@atomically
def resume_schedule(
    *, tenant: Tenant, schedule_id: UUID, actor: str, now: datetime | None = None
) -> Schedule:
    """Go on with what fires from now on. What fired during the pause is skipped, and recorded so.

    Args:
        tenant: Owner.
        schedule_id: Which.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Raises:
        NotFound: There is no such schedule of this tenant.
        NotPaused: It is not paused, or the pause has ended by its time.
    """
    moment = now or database_now()
    stored = _locked(tenant, schedule_id, now)
    if not stored.paused:
        raise NotPaused("The schedule is not paused.")
    Schedule.objects.filter(pk=schedule_id).update(
        paused_at=None,
        skip_until=moment,
        paused_by="",
        pause_reason="",
        resume_at=None,
        look_at=moment,
        updated_at=moment,
    )
    _expand(schedule_id, actor, now)
    _tell("resumed", schedule_id, actor)
    return Schedule.objects.get(pk=schedule_id)


@atomically
def delete_schedule(
    *,
    tenant: Tenant,
    schedule_id: UUID,
    actor: str,
    version: int | None = None,
    now: datetime | None = None,
) -> None:
    """It fires no more. Its record stays.

    Args:
        tenant: Owner.
        schedule_id: Which.
        actor: Who asks.
        version: The one that the caller has seen; None: whichever.
        now: Aware UTC; default is the database clock.

    Raises:
        NotFound: There is no such schedule of this tenant.
        VersionConflict: Somebody else has edited it since.
    """
    moment = now or database_now()
    stored = _locked(tenant, schedule_id, now)
    if version is not None and stored.version != version:
        raise VersionConflict(current=stored.version)
    _take_back(schedule_id, "deleted", actor, moment)
    Schedule.objects.filter(pk=schedule_id).update(
        deleted_at=moment, look_at=None, updated_at=moment
    )
    _tell("deleted", schedule_id, actor)


def trigger_schedule(
    *, tenant: Tenant, schedule_id: UUID, actor: str, request_key: str | None = None
) -> Submitted:
    """One job of it now, beside its firings, which it does not move.

    Args:
        tenant: Owner.
        schedule_id: Which.
        actor: Who asks.
        request_key: The same key is the same job.

    Raises:
        NotFound: There is no such schedule of this tenant.
    """
    found = Schedule.objects.filter(pk=schedule_id, tenant=tenant, deleted_at=None).first()
    if found is None:
        raise NotFound
    template = ScheduleVersion.objects.get(schedule=found, number=found.version).template
    fields = template if request_key is None else {**template, "request_key": request_key}
    request = parse_request(fields, "/job")
    (made,) = submit_jobs(tenant=tenant, requests=[request], actor=actor)
    return made


def _check(tenant: Tenant, request: ScheduleRequest, moment: datetime) -> None:
    given = {name: request.version.get(name) for name in RECURRENCE}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        check_upcoming(parse_recurrence({**tenant_defaults(tenant), **known}), moment)
    except InvalidField as fault:
        raise ScheduleInvalid([fault]) from None
    try:
        check_request(tenant, parse_request(request.version["template"], "/job"))
    except (UnknownHandler, NoMatchingPool) as fault:
        fault.pointer = f"/job{fault.pointer}"
        raise


def _write_version(schedule_id: UUID, number: int, request: ScheduleRequest, actor: str) -> None:
    values: Mapping[str, Any] = {**EMPTY, **request.version}
    ScheduleVersion.objects.create(
        schedule_id=schedule_id, number=number, created_by=actor, **values
    )


def _locked(tenant: Tenant, schedule_id: UUID, now: datetime | None) -> StoredSchedule:
    stored = lock_schedule(schedule_id=schedule_id, defaults=defaults(), now=now)
    if stored is None or stored.tenant_id != tenant.pk:
        raise NotFound
    return stored


def _expand(schedule_id: UUID, actor: str, now: datetime | None) -> None:
    stored = lock_schedule(schedule_id=schedule_id, defaults=defaults(), now=now)
    if stored is not None:
        timing_of(stored)  # a caller's fault is told, not flagged
        _expand_if_room(stored, actor, now)


def _expand_if_room(stored: StoredSchedule, actor: str, now: datetime | None) -> None:
    """A full backlog refuses no change of a schedule: the scheduler makes its jobs when there is room."""
    with suppress(QuotaExceeded), transaction.atomic():
        expand_schedule(stored, actor=actor, now=now)


def _take_back(schedule_id: UUID, why: str, actor: str, moment: datetime) -> list[int]:
    """Firings to come are superseded, as far as nobody has claimed their jobs; gives the keys of their occurrences."""
    ahead = rows(AHEAD, {"schedule": schedule_id, "moment": moment})
    gone = withdraw_jobs(
        shards=[shard for _, _, shard in ahead],
        job_ids=[job_id for _, job_id, _ in ahead],
        reason=why,
        actor=actor,
        now=moment,
    )
    old = [key for key, job_id, _ in ahead if job_id in gone]
    judge_occurrences(dict.fromkeys(old, (Verdict.SUPERSEDED, why)), now=moment)
    return old


def _forget(keys: list[int]) -> None:
    """Instants that are open again: whether they are skipped is decided when they come."""
    if keys:
        rows(FORGET, {"ids": keys})


def _tell(what: str, schedule_id: UUID, actor: str) -> None:
    log.info(
        telemetry.SCHEDULE_CHANGED, extra={"what": what, "schedule": str(schedule_id), "by": actor}
    )
    notify(telemetry.CHANNEL_DUE, "")
