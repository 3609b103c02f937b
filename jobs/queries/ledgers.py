"""Schedules and their ledgers in pages, for the checker: versions, occurrences with what their jobs say, stray jobs.

From one snapshot; times that Python cannot hold are cut, so that no stored row ends the reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from jobs.database import rows
from jobs.policies.ledgers import Entry, Known
from jobs.queries.lists import plain_time

FIRST, LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)  # of a plain time
STRAY = 1_000  # jobs without an occurrence that are told one by one

SCHEDULES = """
select id, expanded_until, deleted_at, look_at is null, runs, fault is not null from jobs_schedule
where id > %(after)s and (%(tenant)s::int is null or tenant_id = %(tenant)s) order by id limit %(limit)s"""

VERSIONS = """
select schedule_id, number, cron, every, anchor, in_timezone, in_on_gap, in_on_overlap, zone_data, since, starts_at,
    ends_at, max_runs, created_at
from jobs_scheduleversion where schedule_id = any(%(schedules)s::uuid[]) order by schedule_id, number"""

_ENTRY = f"""
select occurrence.version, {plain_time("occurrence.known_at")}, {plain_time("occurrence.fire_at")}, occurrence.slot,
    occurrence.number, occurrence.verdict, occurrence.caught_up, occurrence.job_id, job.schedule_id,
    {plain_time("job.fire_at")}, job.status, job.attempt
from jobs_occurrence occurrence
left join jobs_job job on job.shard = occurrence.job_shard and job.id = occurrence.job_id
    and job.shard = any(%(shards)s)
where occurrence.schedule_id = %(schedule)s"""

# With ties: the rows of one instant are never on two pages.
PAGE = f"""{_ENTRY} and (%(after)s::timestamptz is null or occurrence.known_at > %(after)s)
    and (%(until)s::timestamptz is null or occurrence.known_at <= %(until)s)
order by occurrence.known_at fetch first %(limit)s rows with ties"""

# What else may stand for a firing: the same slot of the same zone, or the same instant.
STANDS_FOR = """
select version, caught_up from jobs_occurrence
where schedule_id = %(schedule)s and verdict <> 'superseded'
    and (timezone = %(timezone)s and slot = %(slot)s and number = %(number)s or fire_at = %(fire_at)s)"""

STRAYS = f"""
select job.id, job.schedule_id from jobs_job job
where job.shard = any(%(shards)s) and job.schedule_id is not null and job.fire_at is not null
    and job.status <> 'cancelled' and (%(tenant)s::int is null or job.tenant_id = %(tenant)s)
    and (%(since)s::timestamptz is null or job.fire_at >= %(since)s)
    and (%(until)s::timestamptz is null or job.fire_at < %(until)s)
    and not exists (select from jobs_occurrence occurrence
        where occurrence.job_id = job.id and occurrence.schedule_id = job.schedule_id)
limit {STRAY}"""


class StoredVersion(NamedTuple):
    """One version as it is stored; nothing in it has been checked."""

    number: int
    cron: str
    every: str
    anchor: str
    timezone: str
    on_gap: str
    on_overlap: str
    zone_data: str
    since: datetime
    starts_at: datetime | None
    ends_at: datetime | None
    max_runs: int | None
    created_at: datetime


class Ledger(NamedTuple):
    """A schedule and its versions, the first one first.

    Attributes:
        ended: Nothing comes any more.
        runs: Jobs made.
        faulty: Its newest version was set aside: some of it says nothing.
    """

    schedule_id: UUID
    expanded_until: datetime
    deleted_at: datetime | None
    ended: bool
    runs: int
    faulty: bool
    versions: list[StoredVersion]


def ledgers(*, tenant_id: int | None = None, page: int = 500) -> Iterator[Ledger]:
    """Every schedule, also deleted ones, by id.

    Args:
        tenant_id: Only this tenant's.
        page: Schedules per statement.
    """
    after = UUID(int=0)
    while found := rows(SCHEDULES, {"after": after, "tenant": tenant_id, "limit": page}):
        after = found[-1][0]
        versions: dict[UUID, list[StoredVersion]] = {}
        for schedule_id, *values in rows(VERSIONS, {"schedules": [one[0] for one in found]}):
            versions.setdefault(schedule_id, []).append(StoredVersion(*values))
        for schedule_id, until, deleted_at, ended, runs, faulty in found:
            known = versions.get(schedule_id, [])
            yield Ledger(schedule_id, until, deleted_at, ended, runs, faulty, known)


def entries(
    *,
    shards: Sequence[int],
    schedule_id: UUID,
    after: datetime | None,
    until: datetime | None,
    page: int = 2_000,
) -> Iterator[tuple[datetime, datetime, list[Entry]]]:
    """The ledger of one schedule in windows (begin, end] that touch, each with all its rows.

    Args:
        shards: Where its jobs may be.
        schedule_id: Which.
        after: Excluded; None: from the first on.
        until: Included; None: to the last.
        page: Rows per statement, about.
    """
    begin, last = after or FIRST, until or LAST
    while begin < last:
        params = {
            "shards": list(shards),
            "schedule": schedule_id,
            "after": after,
            "until": until,
            "limit": page,
        }
        found = [Entry(*row) for row in rows(PAGE, params)]
        end = last if len(found) < page else min(found[-1].known_at, last)
        yield begin, end, found
        begin = after = end


def stands_for(
    *, schedule_id: UUID, timezone: str, slot: str, number: int, fire_at: datetime | None
) -> list[Known]:
    """Rows that have this slot or this instant and are not superseded."""
    params = {
        "schedule": schedule_id,
        "timezone": timezone,
        "slot": slot,
        "number": number,
        "fire_at": fire_at,
    }
    return [Known(*row) for row in rows(STANDS_FOR, params)]


def stray_jobs(
    *,
    shards: Sequence[int],
    tenant_id: int | None,
    since: datetime | None,
    until: datetime | None,
) -> list[tuple[UUID, UUID]]:
    """Job and schedule of jobs that stand for a firing and are in no ledger; at most 1,000."""
    params = {"shards": list(shards), "tenant": tenant_id, "since": since, "until": until}
    return [(job_id, schedule_id) for job_id, schedule_id in rows(STRAYS, params)]
