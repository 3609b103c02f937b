"""Operations on schedules: try a rule out, create, look at, edit, pause, resume, run now, delete; and their ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import has_scope, token_of
from jobs.api.errors import Problem
from jobs.api.parsers import fields_of
from jobs.api.serializers import job_url, occurrence_out, schedule_out, schedule_url
from jobs.api.views import ApiView
from jobs.api.views_jobs import PRIVATE, actor_of, read_id, read_reason, with_header_key
from jobs.clock import database_now
from jobs.errors import InvalidField, ScheduleInvalid, ValidationFailed
from jobs.models import ApiToken, Schedule
from jobs.policies.pointers import child_pointer
from jobs.queries.schedules import find_schedule, newest_occurrences, version_of
from jobs.services.preview import MOST_RUNS, check_upcoming, parse_recurrence, preview
from jobs.services.requests import integer, parse_request_key, read_fields, time
from jobs.services.schedule_requests import fields_of as known_fields
from jobs.services.schedule_requests import parse_schedule, split_recurrence
from jobs.services.schedules import (
    create_schedule,
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.services.timings import tenant_defaults

NEXT_RUNS = 5
_OPTIONS: dict[str, Any] = {"after": time, "until": time, "count": integer(1, MOST_RUNS)}
_ETAG = re.compile(r'"v([1-9][0-9]{0,8})"')


class SchedulesView(ApiView):
    """POST /schedules."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request) -> Response:
        """201 with the new schedule. The jobs of its next hour are made before this answers."""
        token = token_of(request)
        wanted = parse_schedule(fields_of(request), defaults=tenant_defaults(token.tenant))
        made = create_schedule(tenant=token.tenant, request=wanted, actor=actor_of(token))
        return Response(
            shown(made, token),
            201,
            headers={"Location": schedule_url(made.pk), "ETag": etag(made)},
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
        except ValidationFailed as error:
            raise ScheduleInvalid(error.errors) from None
        except InvalidField as error:
            raise ScheduleInvalid([error]) from None
        told = preview(
            schedule,
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
        return Response(shown(found, token), headers={**PRIVATE, "ETag": etag(found)})

    def patch(self, request: Request, schedule_id: str) -> Response:
        """200 with the new version: fields that are given replace those of the one that If-Match names."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        version = _wanted_version(request, found)
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
        return Response(shown(edited, token), headers={"ETag": etag(edited)})

    def delete(self, request: Request, schedule_id: str) -> Response:
        """204. What it had made ahead and nobody has begun is withdrawn; its ledger stays."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        delete_schedule(
            tenant=token.tenant,
            schedule_id=found.pk,
            version=_wanted_version(request, found),
            actor=actor_of(token),
        )
        return Response(status=204)


class PauseView(ApiView):
    """POST /schedules/{id}/pause."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request, schedule_id: str) -> Response:
        """200 with the schedule. Needs a reason; `resume_at` ends the pause by itself."""
        token = token_of(request)
        fields = dict(fields_of(request))
        resume_at = fields.pop("resume_at", None)
        end = None if resume_at is None else time(resume_at, "/resume_at")
        if end is not None and end <= database_now():
            fault = InvalidField("/resume_at", "out_of_range", "must be in the future")
            raise ValidationFailed([fault])
        paused = pause_schedule(
            tenant=token.tenant,
            schedule_id=read_id(schedule_id),
            actor=actor_of(token),
            reason=read_reason(fields),
            resume_at=end,
        )
        return Response(shown(paused, token))


class ResumeView(ApiView):
    """POST /schedules/{id}/resume."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request, schedule_id: str) -> Response:
        """200 with the schedule; what fired during the pause is recorded as skipped and never runs."""
        token = token_of(request)
        _only(fields_of(request), ())
        resumed = resume_schedule(
            tenant=token.tenant, schedule_id=read_id(schedule_id), actor=actor_of(token)
        )
        return Response(shown(resumed, token))


class TriggerView(ApiView):
    """POST /schedules/{id}/trigger."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request, schedule_id: str) -> Response:
        """201 with a job that runs now, 200 with the one that the request key already names."""
        token = token_of(request)
        fields = with_header_key(fields_of(request), request.META.get("HTTP_IDEMPOTENCY_KEY"))
        _only(fields, ("request_key",))
        key = fields.get("request_key")
        made = trigger_schedule(
            tenant=token.tenant,
            schedule_id=read_id(schedule_id),
            actor=actor_of(token),
            request_key=None if key is None else parse_request_key(key, "/request_key"),
        )
        headers = {"Location": job_url(made.job_id)} if made.created else {}
        return Response({"job": str(made.job_id)}, 201 if made.created else 200, headers=headers)


class OccurrencesView(ApiView):
    """GET /schedules/{id}/occurrences."""

    scopes: ClassVar = {"GET": "schedules:read"}

    def get(self, request: Request, schedule_id: str) -> Response:
        """200 with the newest verdicts, those to come first."""
        token = token_of(request)
        found = find_schedule(tenant_id=token.tenant_id, schedule_id=read_id(schedule_id))
        rows = [occurrence_out(row) for row in newest_occurrences(found)]
        return Response({"items": rows}, headers=PRIVATE)


def shown(schedule: Schedule, token: ApiToken) -> dict[str, Any]:
    """The schedule as this token may see it."""
    return schedule_out(
        schedule,
        version_of(schedule),
        defaults=tenant_defaults(token.tenant),
        now=database_now(),
        runs=NEXT_RUNS,
        reveal=has_scope(token, "payload:read"),
    )


def etag(schedule: Schedule) -> str:
    """The tag of the version in force."""
    return f'"v{schedule.version}"'


def _wanted_version(request: Request, found: Schedule) -> int:
    """The version that the caller has seen.

    Raises:
        Problem: version_required or version_mismatch.
    """
    given = request.META.get("HTTP_IF_MATCH")
    if given is None:
        raise Problem(
            "version_required", f"Send If-Match with the ETag that you saw ({etag(found)})."
        )
    tag = _ETAG.fullmatch(given.strip())
    if tag is None or int(tag[1]) != found.version:
        raise Problem(
            "version_mismatch",
            f"The schedule is at {etag(found)} now.",
            headers={"ETag": etag(found)},
            current=etag(found),
        )
    return int(tag[1])


def _merged(found: Schedule, fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields after the change. A rule by cron replaces one by interval, and the other way round."""
    given, _ = split_recurrence(fields)
    known = {"name": found.name, **known_fields(version_of(found))}
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


def _only(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    faults = [
        InvalidField(child_pointer("", str(name)), "unknown", "is not a field of this request")
        for name in fields
        if name not in known
    ]
    if faults:
        raise ValidationFailed(faults)
