"""Operations on calendars of business days."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import token_of
from jobs.api.etags import etag, mismatch, wanted_number
from jobs.api.parsers import fields_of
from jobs.api.serializers_schedules import calendar_out, calendar_url
from jobs.api.views import ApiView
from jobs.api.views_jobs import PRIVATE, actor_of
from jobs.clock import database_now
from jobs.errors import InvalidField, NotFound, ValidationFailed, VersionConflict
from jobs.models import ApiToken, Calendar
from jobs.services.calendars import (
    CalendarRequest,
    create_calendar,
    delete_calendar,
    find_calendar,
    list_calendars,
    parse_calendar,
    replace_calendar,
)


class CalendarsView(ApiView):
    """GET and POST /calendars."""

    scopes: ClassVar = {"GET": "schedules:read", "POST": "schedules:write"}

    def get(self, request: Request) -> Response:
        """200 with all calendars by name, without their days."""
        found = list_calendars(tenant_id=token_of(request).tenant_id)
        items = [calendar_out(one, days=False) for one in found]
        return Response({"items": items}, headers=PRIVATE)

    def post(self, request: Request) -> Response:
        """201 with the new calendar."""
        token = token_of(request)
        wanted = _parsed(fields_of(request))
        made = create_calendar(tenant=token.tenant, request=wanted, actor=actor_of(token))
        headers = {"Location": calendar_url(made.name), "ETag": etag(made.number)}
        return Response(calendar_out(made), 201, headers=headers)


class CalendarView(ApiView):
    """GET, PUT and DELETE /calendars/{name}."""

    scopes: ClassVar = {
        "GET": "schedules:read",
        "PUT": "schedules:write",
        "DELETE": "schedules:write",
    }

    def get(self, request: Request, name: str) -> Response:
        """200 with the edition in force."""
        found = _found(token_of(request), name)
        return Response(calendar_out(found), headers={**PRIVATE, "ETag": etag(found.number)})

    def put(self, request: Request, name: str) -> Response:
        """200 with the next edition, which is all that the body says; schedules follow it within seconds."""
        token = token_of(request)
        found = _found(token, name)
        number = wanted_number(request, found.number, "calendar")
        fields = fields_of(request)
        if fields.get("name", name) != name:
            fault = InvalidField("/name", "conflict", "is not as in the address")
            raise ValidationFailed([fault])
        wanted = _parsed({**fields, "name": name})
        try:
            made = replace_calendar(
                tenant=token.tenant, request=wanted, actor=actor_of(token), number=number
            )
        except VersionConflict as late:
            raise mismatch(late.current, "calendar") from None
        return Response(calendar_out(made), headers={"ETag": etag(made.number)})

    def delete(self, request: Request, name: str) -> Response:
        """204; refused while a schedule follows it."""
        token = token_of(request)
        found = _found(token, name)
        number = wanted_number(request, found.number, "calendar")
        try:
            delete_calendar(tenant=token.tenant, name=name, number=number, actor=actor_of(token))
        except VersionConflict as late:
            raise mismatch(late.current, "calendar") from None
        return Response(status=204)


def _parsed(fields: dict[str, Any]) -> CalendarRequest:
    return parse_calendar(fields, today=database_now().date())


def _found(token: ApiToken, name: str) -> Calendar:
    if "\x00" in name:  # a database cannot even be asked for it
        raise NotFound
    return find_calendar(tenant_id=token.tenant_id, name=name)
