"""Lists of jobs for people: keyset pages and capped counts, read from the table that owns the status.

Waiting jobs are the due entries, published and running ones the leases, dead ones the open dead letters: a list of
them never walks the ledger. The rest walks the ledger's key (due_at, id) for a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError, transaction
from django.db.models import DateTimeField, Func

from jobs.conf import conf
from jobs.database import rows, sqlstate
from jobs.errors import JobError
from jobs.states import JobStatus

COUNT_CAP = 10_000  # counts are exact up to here
WALK_CAP = 20_000  # rows of the ledger one page may look at to find those that match
READ_TIMEOUT_MS = 2_000


class ReadTimedOut(JobError):
    """The list took too long to read; a narrower filter reads less."""

    code = "overloaded"


class View(StrEnum):
    """Which jobs a list shows."""

    ALL = "all"
    WAITING = "waiting"
    PUBLISHED = "published"
    RUNNING = "running"
    DEAD = "dead"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"

    @property
    def walks_ledger(self) -> bool:
        """True when no small table holds exactly these jobs."""
        return self in (View.ALL, View.SUCCEEDED, View.CANCELLED)


class Cursor(NamedTuple):
    """A place in a list ordered by (moment, key): the page goes on after it or, backwards, before it."""

    moment: datetime
    key: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a list is narrowed to; views share it, so that a count stands for what the list would show.

    Attributes:
        view: Which jobs.
        tenant_id: Only of this tenant.
        handler: Only of this handler, by exact name; "" for all.
        due_from: Due at or after this aware time.
        due_until: Due before this aware time.
    """

    view: View = View.ALL
    tenant_id: int | None = None
    handler: str = ""
    due_from: datetime | None = None
    due_until: datetime | None = None


class JobRow(NamedTuple):
    """One line of a list, and all that it may read: neither payload nor result.

    `due_at` is the list's sort key: in force for waiting jobs, of the claim for leased ones, else as asked. What
    belongs to a row that is missing is None.
    """

    job_id: UUID
    due_at: datetime
    stored: bool  # False: an entry of the list whose job row is missing
    status: str | None
    handler: str
    reference: str
    tenant_id: int | None
    tenant: str | None
    lane: str | None
    attempt: int
    attempt_limit: int
    error_type: str | None
    error_message: str | None
    finished_at: datetime | None
    waits_until: datetime | None  # of the due entry
    leased: bool
    lease_due_at: datetime | None
    cancel_requested: bool
    started_at: datetime | None
    pool: str | None
    worker: UUID | None
    worker_host: str | None
    worker_pid: int | None


class JobPage(NamedTuple):
    """Rows in list order, and where the pages beside this one begin (None: there is none known).

    `cut_short`: the walk ended at its cap before the page was full; the neighbour goes on from there.
    """

    rows: list[JobRow]
    previous: Cursor | None
    next: Cursor | None
    cut_short: bool


class Count(NamedTuple):
    """Exact, or at least `number`."""

    number: int
    at_least: bool


def plain_time(column: str) -> str:
    """SQL for a time that Python can hold: a stored 'infinity' or year 20000 must not end a page."""
    low, high = "timestamptz '1000-01-01 00:00Z'", "timestamptz '9000-01-01 00:00Z'"
    return f"case when {column} is not null then least(greatest({column}, {low}), {high}) end"


class PlainTime(Func):
    """`plain_time` for a queryset."""

    template = plain_time("%(expressions)s")
    output_field = DateTimeField()


# A page wants the plan whose worst case is bounded: an index read in order up to its limit. A planner with old or no
# statistics would read and sort a whole ledger to save a few index reads. The settings end with the transaction.
_BOUND = """select statement_timestamp(), set_config('statement_timeout', %(ms)s, true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)"""


@contextmanager
def bounded_reading() -> Iterator[datetime]:
    """A stretch of reading in which each statement ends after READ_TIMEOUT_MS; gives the database's clock.

    Raises:
        ReadTimedOut: A statement was cut off.
    """
    try:
        with transaction.atomic():
            ((now, *_),) = rows(_BOUND, {"ms": str(READ_TIMEOUT_MS)})
            yield now
    except OperationalError as error:
        if sqlstate(error) != "57014":
            raise
        raise ReadTimedOut from error


# `entry` is the owning table in each source; {narrow}, {order} and %(limit)s come from the caller. Every page reads at
# most %(limit)s entries; one probe of (shard, due_at) per shard keeps the calendar from being sorted as a whole.
_WAITING = """
select head.due_at, head.job_id from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
    (select entry.due_at, entry.job_id from jobs_dueentry entry
    where entry.shard = mine.shard and not parked {narrow} order by {order} limit %(limit)s)
    union all
    (select entry.due_at, entry.job_id from jobs_dueentry entry
    where entry.shard = mine.shard and parked {narrow} order by {order} limit %(limit)s)) head"""
