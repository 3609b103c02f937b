"""A schedule whose policy, calendar or zone data has changed since its version was made gets a new version.

Only firings to come that nobody has claimed are decided anew, and of those only the ones that differ.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice

from django.db.models import Max

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, commits, rows
from jobs.models import Occurrence, Schedule, ScheduleVersion
from jobs.policies.recurrence import expand
from jobs.policies.timing import Timing
from jobs.policies.zones import WIDEST_SECONDS, ZONE_DATA
from jobs.queries.schedules import HOLDS_NOW, StoredSchedule, lock_schedule
from jobs.services.replacing import Ahead, decided_ahead, take_back
from jobs.services.timings import defaults, timing_of
from jobs.states import Verdict

log = logging.getLogger(__name__)

# What their versions were made from has changed since: a tenant's policy, a calendar, the zone data. The expansion
# looks at them at once, whenever their next firing is.
MARK_STALE = f"""
update jobs_schedule schedule set look_at = {NOW_SQL}
from jobs_scheduleversion version, jobs_tenant tenant
where schedule.shard = any(%(shards)s) and schedule.deleted_at is null and schedule.fault is null
    and schedule.look_at > {NOW_SQL} and version.schedule_id = schedule.id and version.number = schedule.version
    and tenant.id = schedule.tenant_id and schedule.zone_data <= %(zone_data)s and (schedule.zone_data < %(zone_data)s
        or array[version.in_timezone, version.in_on_gap, version.in_on_overlap]::text[] <> {HOLDS_NOW}
        or exists (select from jobs_calendar calendar join jobs_calendar newer using (tenant_id, name)
            where calendar.id = version.calendar_id and calendar.replaced_at is not null and newer.replaced_at is null))
returning schedule.id"""


@commits
def mark_stale_schedules(*, shards: Sequence[int], now: datetime | None = None) -> int:
    """The expansion looks next at schedules whose version does not say any more what holds.

    Args:
        shards: Of the schedules.
        now: Aware UTC; default is the database clock.

    Returns:
        How many.
    """
    params = {"shards": list(shards), "zone_data": ZONE_DATA, "now": now}
    return len(rows(MARK_STALE, params | defaults()))


def staleness(stored: StoredSchedule) -> str:
    """Why its version does not say any more what holds: policy, calendar, zone_data, or nothing."""
    if stored.holds != stored.holds_now:
        return "policy"
    if stored.calendar_now not in (
        None,
        stored.calendar_id,
    ):  # one that was deleted stays in force
        return "calendar"
    return "zone_data" if stored.zone_data and stored.zone_data < ZONE_DATA else ""


@atomically
def revise(
    stored: StoredSchedule, why: str, *, actor: str, now: datetime | None
) -> StoredSchedule:
    """A new version, if any firing or what holds differs; inside the transaction that has locked the schedule.

    Args:
        stored: The schedule.
        why: From `staleness`.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Returns:
        The schedule as it is then.

    Raises:
        ValidationFailed: What holds now is no policy.
    """
    if why != "zone_data":
        _next_version(stored, why, actor)
    fresh = _again(stored, now)
    timing = timing_of(fresh)
    ahead = decided_ahead(stored.id, stored.read_at)
    moved, missing = _differing(fresh, timing, ahead)
    taken = take_back(moved, why, actor, stored.read_at)
    if (taken or missing) and why == "zone_data":
        _next_version(stored, why, actor)
    since = min(stored.expanded_until, stored.read_at)
    if taken and fresh.timezone == stored.timezone:
        since = _before_overtaken(fresh, timing, since)
    ScheduleVersion.objects.filter(schedule=stored.id, number__gt=stored.version).update(
        since=since
    )
    Schedule.objects.filter(pk=stored.id).update(
        zone_data=ZONE_DATA,
        expanded_until=since,
        runs=max(0, stored.runs - sum(one.job_id is not None for one in taken)),
    )
    log.info(
        telemetry.SCHEDULE_CHANGED,
        extra={"what": why, "schedule": str(stored.id), "by": actor, "moved": len(taken)},
    )
    return _again(stored, now)


def _before_overtaken(fresh: StoredSchedule, timing: Timing, since: datetime) -> datetime:
    """Some slots were still to come, and by what holds now their time is over: back to before the first of them.

    They are missed, not lost. What follows elapsed time has no slots that move.
    """
    if timing.recurrence.is_interval:
        return since
    near = fresh.read_at - 3 * timedelta(seconds=WIDEST_SECONDS), fresh.read_at
    decided = Occurrence.objects.filter(
        schedule=fresh.id, known_at__range=near, caught_up=False
    ).exclude(verdict=Verdict.SUPERSEDED)
    last = decided.aggregate(last=Max("slot"))["last"] or ""
    first = ScheduleVersion.objects.get(schedule=fresh.id, number=1).since
    begin = max(first, fresh.read_at - timedelta(seconds=WIDEST_SECONDS))
    for one in expand(timing.recurrence, *timing.within(begin, fresh.read_at)):
        if one.slot.isoformat() > last:
            return min(since, one.known_at - timedelta(seconds=1))
    return since


def _again(stored: StoredSchedule, now: datetime | None) -> StoredSchedule:
    found = lock_schedule(schedule_id=stored.id, defaults=defaults(), now=now)
    assert found is not None, "its row is locked"  # noqa: S101
    return found


def _next_version(stored: StoredSchedule, why: str, actor: str) -> None:
    """A copy of the version in force, with what holds now."""
    version = ScheduleVersion.objects.get(schedule=stored.id, number=stored.version)
    version.pk, version.number = None, stored.version + 1
    version.in_timezone, version.in_on_gap, version.in_on_overlap = stored.holds_now
    version.calendar_id = stored.calendar_now or stored.calendar_id
    version.zone_data, version.why, version.created_by = ZONE_DATA, why, actor
    version.since, version.created_at = min(stored.expanded_until, stored.read_at), stored.read_at
    version.save(force_insert=True)
    Schedule.objects.filter(pk=stored.id).update(version=version.number)


def _differing(
    fresh: StoredSchedule, timing: Timing, ahead: Sequence[Ahead]
) -> tuple[list[Ahead], bool]:
    """Of those decided ahead the ones that come out otherwise by now, and whether others are missing."""
    to_come = [one for one in ahead if one.known_at > fresh.read_at]
    if timing.max_runs is not None:  # which of them run depends on all before
        return to_come, False
    most = len(ahead) + conf().expand_firings
    window = timing.within(fresh.read_at, max(fresh.expanded_until, fresh.read_at))
    known = {
        (one.slot.isoformat(), one.number, one.fire_at, timing.due_at(one))
        for one in islice(expand(timing.recurrence, *window, skipped=True), most)
    }
    told = {(one.slot, one.number, one.fire_at, one.due_at) for one in ahead}
    moved = [
        one for one in to_come if (one.slot, one.number, one.fire_at, one.due_at) not in known
    ]
    return moved, not known <= told
