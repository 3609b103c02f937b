"""Operations on one job: create, look at, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import has_scope, token_of
from jobs.api.errors import Problem, problem_of
from jobs.api.parameters import Choice
from jobs.api.parsers import fields_of
from jobs.api.serializers import event_out, job_out, job_url, why_out
from jobs.api.views import ApiView
from jobs.errors import InvalidField, NotFound, TransitionRefused, ValidationFailed
from jobs.models import ApiToken
from jobs.policies.payloads import check_scalar
from jobs.policies.pointers import child_pointer
from jobs.queries.history import JobDetail, job_detail, job_events, locate_job
from jobs.queries.why import why_of
from jobs.services.requests import parse_request, parse_request_key
from jobs.services.submit import submit_job
from jobs.transitions.cancel import cancel_job

MAX_REASON = 1_000  # characters
PRIVATE = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}


class JobsView(ApiView):
    """POST /jobs."""

    scopes: ClassVar = {"POST": "jobs:write"}

    def post(self, request: Request) -> Response:
        """201 with the new job, or 200 with the one that the request key already names, as it is now."""
        token = token_of(request)
        fields = with_header_key(fields_of(request), request.META.get("HTTP_IDEMPOTENCY_KEY"))
        wanted = parse_request(fields)
        # Commits before it returns: no transaction is open here, so what is answered is durable.
        submitted = submit_job(tenant=token.tenant, request=wanted, actor=actor_of(token))
        body = shown(job_detail(tenant_id=token.tenant_id, job_id=submitted.job_id), token)
        if submitted.created:
            return Response(body, 201, headers={"Location": job_url(submitted.job_id)})
        return Response(body, 200, headers={"Idempotent-Replayed": "true"})


class JobView(ApiView):
    """GET /jobs/{id}."""

    scopes: ClassVar = {"GET": "jobs:read"}
    parameters: ClassVar = {"GET": {"include": Choice(frozenset({"events", "why"}), several=True)}}

    def get(self, request: Request, job_id: str) -> Response:
        """200 with the job, and with its history and the reasons why it waits if asked for."""
        token = token_of(request)
        job = job_detail(tenant_id=token.tenant_id, job_id=read_id(job_id))
        body = shown(job, token)
        if "events" in self.query.get("include", ()):
            body["events"] = [event_out(event) for event in job_events(job)]
        if "why" in self.query.get("include", ()):
            body["why"] = why_out(why_of(job))
        return Response(body, headers=PRIVATE)


class WhyView(ApiView):
    """GET /jobs/{id}/why."""

    scopes: ClassVar = {"GET": "jobs:read"}

    def get(self, request: Request, job_id: str) -> Response:
        """200 with the reasons why the job is where it is, those with the most effect first."""
        wanted = read_id(job_id)
        job = job_detail(tenant_id=token_of(request).tenant_id, job_id=wanted)
        return Response({"job": str(wanted), **why_out(why_of(job))}, headers=PRIVATE)


class CancelJobView(ApiView):
    """POST /jobs/{id}/cancel."""

    scopes: ClassVar = {"POST": "jobs:cancel"}
    parameters: ClassVar = {"POST": {"if_running": Choice(frozenset({"ask", "refuse"}))}}

    def post(self, request: Request, job_id: str) -> Response:
        """200 when the job never runs again, 202 when its worker was told. What is answered has been committed."""
        token = token_of(request)
        wanted = read_id(job_id)
        shard = locate_job(tenant_id=token.tenant_id, job_id=wanted)
        reason = read_reason(fields_of(request))
        (if_running,) = self.query.get("if_running", ["ask"])
        try:
            outcome, already = cancel_job(
                shard=shard,
                job_id=wanted,
                actor=actor_of(token),
                reason=reason,
                if_running=if_running,
            )
        except TransitionRefused as refused:
            problem = problem_of(refused)
            job = job_detail(tenant_id=token.tenant_id, job_id=wanted)
            problem.extras["job"] = shown(job, token)
            raise problem from None
        body: dict[str, Any] = {"outcome": outcome}
        if already:
            body["already"] = True
        return Response(body, 202 if outcome == "cancel_requested" else 200)


def actor_of(token: ApiToken) -> str:
    """How the caller is named in history."""
    return f"token:{token.pk}"


def shown(job: JobDetail, token: ApiToken) -> dict[str, Any]:
    """The job as this token may see it."""
    return job_out(job, reveal=has_scope(token, "payload:read"))


def read_id(text: str) -> UUID:
    """The job id in a path.

    Raises:
        NotFound: Not an id in its canonical form: for the caller, the same as an id that is not in use.
    """
    try:
        job_id = UUID(text)
    except ValueError:
        raise NotFound from None
    if str(job_id) != text.lower():  # UUID() takes braces, "urn:uuid:" and digits of any script
        raise NotFound
    return job_id


def with_header_key(body: Mapping[str, Any], header: str | None) -> dict[str, Any]:
    """The fields of a create request, with the request key that the header gives.

    As a field, so that a key means the same request wherever it was written.

    Args:
        body: Fields as sent.
        header: Idempotency-Key as WSGI gives it, each byte a character; None when it was not sent.

    Raises:
        ValidationFailed: The header breaks the rules of the field.
        Problem: request_key_mismatch.
    """
    if header is None:
        return dict(body)
    place = "/request_key"
    try:
        key = parse_request_key(header.encode("latin-1").decode(), place)
    except UnicodeError:
        fault = InvalidField(place, "invalid_text", "the header Idempotency-Key must be UTF-8")
        raise ValidationFailed([fault]) from None
    except InvalidField as error:
        detail = f"the header Idempotency-Key {error.reason}"
        raise ValidationFailed([InvalidField(place, error.field_code, detail)]) from None
    given = body.get("request_key", key)
    if isinstance(given, str) and given != key:
        raise Problem(
            "request_key_mismatch",
            "The header Idempotency-Key and the field request_key differ; send one of them.",
            errors=[InvalidField(place, "differs", "is not as in the header Idempotency-Key")],
        )
    return {"request_key": key, **body}


def read_reason(body: Mapping[str, Any]) -> str:
    """The reason in the body of a cancel.

    Raises:
        ValidationFailed: Lists every fault.
    """
    faults = [
        InvalidField(child_pointer("", name), "unknown", "is not a field of a cancel request")
        for name in body
        if name != "reason"
    ]
    reason = body.get("reason")
    if "reason" not in body:
        faults.append(InvalidField("/reason", "required", "is required"))
    elif not isinstance(reason, str):
        faults.append(InvalidField("/reason", "wrong_type", "must be a text"))
    elif not reason.strip() or len(reason) > MAX_REASON:
        detail = f"must have 1 to {MAX_REASON} characters, not only spaces"
        faults.append(InvalidField("/reason", "length", detail))
    if faults:
        raise ValidationFailed(faults)
    check_scalar(reason, "/reason")
    return str(reason)
