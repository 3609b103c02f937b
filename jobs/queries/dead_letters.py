"""Open dead letters for people: a keyset list, newest death first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.database import rows
from jobs.models import DeadLetter
from jobs.models.dead_letters import Resolution
from jobs.queries.lists import COUNT_CAP, Count, Cursor, Filters, plain_time


class LetterRow(NamedTuple):
    """One line of the list. What belongs to a row that is missing is None."""

    id: UUID
    job_id: UUID
    shard: int
    died_at: datetime
    due_at: datetime
    handler: str
    reason: str
    error_type: str
    message: str  # its first 400 characters
    attempts: int
    tenant_id: int
    tenant: str | None
    reference: str | None
    stored: bool  # False: the job's own row is missing


class LetterPage(NamedTuple):
    """Rows, newest death first, where the pages beside this one begin, and how many are open in all."""

    rows: list[LetterRow]
    previous: Cursor | None
    next: Cursor | None
    open: Count


_PAGE = f"""
with page as materialized (
    select * from jobs_deadletter letter where resolution = '{Resolution.OPEN.value}' {{narrow}}
    order by {{order}} limit %(limit)s)
select letter.id, letter.job_id, letter.shard, {plain_time("letter.died_at")}, {plain_time("letter.due_at")},
    letter.handler, letter.reason, letter.error_type, left(letter.message, 400), letter.attempts, letter.tenant_id,
    tenant.slug, job.reference, job.id is not null
from page letter
left join jobs_tenant tenant on tenant.id = letter.tenant_id
left join jobs_job job on job.id = letter.job_id
order by letter.died_at desc, letter.id desc"""

_COUNT = f"""
select count(*) from (
    select 1 from jobs_deadletter letter where resolution = '{Resolution.OPEN.value}' {{narrow}} limit %(cap)s) counted"""


def open_letters(
    filters: Filters, *, limit: int, cursor: Cursor | None = None, backward: bool = False
) -> LetterPage:
    """One page of open dead letters by (died_at, id), newest first.

    Args:
        filters: Tenant and handler count here; a death has no due window.
        limit: Rows of the page.
        cursor: Where to go on; None for the first page.
        backward: Go back from the cursor.
    """
    params: dict[str, Any] = {
        "limit": limit + 1,
        "cap": COUNT_CAP + 1,
        "tenant": filters.tenant_id,
        "handler": filters.handler,
    }
    narrow = " and letter.tenant_id = %(tenant)s" if filters.tenant_id is not None else ""
    narrow += " and letter.handler = %(handler)s" if filters.handler else ""
    ((number,),) = rows(_COUNT.format(narrow=narrow), params)
    if cursor:
        params |= {"moment": cursor.moment, "key": cursor.key}
        sign = ">" if backward else "<"
        narrow += f" and (letter.died_at, letter.id) {sign} (%(moment)s, %(key)s)"
    order = (
        "letter.died_at asc, letter.id asc" if backward else "letter.died_at desc, letter.id desc"
    )
    found = [LetterRow(*row) for row in rows(_PAGE.format(narrow=narrow, order=order), params)]
    more = len(found) > limit
    # Rows come back newest first in both directions; the one too many is at the far end.
    found = found[-limit:] if backward else found[:limit]
    first, last = (_place(found[0]), _place(found[-1])) if found else (None, None)
    return LetterPage(
        found,
        first if (more if backward else cursor) else None,
        last if (cursor if backward else more) else None,
        Count(min(number, COUNT_CAP), number > COUNT_CAP),
    )


def shards_of_letters(letter_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Dead letter id → shard, for those that exist, whatever their resolution."""
    found = DeadLetter.objects.filter(pk__any=list(letter_ids))
    return dict(found.values_list("pk", "shard"))


def _place(row: LetterRow) -> Cursor:
    return Cursor(row.died_at, row.id)
