"""Schedules as the expansion needs them: each with its version in force, its tenant and what both say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from jobs.clock import NOW_SQL
from jobs.database import rows
from jobs.errors import NotFound
from jobs.models import Schedule
from jobs.queries.history import stored_json
from jobs.states import OnRunning

SCHEDULE_KEY = "schedule:"  # begins the concurrency key that the runs of one schedule share


def run_key(schedule_id: UUID, on_running: str) -> str | None:
    """The concurrency key of a schedule's runs; None if they may overlap."""
    return None if on_running == OnRunning.ALLOW else f"{SCHEDULE_KEY}{schedule_id}"


class StoredSchedule(NamedTuple):
    """One row; nothing in it has been checked."""

    id: UUID
    shard: int
    tenant_id: int
    version: int
    expanded_until: datetime
    runs: int
    paused: bool
    resume_at: datetime | None
    skip_until: datetime | None
    skip_reason: str
    zone_data: str
    faulty: bool
    since: datetime  # of the version: its firings are those after it
    cron: str
    every: str
    anchor: str
    timezone: str
    on_gap: str
    on_overlap: str
    misfire: str
    grace_seconds: float
    catch_up_most: int
    catch_up_seconds: float
    jitter_seconds: int
    starts_at: datetime | None
    ends_at: datetime | None
    max_runs: int | None
    on_running: str
    on_holiday: str
    calendar_id: int | None
    days: (
        str | None
    )  # JSON as text, and so is the template: one that cannot be read must not keep the others
    weekend: str | None  # from being read
    template: str
    holds_now: list[str]  # timezone, on_gap, on_overlap as tenant and deployment have them by now
    calendar_now: int | None  # its newest edition
    read_at: datetime

    @property
    def key(self) -> str | None:
        """The concurrency key of its runs, if they must not overlap."""
        return run_key(self.id, self.on_running)

    @property
    def holds(self) -> list[str]:
        """timezone, on_gap, on_overlap of the version."""
        return [self.timezone, self.on_gap, self.on_overlap]


HOLDS_NOW = """array[coalesce(nullif(version.timezone, ''), nullif(tenant.timezone, ''), %(timezone)s),
    coalesce(nullif(version.on_gap, ''), nullif(tenant.on_gap, ''), %(on_gap)s),
    coalesce(nullif(version.on_overlap, ''), nullif(tenant.on_overlap, ''), %(on_overlap)s)]"""
COLUMNS = f"""schedule.id, schedule.shard, schedule.tenant_id, schedule.version, schedule.expanded_until, schedule.runs,
    schedule.paused_at is not null and coalesce(schedule.resume_at > {NOW_SQL}, true), schedule.resume_at,
    case when schedule.paused_at is not null and schedule.resume_at <= {NOW_SQL} then schedule.resume_at
        else schedule.skip_until end,
    case when schedule.paused_at is not null and schedule.resume_at <= {NOW_SQL} then 'paused'
        else schedule.skip_reason end,
    schedule.zone_data, schedule.fault is not null, version.since, version.cron, version.every, version.anchor,
    version.in_timezone, version.in_on_gap, version.in_on_overlap,
    version.misfire, version.grace_seconds, version.catch_up_most, version.catch_up_seconds, version.jitter_seconds,
    version.starts_at, version.ends_at, version.max_runs, version.on_running, version.on_holiday, version.calendar_id,
    calendar.days::text, calendar.weekend::text, version.template::text, {HOLDS_NOW},
    case when calendar.replaced_at is null then calendar.id else (select id from jobs_calendar newer
        where newer.tenant_id = calendar.tenant_id and newer.name = calendar.name and newer.replaced_at is null) end,
    {NOW_SQL}"""
SOURCE = """jobs_schedule schedule
    join jobs_scheduleversion version on version.schedule_id = schedule.id and version.number = schedule.version
    join jobs_tenant tenant on tenant.id = schedule.tenant_id
    left join jobs_calendar calendar on calendar.id = version.calendar_id"""

