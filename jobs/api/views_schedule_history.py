"""What a schedule did and said, and what the next changes of its clock will do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import has_scope, token_of
from jobs.api.paging import MOST, PAGED, Page
from jobs.api.parameters import MOMENT, Choice, invalid_parameter
from jobs.api.serializers_schedules import occurrence_out, version_out
from jobs.api.shown_schedules import read_named
from jobs.api.views import ApiView
from jobs.api.views_jobs import PRIVATE, read_id
from jobs.clock import database_now
from jobs.models import Occurrence
from jobs.policies.times import format_time, parse_time
from jobs.policies.zones import ZONE_DATA
from jobs.queries.lists import bounded_reading
from jobs.queries.schedule_lists import (
    Filters,
    firings_to_come,
    jitters_of,
    list_firings,
    list_versions,
    read_schedules,
)
from jobs.queries.schedules import find_schedule
from jobs.services.preview import AHEAD
from jobs.services.timings import defaults
from jobs.services.touched import touched
from jobs.states import Verdict

USUAL_AHEAD = timedelta(days=60)


class OccurrencesView(ApiView):
    """GET /schedules/{id}/occurrences."""

    scopes: ClassVar = {"GET": "schedules:read"}
    parameters: ClassVar = {
        "GET": {
            "verdict": Choice(frozenset(Verdict), several=True),
            "from": MOMENT,
            "until": MOMENT,
            **PAGED,
        }
    }

    def get(self, request: Request, schedule_id: str) -> Response:
        """200 with a page of the ledger, the newest first.

        Without filters the first page begins with the next few to come, and those further ahead are left out.
        """
        token, query = token_of(request), self.query
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        page = Page(request, query)
        verdicts, begin, end = (query.get(name) for name in ("verdict", "from", "until"))
        filtered = bool(verdicts or begin or end)
        with bounded_reading():
            coming = [] if filtered or page.place else firings_to_come(found)
            known = list_firings(
                found,
                limit=page.limit + 1,
                before=(parse_time(page.place[0], ""), page.place[1]) if page.place else None,
                verdicts=verdicts or (),
                begin=begin,
                end=end,
                to_come=filtered,
            )
        rows = known[: page.limit]
        jitters = jitters_of(found.pk, {row.version for row in (*coming, *rows)})
        items = [occurrence_out(row, jitters.get(row.version)) for row in (*coming, *rows)]
        body, link = page.around(items, _place(rows[-1]) if len(known) > len(rows) else None)
        return Response(body, headers={**PRIVATE, **link})


def _place(row: Occurrence) -> list[Any]:
    return [format_time(row.known_at), row.pk]


class VersionsView(ApiView):
    """GET /schedules/{id}/versions."""

    scopes: ClassVar = {"GET": "schedules:read"}
    parameters: ClassVar = {"GET": PAGED}

    def get(self, request: Request, schedule_id: str) -> Response:
        """200 with a page of its versions, the newest first, each with what it changed."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        page = Page(request, self.query)
        before = page.place[0] if page.place else None
        versions = list_versions(found, limit=page.limit + 1, before=before)
        reveal = has_scope(token, "payload:read")
        rows = versions[: page.limit]
        older = [*versions[1:], None][: len(rows)]
        items = [
            version_out(one, other, reveal=reveal) for one, other in zip(rows, older, strict=True)
        ]
        body, link = page.around(items, [rows[-1].number] if len(versions) > len(rows) else None)
        return Response(body, headers={**PRIVATE, **link})


class TransitionsView(ApiView):
    """GET /schedules/transitions."""

    scopes: ClassVar = {"GET": "schedules:read"}
    parameters: ClassVar = {"GET": {"until": MOMENT, **PAGED}}

    def get(self, request: Request) -> Response:
        """200 with the changes of clocks that touch schedules; a page looks at so many schedules, by name."""
        token, now = token_of(request), database_now()
        until = self.query.get("until", now + USUAL_AHEAD)
        if not now < until <= now + AHEAD:
            raise invalid_parameter("until", "must be in the next 18 months")
        page = Page(request, self.query, limit=MOST)
        found, more = read_named(page, Filters(tenant_id=token.tenant_id))
        stored = read_schedules([one.pk for one in found], defaults=defaults())
        both = [(one, stored[one.pk]) for one in found if one.pk in stored]
        told = touched(both, after=now, until=until)
        body, link = page.around([], more)
        del body["items"]
        more_of_it = {
            "transitions": told.transitions,
            "schedules_looked_at": len(found),
            "unreadable": [str(one) for one in told.unreadable],
            "until": format_time(until),
            "zone_data": ZONE_DATA,
        }
        return Response({**body, **more_of_it}, headers={**PRIVATE, **link})
