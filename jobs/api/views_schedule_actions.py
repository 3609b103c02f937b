"""What is done to a schedule as it is: pause, resume, run now, catch up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import token_of
from jobs.api.parsers import fields_of
from jobs.api.serializers import job_url
from jobs.api.shown_schedules import shown
from jobs.api.views import ApiView
from jobs.api.views_jobs import actor_of, read_id, read_reason, with_header_key
from jobs.errors import InvalidField, ScheduleInvalid, ValidationFailed
from jobs.policies.pointers import child_pointer
from jobs.queries.schedules import find_schedule
from jobs.services.catching_up import catch_up
from jobs.services.requests import parse_request_key, read_fields, time
from jobs.services.schedules import pause_schedule, resume_schedule, trigger_schedule


class PauseView(ApiView):
    """POST /schedules/{id}/pause."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request, schedule_id: str) -> Response:
        """200 with the schedule. Needs a reason; `resume_at` ends the pause by itself."""
        token = token_of(request)
        fields = dict(fields_of(request))
        resume_at = fields.pop("resume_at", None)
        end = None if resume_at is None else time(resume_at, "/resume_at")
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
        only_fields(fields_of(request), ())
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
        only_fields(fields, ("request_key",))
        key = fields.get("request_key")
        made = trigger_schedule(
            tenant=token.tenant,
            schedule_id=read_id(schedule_id),
            actor=actor_of(token),
            request_key=None if key is None else parse_request_key(key, "/request_key"),
        )
        headers = {"Location": job_url(made.job_id)} if made.created else {}
        return Response({"job": str(made.job_id)}, 201 if made.created else 200, headers=headers)


class CatchUpView(ApiView):
    """POST /schedules/{id}/catch-up."""

    scopes: ClassVar = {"POST": "schedules:write"}

    def post(self, request: Request, schedule_id: str) -> Response:
        """202: of the firings from `from` to `until`, both included, how many get a job, had one, fell on closed days."""
        token = token_of(request)
        wanted = read_id(schedule_id)
        find_schedule(tenant_id=token.tenant_id, schedule_id=wanted)
        fields = fields_of(request)
        given, faults = read_fields(fields, {"from": time, "until": time}, what="a catch-up")
        faults += [
            InvalidField(f"/{name}", "required", "is required")
            for name in ("from", "until")
            if name not in fields
        ]
        if faults:
            raise ScheduleInvalid(faults)
        done = catch_up(
            tenant=token.tenant,
            schedule_id=wanted,
            begin=given["from"],
            until=given["until"],
            actor=actor_of(token),
        )
        return Response(done._asdict(), 202)


def only_fields(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse fields that are not known.

    Raises:
        ValidationFailed: Lists them.
    """
    faults = [
        InvalidField(child_pointer("", str(name)), "unknown", "is not a field of this request")
        for name in fields
        if name not in known
    ]
    if faults:
        raise ValidationFailed(faults)
