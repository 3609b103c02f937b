"""Lists of schedules, of their versions and of their firings, by keyset, for people and programs.

JSON is read as text: the driver would give up a whole page for one value that Python cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now

from jobs.database import rows
from jobs.models import Occurrence, Schedule, ScheduleVersion
from jobs.queries.history import stored_json
from jobs.queries.schedules import COLUMNS, SOURCE, StoredSchedule, readable_schedules
from jobs.states import Verdict

NEXT = 20  # firings to come at the head of a ledger


class State(StrEnum):
    """What a schedule is doing."""

    ACTIVE = "active"
    PAUSED = "paused"
    FAULTY = "faulty"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a list of schedules is narrowed to.

    Attributes:
        tenant_id: Whose; None for all.
        state: What they are doing.
        handler: Of their jobs, by exact name.
        timezone: In force.
        prefix: How their names begin.
    """

    tenant_id: int | None = None
    state: State | None = None
    handler: str = ""
    timezone: str = ""
    prefix: str = ""


_PAUSED = Q(paused_at__isnull=False) & (Q(resume_at=None) | Q(resume_at__gt=Now()))
# Its last jobs are made ahead: it has ended when their time has come.
_OVER = Q(look_at__isnull=True, expanded_until__lte=Now())
_CONDITIONS = {
    State.FAULTY: Q(fault__isnull=False),
    State.PAUSED: Q(fault__isnull=True) & _PAUSED,
    State.ENDED: Q(fault__isnull=True) & ~_PAUSED & _OVER,
    State.ACTIVE: Q(fault__isnull=True) & ~_PAUSED & ~_OVER,
}


def state_of(schedule: Schedule, now: datetime) -> State:
    """As `Filters.state` finds it."""
    if schedule.fault is not None:
        return State.FAULTY
    if schedule.paused_at is not None and (schedule.resume_at is None or schedule.resume_at > now):
        return State.PAUSED
    over = schedule.look_at is None and schedule.expanded_until <= now
    return State.ENDED if over else State.ACTIVE


def list_schedules(
    filters: Filters, *, limit: int, after: tuple[str, UUID] | None = None
) -> list[Schedule]:
    """Schedules that are there, by name.

    Args:
        filters: Which.
        limit: Most.
        after: Name and id of the one before.
    """
    found = Schedule.objects.filter(deleted_at=None)
    if filters.tenant_id is not None:
        found = found.filter(tenant=filters.tenant_id)
    if filters.state is not None:
        found = found.filter(_CONDITIONS[filters.state])
    if filters.prefix:
        found = found.filter(name__startswith=filters.prefix)
    version: dict[str, Any] = {}
    if filters.handler:
        version["versions__template__handler"] = filters.handler
    if filters.timezone:
        version["versions__in_timezone"] = filters.timezone
    if version:
        found = found.filter(versions__number=F("version"), **version)
    if after is not None:
        name, key = after
        found = found.filter(name__gte=name).exclude(name=name, pk__lte=key)
    return readable_schedules(found.order_by("name", "pk")[:limit])


def read_schedules(
    ids: Sequence[UUID], *, defaults: Mapping[str, str]
) -> dict[UUID, StoredSchedule]:
    """What their expansion would read, by id, without a lock.

    Args:
        ids: Which.
        defaults: `timezone`, `on_gap`, `on_overlap` of the deployment.
    """
    params = {"ids": list(ids), "now": None, **defaults}
    sql = f"select {COLUMNS} from {SOURCE} where schedule.id = any(%(ids)s::uuid[])"
    return {found.id: found for found in (StoredSchedule(*row) for row in rows(sql, params))}


def versions_in_force(ids: Sequence[UUID]) -> dict[UUID, ScheduleVersion]:
    """The version in force of each of these schedules, by schedule."""
    found = _readable(ScheduleVersion.objects.filter(schedule__in=ids))
    return {
        one.schedule_id: _with_template(one) for one in found.filter(number=F("schedule__version"))
    }


def list_versions(
    schedule: Schedule, *, limit: int, before: int | None = None
) -> list[ScheduleVersion]:
    """Versions of a schedule, the newest first; `before` is the number of the one before the page."""
    found = _readable(ScheduleVersion.objects.filter(schedule=schedule))
    if before is not None:
        found = found.filter(number__lt=before)
    return [_with_template(one) for one in found.order_by("-number")[:limit]]


def _readable(found: QuerySet[ScheduleVersion]) -> QuerySet[ScheduleVersion]:
    narrow = found.select_related("calendar").defer(
        "template", "calendar__days", "calendar__weekend"
    )
    return narrow.annotate(template_text=Cast("template", TextField()))


def _with_template(version: ScheduleVersion) -> ScheduleVersion:
    template = stored_json(version.template_text)  # type: ignore[attr-defined]
    version.template = template if isinstance(template, dict) else {}
    return version


def firings_to_come(schedule: Schedule) -> list[Occurrence]:
    """The next few whose jobs wait for their time, the latest first."""
    coming = Occurrence.objects.filter(_TO_COME, schedule=schedule)
    return list(coming.order_by("known_at", "id")[:NEXT])[::-1]


def list_firings(
    schedule: Schedule,
    *,
    limit: int,
    before: tuple[datetime, int] | None = None,
    verdicts: Sequence[str] = (),
    begin: datetime | None = None,
    end: datetime | None = None,
    to_come: bool = False,
) -> list[Occurrence]:
    """Firings of a schedule, the newest first.

    Args:
        schedule: Whose.
        limit: Most.
        before: `known_at` and id of the one before the page.
        verdicts: What became of them; none given: whatever.
        begin: Aware; not before it.
        end: Aware; before it.
        to_come: With those whose jobs wait for their time.
    """
    found = Occurrence.objects.filter(schedule=schedule)
    if not to_come:
        found = found.exclude(_TO_COME)
    if verdicts:
        found = found.filter(verdict__in=verdicts)
    if begin is not None:
        found = found.filter(known_at__gte=begin)
    if end is not None:
        found = found.filter(known_at__lt=end)
    if before is not None:
        moment, key = before  # the first condition is one that the index can follow
        found = found.filter(known_at__lte=moment).exclude(known_at=moment, pk__gte=key)
    return list(found.order_by("-known_at", "-id")[:limit])


_TO_COME = Q(verdict=Verdict.PENDING, due_at__gt=Now())


def jitters_of(schedule_id: UUID, numbers: set[int]) -> dict[int, int]:
    """Most seconds of jitter, by number of the version, of those that follow a calendar."""
    found = ScheduleVersion.objects.filter(
        schedule=schedule_id, number__in=numbers, calendar__isnull=False
    )
    return dict(found.values_list("number", "jitter_seconds"))
