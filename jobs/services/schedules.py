"""Schedules as people and programs handle them: create, edit, pause, resume, delete, run now.

Every change locks the schedule's row first, as the expansion does: one of them happens before the other. Jobs that were
made ahead and that nobody has claimed are taken back; what was claimed goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError, transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from jobs import telemetry
from jobs.clock import database_now
from jobs.conf import conf
from jobs.database import atomically, notify
from jobs.errors import (
    InvalidField,
    NoMatchingPool,
    NotFound,
    NotPaused,
    QuotaExceeded,
    RequestKeyReused,
    ScheduleInvalid,
    UnknownHandler,
    ValidationFailed,
    VersionConflict,
)
from jobs.models import Calendar, Schedule, ScheduleVersion, Tenant
from jobs.policies.sharding import shard_of
from jobs.policies.zones import ZONE_DATA
from jobs.queries.schedules import StoredSchedule, lock_schedule, run_key
from jobs.services.expansion import expand_schedule
from jobs.services.pausing import check_pause
from jobs.services.preview import check_upcoming, parse_recurrence
from jobs.services.replacing import Ahead, decided_ahead, take_back
from jobs.services.requests import parse_request
from jobs.services.schedule_requests import RECURRENCE, ScheduleRequest
from jobs.services.submit import Submitted, check_request, submit_jobs
from jobs.services.timings import defaults, tenant_defaults, timing_of
from jobs.states import Verdict
from jobs.transitions.ledger import forget_occurrences

log = logging.getLogger(__name__)

MOST_ROUNDS = 100  # of firings that an outage has left over, before an edit or a pause
EMPTY = {"cron": "", "every": "", "anchor": "", "timezone": "", "on_gap": "", "on_overlap": ""}


@atomically
def create_schedule(
    *,
    tenant: Tenant,
    request: ScheduleRequest,
    actor: str,
    request_key: str | None = None,
    sent: bytes | None = None,
    now: datetime | None = None,
) -> Schedule:
    """Store it, and make what falls into the next hour.

    Args:
        tenant: Owner.
        request: From `parse_schedule`.
        actor: Who asks.
        request_key: By which the same request is known again; see `create_schedule_once`.
        sent: Hash of the fields as sent, with the key.
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
        request_key=request_key,
        request_hash=sent,
    )
    try:
        with transaction.atomic():
            schedule.save(force_insert=True)
    except IntegrityError:
        raise ScheduleInvalid(
            [InvalidField("/name", "in_use", "another schedule has this name")]
        ) from None
    _write_version(tenant, schedule_id, 1, request, actor, since=moment, why="created")
    _expand(schedule_id, actor, now)
    _tell("created", schedule_id, actor)
    return Schedule.objects.get(pk=schedule_id)


def create_schedule_once(
    *, tenant: Tenant, request: ScheduleRequest, actor: str, request_key: str, sent: bytes
) -> tuple[Schedule, bool]:
    """As `create_schedule`; the same key with the same fields is the same schedule.

    Returns:
        The schedule, and whether it is new.

    Raises:
        RequestKeyReused: The key names one that other fields have made. Nothing is stored.
        ScheduleInvalid, UnknownHandler, NoMatchingPool: As in create.
    """
    if (known := _made_by(tenant, request_key, sent)) is not None:
        return known, False
    try:
        made = create_schedule(
            tenant=tenant, request=request, actor=actor, request_key=request_key, sent=sent
        )
    except ScheduleInvalid:
        # The same request may have come through meanwhile, and has the name now.
        if (known := _made_by(tenant, request_key, sent)) is None:
            raise
        return known, False
    return made, True