_LEASES = """
select entry.due_at, entry.job_id from jobs_lease entry where {owned} {{narrow}}
order by {{order}} limit %(limit)s"""
_DEAD = """
select entry.due_at, entry.job_id from jobs_deadletter entry where entry.resolution = 'open' {narrow}
order by {order} limit %(limit)s"""
_LEDGER = """
select entry.due_at, entry.job_id from (
    select entry.due_at, entry.id as job_id, entry.status, entry.handler from jobs_job entry
    where true {narrow} order by {walk_order} limit %(walk)s) entry
where true {match} order by {order} limit %(limit)s"""
_LEDGER_END = f"""
select {plain_time("entry.due_at")}, entry.id from jobs_job entry where true {{narrow}} order by {{walk_order}}
offset %(walk)s - 1 limit 1"""
_NAMED = """
select entry.due_at, found.job_id from unnest(%(ids)s::uuid[]) as found(job_id)
join jobs_job entry on entry.id = found.job_id"""

# Outer joins throughout: a row whose tenant, lane, pool or job is missing is what somebody has to see.
_ROWS = f"""
with page as materialized (select due_at, job_id from ({{source}}) entry order by {{order}} limit %(limit)s)
select page.job_id, {plain_time("page.due_at")}, job.id is not null, job.status, coalesce(job.handler, ''),
    coalesce(job.reference, ''), job.tenant_id, tenant.slug, lane.name, coalesce(job.attempt, 0),
    coalesce(job.attempt_limit, 0), left(job.last_error ->> 'type', 200), left(job.last_error ->> 'message', 300),
    {plain_time("job.finished_at")}, {plain_time("waiting.due_at")}, lease.id is not null,
    {plain_time("lease.due_at")}, coalesce(lease.cancel_requested, false), {plain_time("lease.started_at")},
    pool.name, lease.worker, worker.host, worker.pid
from page
left join jobs_job job on job.id = page.job_id
left join jobs_tenant tenant on tenant.id = job.tenant_id
left join jobs_lane lane on lane.id = job.lane_id
left join jobs_dueentry waiting on waiting.job_id = page.job_id
left join jobs_lease lease on lease.job_id = page.job_id
left join jobs_pool pool on pool.id = lease.pool_id
left join jobs_worker worker on worker.id = lease.worker
order by {{page_order}}"""


def read_job_page(
    filters: Filters,
    *,
    limit: int,
    cursor: Cursor | None = None,
    backward: bool = False,
    oldest_first: bool = False,
) -> JobPage:
    """One page of a list, ordered by (due_at, id), newest due first unless asked otherwise.

    The position is a row comparison, so any number of jobs may share one due time, and each job that is not moved
    meanwhile is seen exactly once in either direction.

    Args:
        filters: What to show.
        limit: Rows of the page.
        cursor: Where to go on; None for the first page.
        backward: Go back from the cursor.
        oldest_first: The other order.

    Returns:
        The page. In a view that walks the ledger it may be short, even empty, with a neighbour to go on to.
    """
    reading_up = oldest_first is not backward
    params: dict[str, Any] = {
        **_params(filters),
        "limit": limit + 1,
        "shards": list(range(conf().shards)),
        "walk": WALK_CAP,
    }
    narrow = _narrow(filters)
    if cursor:
        params |= {"moment": cursor.moment, "key": cursor.key}
        key = "id" if filters.view.walks_ledger else "job_id"
        narrow += (
            f" and (entry.due_at, entry.{key}) {'>' if reading_up else '<'} (%(moment)s, %(key)s)"
        )
    words = {
        "narrow": narrow,
        "match": _match(filters),
        "order": _order("entry.due_at", "entry.job_id", up=reading_up),
        "walk_order": _order("entry.due_at", "entry.id", up=reading_up),
    }
    found = _read(_source(filters.view), words, params, up=reading_up)
    more, found = len(found) > limit, found[:limit]
    ahead = Cursor(found[-1].due_at, found[-1].job_id) if more else None
    cut_short = False
    if not more and words["match"] and (end := rows(_LEDGER_END.format(**words), params)):
        ahead, cut_short = Cursor(*end[0]), True
    behind = Cursor(found[0].due_at, found[0].job_id) if cursor and found else None
    if backward:
        return JobPage(found[::-1], ahead, behind, cut_short)
    return JobPage(found, behind, ahead, cut_short)


def named_jobs(job_ids: Sequence[UUID]) -> list[JobRow]:
    """Rows of these jobs, newest due first; ids without a job are left out."""
    words = {"order": _order("entry.due_at", "entry.job_id", up=False)}
    return _read(_NAMED, words, {"ids": list(job_ids), "limit": len(job_ids)}, up=False)


