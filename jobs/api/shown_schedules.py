"""Schedules as a token may see them: read together, in a number of statements that does not grow with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobs.api.authentication import has_scope
from jobs.api.paging import Page
from jobs.api.serializers_schedules import schedule_out
from jobs.clock import database_now
from jobs.models import ApiToken, Schedule
from jobs.queries.lists import bounded_reading
from jobs.queries.schedule_lists import Filters, list_schedules, read_schedules, versions_in_force
from jobs.services.timings import defaults
from jobs.services.upcoming import Upcoming, upcoming

NEXT_RUNS = 5


def shown(schedule: Schedule, token: ApiToken) -> dict[str, Any]:
    """One schedule with its next runs."""
    (told,) = shown_several([schedule], token, runs=NEXT_RUNS)
    return told


def shown_several(
    schedules: Sequence[Schedule], token: ApiToken, *, runs: int
) -> list[dict[str, Any]]:
    """Each as it is shown alone, with fewer runs: of a list only those that run."""
    ids = [one.pk for one in schedules]
    versions, stored = versions_in_force(ids), read_schedules(ids, defaults=defaults())
    now = database_now()
    return [
        schedule_out(
            one,
            versions[one.pk],
            upcoming(stored[one.pk], after=now, count=runs, running=runs == 1)
            if one.pk in stored
            else Upcoming("", []),
            now=now,
            reveal=has_scope(token, "payload:read"),
        )
        for one in schedules
        if one.pk in versions
    ]


def read_named(page: Page, filters: Filters) -> tuple[list[Schedule], list[Any] | None]:
    """A page of schedules by name, and the place of the last one if there are others behind it.

    Raises:
        ReadTimedOut: The filters look at too much.
    """
    after = (page.place[0], UUID(page.place[1])) if page.place else None
    with bounded_reading():
        found = list_schedules(filters, limit=page.limit + 1, after=after)
    rows = found[: page.limit]
    last = [rows[-1].name, str(rows[-1].pk)] if len(found) > len(rows) else None
    return rows, last