# A process with older zone data than the one that expanded last leaves it to those with the newer.
TO_EXPAND = f"""
select {COLUMNS} from {SOURCE}
where schedule.shard = any(%(shards)s) and schedule.look_at <= {NOW_SQL} and schedule.deleted_at is null
    and schedule.fault is null and schedule.zone_data <= %(zone_data)s
order by schedule.look_at limit %(limit)s
for no key update of schedule skip locked"""

ONE = f"""
select {COLUMNS} from {SOURCE}
where schedule.id = %(schedule)s and schedule.deleted_at is null for no key update of schedule"""

# Entries that nobody began in time, with the schedules that decide about them.
MISSED = f"""
select due.job_id, due.shard, occurrence.id, occurrence.fire_at, occurrence.due_at,
    exists (select from jobs_occurrence later where later.schedule_id = occurrence.schedule_id
        and later.known_at > occurrence.known_at and later.known_at <= {NOW_SQL} and later.due_at <= {NOW_SQL}
        and later.verdict in ('pending', 'ran', 'late')), {COLUMNS}
from jobs_dueentry due
    join jobs_occurrence occurrence on occurrence.job_id = due.job_id
    join jobs_schedule schedule on schedule.id = occurrence.schedule_id
    join jobs_scheduleversion version on version.schedule_id = schedule.id and version.number = occurrence.version
    join jobs_tenant tenant on tenant.id = schedule.tenant_id
    left join jobs_calendar calendar on calendar.id = version.calendar_id
where due.shard = any(%(shards)s) and due.misfire_at <= {NOW_SQL}
order by due.misfire_at limit %(limit)s
for update of due skip locked"""


class Missed(NamedTuple):
    """A job that was not begun within its grace."""

    job_id: UUID
    job_shard: int
    occurrence_id: int
    fire_at: datetime
    due_at: datetime
    followed: bool  # by a later one that is due as well, and has its job
    schedule: StoredSchedule


def lock_due_schedules(
    *,
    shards: Sequence[int],
    limit: int,
    zone_data: str,
    defaults: dict[str, str],
    now: datetime | None,
) -> list[StoredSchedule]:
    """Schedules whose expansion is due, locked until the commit; what another process has locked is left to it.

    Args:
        shards: Of this scheduler.
        limit: Most.
        zone_data: Of this process.
        defaults: `timezone`, `on_gap`, `on_overlap` of the deployment.
        now: Aware UTC; default is the database clock.
    """
    params = {"shards": list(shards), "limit": limit, "zone_data": zone_data, "now": now}
    return [StoredSchedule(*row) for row in rows(TO_EXPAND, params | defaults)]


def lock_schedule(
    *, schedule_id: UUID, defaults: dict[str, str], now: datetime | None
) -> StoredSchedule | None:
    """One schedule, locked until the commit; None if there is none, or it was deleted."""
    found = rows(ONE, {"schedule": schedule_id, "now": now} | defaults)
    return StoredSchedule(*found[0]) if found else None


def lock_missed(
    *, shards: Sequence[int], limit: int, defaults: dict[str, str], now: datetime | None
) -> list[Missed]:
    """Waiting jobs past their grace, their due entries locked until the commit, by the version that made them."""
    found = rows(MISSED, {"shards": list(shards), "limit": limit, "now": now} | defaults)
    return [
        Missed(job_id, shard, key, fire_at, due_at, followed, StoredSchedule(*schedule))
        for job_id, shard, key, fire_at, due_at, followed, *schedule in found
    ]


def find_schedule(*, tenant_id: int, schedule_id: UUID) -> Schedule:
    """A schedule of this tenant.

    Raises:
        NotFound: There is none, it was deleted, or it is another's.
    """
    there = Schedule.objects.filter(pk=schedule_id, tenant=tenant_id, deleted_at=None)
    found = readable_schedules(there[:1])
    if not found:
        raise NotFound
    return found[0]


def readable_schedules(found: QuerySet[Schedule]) -> list[Schedule]:
    """Rows whose `fault` is read as text: nothing that was written there hides a schedule."""
    told: list[Any] = list(found.defer("fault").annotate(fault_text=Cast("fault", TextField())))
    for one in told:
        one.fault = stored_json(one.fault_text)
    return told