def job_counts(by_view: Mapping[View, Filters]) -> dict[View, Count]:
    """How many jobs each view would show, each exact up to COUNT_CAP.

    The ledger's views are counted together, over its newest COUNT_CAP rows under the filters.

    Args:
        by_view: The filters of every view; those that walk the ledger share their time range.
    """
    params: dict[str, Any] = {"cap": COUNT_CAP + 1}
    owned = [view for view in View if not view.walks_ledger]
    parts = []
    for number, view in enumerate(owned):
        own = by_view[view]
        params |= {f"{name}{number}": value for name, value in _params(own).items()}
        table, condition = _OWNERS[view]
        narrow = _narrow(own, suffix=str(number))
        parts.append(
            f"(select count(*) from (select 1 from {table} entry where {condition} {narrow} limit %(cap)s) counted)"
        )
    ledger = by_view[View.ALL]
    params |= _params(ledger)
    wanted = "true" + _match(ledger)
    sql = f"""
select {", ".join(parts)}, walked.seen, walked.found, walked.succeeded, walked.cancelled
from (select count(*) as seen, count(*) filter (where {wanted}) as found,
        count(*) filter (where {wanted} and status = '{JobStatus.SUCCEEDED}') as succeeded,
        count(*) filter (where {wanted} and status = '{JobStatus.CANCELLED}') as cancelled
    from (select entry.status, entry.handler from jobs_job entry where true {_narrow(ledger)}
        order by {_order("entry.due_at", "entry.id", up=False)} limit %(cap)s) entry) walked"""
    ((*numbers, seen, found, succeeded, cancelled),) = rows(sql, params)
    counts = {
        view: Count(min(number, COUNT_CAP), number > COUNT_CAP)
        for view, number in zip(owned, numbers, strict=True)
    }
    walked = {View.ALL: found, View.SUCCEEDED: succeeded, View.CANCELLED: cancelled}
    for view, number in walked.items():
        counts[view] = Count(min(number, COUNT_CAP), seen > COUNT_CAP)
    return {view: counts[view] for view in View}


_OWNERS = {
    View.WAITING: ("jobs_dueentry", "true"),
    View.PUBLISHED: ("jobs_lease", "entry.worker is null"),
    View.RUNNING: ("jobs_lease", "entry.worker is not null"),
    View.DEAD: ("jobs_deadletter", "entry.resolution = 'open'"),
}


def _source(view: View) -> str:
    match view:
        case View.WAITING:
            return _WAITING
        case View.PUBLISHED | View.RUNNING:
            return _LEASES.format(owned=_OWNERS[view][1])
        case View.DEAD:
            return _DEAD
        case _:
            return _LEDGER


def _read(source: str, words: dict[str, str], params: dict[str, Any], *, up: bool) -> list[JobRow]:
    page_order = _order("page.due_at", "page.job_id", up=up)
    sql = _ROWS.format(source=source.format(**words), order=words["order"], page_order=page_order)
    return [JobRow(*row) for row in rows(sql, params)]


def _order(moment: str, key: str, *, up: bool) -> str:
    way = "asc" if up else "desc"
    return f"{moment} {way}, {key} {way}"


def _params(filters: Filters) -> dict[str, Any]:
    return {
        "tenant": filters.tenant_id,
        "handler": filters.handler,
        "from": filters.due_from,
        "until": filters.due_until,
    }


def _narrow(filters: Filters, suffix: str = "") -> str:
    """Conditions that an index of the owning table can follow, or that its small size makes cheap."""
    parts = []
    if filters.tenant_id is not None:
        parts.append(f"entry.tenant_id = %(tenant{suffix})s")
    if filters.due_from is not None:
        parts.append(f"entry.due_at >= %(from{suffix})s")
    if filters.due_until is not None:
        parts.append(f"entry.due_at < %(until{suffix})s")
    if filters.handler and filters.view is View.DEAD:
        parts.append(f"entry.handler = %(handler{suffix})s")
    elif filters.handler and not filters.view.walks_ledger:
        parts.append(
            f"entry.route_id = any(array(select id from jobs_route where handler = %(handler{suffix})s))"
        )
    return "".join(f" and {part}" for part in parts)


def _match(filters: Filters) -> str:
    """Conditions on the ledger that no index can follow; they are tried row by row within WALK_CAP."""
    parts = []
    if filters.view in (View.SUCCEEDED, View.CANCELLED):
        parts.append(f"entry.status = '{filters.view}'")
    if filters.handler and filters.view.walks_ledger:
        parts.append("entry.handler = %(handler)s")
    return "".join(f" and {part}" for part in parts)
