"""Calendars of business days: create, replace by the next edition, delete.

Schedules that follow a calendar get a new version soon after, see `revision`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max, QuerySet, TextField
from django.db.models.functions import Cast

from jobs import telemetry
from jobs.clock import database_now
from jobs.database import atomically
from jobs.errors import CalendarInUse, InvalidField, NotFound, ValidationFailed, VersionConflict
from jobs.models import Calendar, ScheduleVersion, Tenant
from jobs.policies.holidays import FIRST, LAST, parse_days, parse_weekend, read_ics
from jobs.queries.history import is_remark, stored_json
from jobs.services.requests import read_fields, text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CalendarRequest:
    """A well-formed request: closed dates with their names, and weekdays that are always closed."""

    name: str
    days: dict[str, str]
    weekend: list[str]


def parse_calendar(
    fields: Mapping[str, Any], *, today: date, pointer: str = ""
) -> CalendarRequest:
    """Check every field of a calendar.

    Args:
        fields: `name`; `days` as {"2027-12-25": "Christmas"}; `weekend` as ["sat", "sun"]; `ics`, the text of a
            calendar file, whose events of whole days are added for the years from the last one to ten years on.
        today: Where those years are counted from.
        pointer: Where the fields stand in the body.

    Raises:
        ValidationFailed: Lists every faulty field.
    """
    first = max(FIRST, date(today.year - 1, 1, 1))
    last = min(LAST, date(today.year + 10, 12, 31))

    def ics(value: Any, place: str) -> dict[str, str]:
        if not isinstance(value, str):
            raise InvalidField(place, "wrong_type", "must be a text")
        return read_ics(value, first=first, last=last, pointer=place)

    parsers = {"name": text(100), "days": parse_days, "weekend": parse_weekend, "ics": ics}
    values, faults = read_fields(fields, parsers, what="a calendar", pointer=pointer)
    if "name" not in fields:
        faults.append(InvalidField(f"{pointer}/name", "required", "is required"))
    if faults:
        raise ValidationFailed(faults)
    days = {**values.get("ics", {}), **values.get("days", {})}
    return CalendarRequest(values["name"], dict(sorted(days.items())), values.get("weekend", []))


def find_calendar(*, tenant_id: int, name: str) -> Calendar:
    """The newest edition.

    Raises:
        NotFound: There is no such calendar of this tenant.
    """
    there = Calendar.objects.filter(tenant=tenant_id, name=name, replaced_at=None)
    if not (found := _readable(there)):
        raise NotFound
    return found[0]


def list_calendars(*, tenant_id: int) -> list[Calendar]:
    """The newest editions, by name."""
    there = Calendar.objects.filter(tenant=tenant_id, replaced_at=None)
    return _readable(there.order_by("name"))


def _readable(found: QuerySet[Calendar]) -> list[Calendar]:
    """Read as text, so that no value that Python cannot hold hides the others; what is no days is none."""
    texts = {f"{name}_text": Cast(name, TextField()) for name in ("days", "weekend")}
    told: list[Any] = list(found.defer("days", "weekend").annotate(**texts))
    for one in told:
        days, weekend = stored_json(one.days_text), stored_json(one.weekend_text)
        one.days = days if isinstance(days, dict) and not is_remark(days) else {}
        one.weekend = weekend if isinstance(weekend, list) else []
    return told


@atomically
def create_calendar(*, tenant: Tenant, request: CalendarRequest, actor: str) -> Calendar:
    """The first edition; of a name that has been there before the next one, so that no number comes twice.

    Raises:
        ValidationFailed: The name is in use.
    """
    try:
        with transaction.atomic():
            return _store(tenant, request, actor, _last_number(tenant, request.name) + 1)
    except IntegrityError:
        fault = InvalidField("/name", "in_use", "another calendar has this name")
        raise ValidationFailed([fault]) from None


@atomically
def replace_calendar(
    *,
    tenant: Tenant,
    request: CalendarRequest,
    actor: str,
    number: int | None = None,
    now: datetime | None = None,
) -> Calendar:
    """The next edition; firings to come of schedules that follow it are decided anew within seconds.

    Args:
        tenant: Owner.
        request: All of it; its name says which.
        actor: Who asks.
        number: The edition that the caller has seen; None: whichever.
        now: Aware UTC; default is the database clock.

    Raises:
        NotFound: There is no such calendar of this tenant.
        VersionConflict: Somebody else has replaced it since.
    """
    old = _locked(tenant, request.name, number)
    _end(old, actor, now)
    return _store(tenant, request, actor, old.number + 1)


@atomically
def delete_calendar(
    *,
    tenant: Tenant,
    name: str,
    actor: str,
    number: int | None = None,
    now: datetime | None = None,
) -> None:
    """Gone for new schedules.

    Raises:
        NotFound: There is no such calendar of this tenant.
        VersionConflict: Somebody else has replaced the edition `number` since.
        CalendarInUse: A schedule follows it.
    """
    old = _locked(tenant, name, number)
    using = ScheduleVersion.objects.filter(
        calendar__tenant=tenant,
        calendar__name=name,
        schedule__deleted_at=None,
        schedule__version=F("number"),
    )
    if (first := using.select_related("schedule").first()) is not None:
        raise CalendarInUse(f"The schedule {first.schedule.name} follows it.")
    _end(old, actor, now)
    _tell("deleted", old, actor)


def _locked(tenant: Tenant, name: str, number: int | None) -> Calendar:
    editions = Calendar.objects.select_for_update().defer("days", "weekend")
    found = editions.filter(tenant=tenant, name=name, replaced_at=None).first()
    if found is None:
        raise NotFound
    if number is not None and found.number != number:
        raise VersionConflict(current=found.number)
    return found


def _last_number(tenant: Tenant, name: str) -> int:
    numbers = Calendar.objects.filter(tenant=tenant, name=name)
    return int(numbers.aggregate(last=Max("number"))["last"] or 0)


def _end(old: Calendar, actor: str, now: datetime | None) -> None:
    old.replaced_at, old.replaced_by = now or database_now(), actor
    old.save(update_fields=["replaced_at", "replaced_by"])


def _tell(what: str, calendar: Calendar, actor: str) -> None:
    told = {"what": what, "calendar": calendar.name, "number": calendar.number, "by": actor}
    log.info(telemetry.CALENDAR_CHANGED, extra={**told, "tenant": calendar.tenant_id})


def _store(tenant: Tenant, request: CalendarRequest, actor: str, number: int) -> Calendar:
    made = Calendar.objects.create(
        tenant=tenant,
        name=request.name,
        number=number,
        days=request.days,
        weekend=request.weekend,
        created_by=actor,
    )
    _tell("stored", made, actor)
    return made
