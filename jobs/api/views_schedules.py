"""Operations on schedules: list, try a rule out, create, look at, edit, delete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import token_of
from jobs.api.etags import etag, wanted_number
from jobs.api.paging import PAGED, Page
from jobs.api.parameters import Choice, Parsed, words
from jobs.api.parsers import fields_of
from jobs.api.serializers_schedules import schedule_url
from jobs.api.shown_schedules import read_named, shown, shown_several
from jobs.api.views import ApiView
from jobs.api.views_jobs import PRIVATE, actor_of, read_id, with_header_key
from jobs.clock import database_now
from jobs.errors import InvalidField, NotFound, ScheduleInvalid, ValidationFailed
from jobs.models import ApiToken, Schedule
from jobs.policies.holidays import read_holidays
from jobs.policies.payloads import request_hash
from jobs.policies.recurrence import Recurrence
from jobs.policies.timing import Timing
from jobs.policies.zones import parse_zone
from jobs.queries.schedule_lists import Filters, State, versions_in_force
from jobs.queries.schedules import find_schedule
from jobs.services.calendars import find_calendar
from jobs.services.preview import MOST_RUNS, check_upcoming, parse_recurrence, preview
from jobs.services.requests import integer, parse_request_key, read_fields, time
from jobs.services.schedule_requests import (
    HOLIDAY_FIELDS,
    holiday_faults,
    parse_schedule,
    split_recurrence,
)
from jobs.services.schedule_requests import fields_of as known_fields
from jobs.services.schedules import (
    create_schedule,
    create_schedule_once,
    delete_schedule,
    edit_schedule,
)
from jobs.services.timings import tenant_defaults
from jobs.states import OnHoliday

_OPTIONS: dict[str, Any] = {
    "after": time,
    "until": time,
    "count": integer(1, MOST_RUNS),
    **HOLIDAY_FIELDS,
}


class SchedulesView(ApiView):
    """GET and POST /schedules."""

    scopes: ClassVar = {"GET": "schedules:read", "POST": "schedules:write"}
    parameters: ClassVar = {
        "GET": {
            "state": Choice(frozenset(State)),
            "handler": words(200),
            "timezone": Parsed(parse_zone),
            "name": words(200),
            **PAGED,
        }
    }

    def get(self, request: Request) -> Response:
        """200 with a page of schedules by name, each with its next run."""
        token, query = token_of(request), self.query
        page = Page(request, query)
        filters = Filters(
            tenant_id=token.tenant_id,
            state=State(query["state"][0]) if "state" in query else None,
            handler=query.get("handler", ""),
            timezone=query.get("timezone", ""),
            prefix=query.get("name", ""),
        )
        found, more = read_named(page, filters)
        body, link = page.around(shown_several(found, token, runs=1), more)
        return Response(body, headers={**PRIVATE, **link})

    def post(self, request: Request) -> Response:
        """201 with the new schedule, 200 with the one that the request key already names.

        The jobs of its next hour are made before this answers.
        """
        token = token_of(request)
        fields = with_header_key(fields_of(request), request.META.get("HTTP_IDEMPOTENCY_KEY"))
        key, sent = fields.pop("request_key", None), None
        if key is not None:
            key = parse_request_key(key, "/request_key")
            sent = request_hash({**fields, "request_key": key})
        wanted = parse_schedule(fields, defaults=tenant_defaults(token.tenant))
        given: dict[str, Any] = {
            "tenant": token.tenant,
            "request": wanted,
            "actor": actor_of(token),
        }
        if key is None or sent is None:
            made, new = create_schedule(**given), True
        else:
            made, new = create_schedule_once(**given, request_key=key, sent=sent)
        return Response(
            shown(made, token),
            201 if new else 200,
            headers={"Location": schedule_url(made.pk), "ETag": etag(made.version)},
        )


class PreviewView(ApiView):
    """POST /schedules/preview."""

    scopes: ClassVar = {"POST": "schedules:read"}

    def post(self, request: Request) -> Response:
        """200 with the next runs of a rule that is stored nowhere, and the coming changes of its clock."""
        token = token_of(request)
        given, rest = split_recurrence(fields_of(request))
        options = _preview_options(rest)
        try:
            schedule = parse_recurrence({**tenant_defaults(token.tenant), **given})
            after = options.get("after") or database_now()
            check_upcoming(schedule, after)
            timing = _with_calendar(schedule, options, token)
        except ValidationFailed as error:
            raise ScheduleInvalid(error.errors) from None
        except InvalidField as error:
            raise ScheduleInvalid([error]) from None
        told = preview(
            timing,
            text=given.get("cron", ""),
            after=after,
            until=options.get("until"),
            count=options.get("count", 10),
        )
        return Response(told.document(), headers=PRIVATE)


class ScheduleView(ApiView):
    """GET, PATCH and DELETE /schedules/{id}."""

    scopes: ClassVar = {
        "GET": "schedules:read",
        "PATCH": "schedules:write",
        "DELETE": "schedules:write",
    }

    def get(self, request: Request, schedule_id: str) -> Response:
        """200 with the version in force and its next runs."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        return Response(shown(found, token), headers={**PRIVATE, "ETag": etag(found.version)})

    def patch(self, request: Request, schedule_id: str) -> Response:
        """200 with the new version: fields that are given replace those of the one that If-Match names."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        version = wanted_number(request, found.version, "schedule")
        wanted = parse_schedule(
            _merged(found, fields_of(request)), defaults=tenant_defaults(token.tenant)
        )
        edited = edit_schedule(
            tenant=token.tenant,
            schedule_id=found.pk,
            version=version,
            request=wanted,
            actor=actor_of(token),
        )
        return Response(shown(edited, token), headers={"ETag": etag(edited.version)})

    def delete(self, request: Request, schedule_id: str) -> Response:
        """204. What it had made ahead and nobody has begun is withdrawn; its ledger stays."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        delete_schedule(
            tenant=token.tenant,
            schedule_id=found.pk,
            version=wanted_number(request, found.version, "schedule"),
            actor=actor_of(token),
        )
        return Response(status=204)


def _with_calendar(schedule: Recurrence, options: Mapping[str, Any], token: ApiToken) -> Timing:
    if faults := holiday_faults(options, schedule.rule):
        raise ValidationFailed(faults)
    if (name := options.get("calendar")) is None:
        return Timing(recurrence=schedule)
    try:
        found = find_calendar(tenant_id=token.tenant_id, name=name)
        holidays = read_holidays(found.days, found.weekend)
    except NotFound:
        raise InvalidField("/calendar", "unknown", "there is no such calendar") from None
    except (ValueError, TypeError):
        raise InvalidField("/calendar", "unreadable", "has rows that are no dates") from None
    moves = OnHoliday(options.get("on_holiday", OnHoliday.SKIP))
    return Timing(recurrence=schedule, holidays=holidays, on_holiday=moves)


def _merged(found: Schedule, fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields after the change. A rule by cron replaces one by interval, and the other way round."""
    given, _ = split_recurrence(fields)
    known = {"name": found.name, **known_fields(versions_in_force([found.pk])[found.pk])}
    if "cron" in given:
        known |= {"every": None, "anchor": None}
    if "every" in given:
        known["cron"] = None
    return {**known, **fields}


def _preview_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    found, faults = read_fields(fields, _OPTIONS, what="a preview")
    after: datetime | None = found.get("after")
    if after is not None and "until" in found and found["until"] <= after:
        faults.append(InvalidField("/until", "out_of_range", "must be after `after`"))
    if faults:
        raise ScheduleInvalid(faults)
    return found