def _made_by(tenant: Tenant, request_key: str, sent: bytes) -> Schedule | None:
    found = Schedule.objects.filter(tenant=tenant, request_key=request_key).first()
    if found is not None and bytes(found.request_hash or b"") != sent:
        raise RequestKeyReused(schedule_id=found.pk, differs=[])
    return found


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
    stored = _up_to(moment, stored, actor)  # what fired before this moment is the old version's
    since = min(stored.expanded_until, moment)
    _write_version(tenant, schedule_id, stored.version + 1, request, actor, since=since)
    old = take_back(_still_open(schedule_id, moment), "edited", actor, moment)
    changes: dict[str, Any] = {}
    if since < moment:  # and what is undecided all the same never runs
        changes = {"skip_until": moment, "skip_reason": "fault" if stored.faulty else "edited"}
    try:
        with transaction.atomic():
            Schedule.objects.filter(pk=schedule_id).update(
                name=request.name,
                version=stored.version + 1,
                expanded_until=since,
                look_at=moment,
                fault=None,
                runs=_runs_without(stored, old),
                updated_at=moment,
                **changes,
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
        ValidationFailed: The reason is empty or too long, or the end is not to come.
        NotFound: There is no such schedule of this tenant.
    """
    moment = now or database_now()
    try:
        check_pause(reason, resume_at, moment)
    except InvalidField as fault:
        raise ValidationFailed([fault]) from None
    stored = _locked(tenant, schedule_id, now)
    if not stored.paused:  # what fired before this moment does not fall into the pause
        stored = _up_to(moment, stored, actor)
    old = _drop(schedule_id, "paused", actor, moment)
    forget_occurrences([one.key for one in old if one.known_at > moment])
    Schedule.objects.filter(pk=schedule_id).update(
        paused_at=moment,
        paused_by=actor,
        pause_reason=reason,
        resume_at=resume_at,
        expanded_until=min(stored.expanded_until, moment),
        look_at=moment,
        runs=_runs_without(stored, old),
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
        skip_reason="paused",
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
    _drop(schedule_id, "deleted", actor, moment)
    Schedule.objects.filter(pk=schedule_id).update(
        deleted_at=moment,
        look_at=None,
        updated_at=moment,
        expanded_until=min(stored.expanded_until, moment),
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
    versions = ScheduleVersion.objects.filter(schedule=found, number=found.version)
    # As text: a template that cannot be read is a fault of its field.
    (text, on_running), *_ = versions.values_list(Cast("template", TextField()), "on_running")
    request = parse_request(_readable(text), "/job")
    if request_key is not None:
        sent = {**request.sent, "request_key": request_key}
        request = parse_request(sent, "/job")
    request = replace(
        request,
        schedule_id=found.pk,
        concurrency_key=run_key(found.pk, on_running) or request.concurrency_key,
    )
    (made,) = submit_jobs(tenant=tenant, requests=[request], actor=actor)
    return made


def _readable(template: str) -> Any:
    try:
        return json.loads(template)
    except (ValueError, RecursionError):
        fault = InvalidField("/job", "unreadable", "cannot be read any more")
        raise ValidationFailed([fault]) from None


def _check(tenant: Tenant, request: ScheduleRequest, moment: datetime) -> None:
    given = {name: request.version.get(name) for name in RECURRENCE}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        check_upcoming(parse_recurrence({**tenant_defaults(tenant), **known}), moment)
    except InvalidField as fault:
        raise ScheduleInvalid([fault]) from None
    _calendar(tenant, request)
    try:
        check_request(tenant, parse_request(request.version["template"], "/job"))
    except (UnknownHandler, NoMatchingPool) as fault:
        fault.pointer = f"/job{fault.pointer}"
        raise


def _calendar(tenant: Tenant, request: ScheduleRequest) -> Calendar | None:
    if (name := request.version.get("calendar")) is None:
        return None
    found = Calendar.objects.filter(tenant=tenant, name=name, replaced_at=None).first()
    if found is None:
        fault = InvalidField("/calendar", "unknown", "there is no such calendar")
        raise ScheduleInvalid([fault])
    return found


def _write_version(
    tenant: Tenant,
    schedule_id: UUID,
    number: int,
    request: ScheduleRequest,
    actor: str,
    *,
    since: datetime,
    why: str = "edited",
) -> None:
    values: Mapping[str, Any] = {**EMPTY, **request.version}
    holds = tenant_defaults(tenant)
    ScheduleVersion.objects.create(
        schedule_id=schedule_id,
        number=number,
        created_by=actor,
        since=since,
        why=why,
        zone_data=ZONE_DATA,
        **{f"in_{name}": values[name] or holds[name] for name in holds},
        **{**values, "calendar": _calendar(tenant, request)},
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


def _up_to(moment: datetime, stored: StoredSchedule, actor: str) -> StoredSchedule:
    """Decide on what had fired and was left over, in so many rounds as it takes; as it is stored then."""
    for _ in range(MOST_ROUNDS):
        before = stored.expanded_until
        if before >= moment or stored.faulty:
            break
        _expand_if_room(stored, actor, moment)
        found = lock_schedule(schedule_id=stored.id, defaults=defaults(), now=moment)
        assert found is not None, "its row is locked"  # noqa: S101
        stored = found
        if stored.expanded_until == before:
            break
    return stored


def _expand_if_room(stored: StoredSchedule, actor: str, now: datetime | None) -> None:
    """A full backlog refuses no change of a schedule: the scheduler makes its jobs when there is room."""
    with suppress(QuotaExceeded), transaction.atomic():
        expand_schedule(stored, actor=actor, now=now)


def _still_open(schedule_id: UUID, moment: datetime) -> list[Ahead]:
    """What fires after this moment. What fired before keeps its job, though calendar or jitter may delay it."""
    return [one for one in decided_ahead(schedule_id, moment) if one.known_at > moment]


def _drop(schedule_id: UUID, why: str, actor: str, moment: datetime) -> list[Ahead]:
    """Nothing of it is to run any more: what is to fire is taken back, what has fired and is not yet due is skipped."""

    def verdict(one: Ahead) -> Verdict:
        return Verdict.SUPERSEDED if one.known_at > moment else Verdict.SKIPPED

    ahead = decided_ahead(schedule_id, moment, unclaimed=why == "deleted")
    return take_back(ahead, why, actor, moment, verdict=verdict)


def _runs_without(stored: StoredSchedule, old: list[Ahead]) -> int:
    return max(0, stored.runs - sum(one.job_id is not None for one in old))


def _tell(what: str, schedule_id: UUID, actor: str) -> None:
    log.info(
        telemetry.SCHEDULE_CHANGED, extra={"what": what, "schedule": str(schedule_id), "by": actor}
    )
    notify(telemetry.CHANNEL_DUE, "")
