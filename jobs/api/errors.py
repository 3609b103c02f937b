"""The only map from what went wrong to a status and a problem document (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import DatabaseError, InterfaceError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from rest_framework import exceptions as framework
from rest_framework.request import Request

from jobs import errors as domain
from jobs.database import drop_if_gone, is_unavailable

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
QUOTA_RETRY_SECONDS = 15  # a backlog shrinks by jobs that run
FAILED = "api.failed"  # log event: an answer 500, with the request id that the caller was given
UNAVAILABLE = "api.unavailable"  # log event: an answer 503

log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """What every problem of one code has in common."""

    status: int
    title: str


KINDS: dict[str, Kind] = {
    "bad_request": Kind(400, "The request cannot be understood"),
    "malformed_json": Kind(400, "The body is not JSON that can be stored unchanged"),
    "unknown_parameter": Kind(400, "There is no such query parameter here"),
    "invalid_parameter": Kind(400, "A query parameter has a value that cannot be accepted"),
    "invalid_cursor": Kind(400, "The cursor is of no page of this list"),
    "request_key_mismatch": Kind(400, "Header and body give different request keys"),
    "token_missing": Kind(401, "An API token is needed"),
    "token_invalid": Kind(401, "The API token is not valid"),
    "token_expired": Kind(401, "The API token has expired"),
    "scope_missing": Kind(403, "The API token may not do this"),
    "forbidden": Kind(403, "This is not allowed"),
    "not_found": Kind(404, "There is no such thing"),
    "method_not_allowed": Kind(405, "The method is not allowed here"),
    "already_finished": Kind(409, "The job has already finished"),
    "not_cancellable_state": Kind(409, "The job cannot be cancelled now"),
    "not_dead": Kind(409, "The dead letter is not open"),
    "not_waiting": Kind(409, "The job does not wait in the calendar"),
    "not_paused": Kind(409, "It is not paused"),
    "calendar_in_use": Kind(409, "A schedule follows it"),
    "lease_lost": Kind(409, "The lease ended first"),
    "version_mismatch": Kind(412, "It has been changed since"),
    "version_required": Kind(428, "The version that you have seen is needed"),
    "payload_too_large": Kind(413, "The body or the payload is too large"),
    "unsupported_media_type": Kind(415, "Only application/json is read here"),
    "validation_failed": Kind(422, "Some fields cannot be accepted"),
    "schedule_invalid": Kind(422, "Some fields of the schedule cannot be accepted"),
    "handler_unknown": Kind(422, "No worker ever advertised this handler"),
    "no_pool_matches": Kind(422, "No pool can run this job"),
    "request_key_reused": Kind(422, "The request key belongs to a different request"),
    "backlog_quota": Kind(429, "Too many jobs of this tenant wait"),
    "internal": Kind(500, "Something went wrong on our side"),
    "database_unavailable": Kind(503, "The database cannot be reached just now"),
    "overloaded": Kind(503, "Too much is going on just now"),
}
_CODE_OF_STATUS = {
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    415: "unsupported_media_type",
    503: "database_unavailable",
}


class InvalidParameter(domain.InvalidField):
    """A query parameter that cannot be accepted. It has no place in the body, so its pointer is ""."""

    def __init__(self, parameter: str, code: str, detail: str) -> None:
        super().__init__("", code, detail)
        self.parameter = parameter


class Problem(Exception):
    """One refusal, ready to be answered. `extras` are members beside those of every problem."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        errors: Iterable[domain.InvalidField] = (),
        headers: Mapping[str, str] | None = None,
        **extras: Any,
    ) -> None:
        self.code, self.kind = code, KINDS[code]
        self.detail = detail or f"{self.kind.title}."
        super().__init__(self.detail)
        self.errors, self.headers, self.extras = list(errors), dict(headers or {}), extras

    def body(self, request_id: str) -> dict[str, Any]:
        """The document; `instance` names this one occurrence, as the log does."""
        return {
            "type": f"/problems/{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": request_id,
            "code": self.code,
            "errors": [_error_out(error) for error in self.errors],
            **self.extras,
        }

    def write_to(self, response: HttpResponse, request_id: str) -> HttpResponse:
        """Make `response` say this; headers that it already has (security, Vary) stay."""
        response.status_code = self.kind.status
        response.content = json.dumps(self.body(request_id)).encode()
        response["Content-Type"] = CONTENT_TYPE
        response["Cache-Control"] = "no-store"
        for name, value in self.headers.items():
            response[name] = value
        response["Content-Length"] = str(len(response.content))
        return response


def _error_out(error: domain.InvalidField) -> dict[str, str]:
    shown = {"pointer": error.pointer, "code": error.field_code, "detail": error.reason}
    return shown | ({"parameter": error.parameter} if isinstance(error, InvalidParameter) else {})


def request_id_of(request: HttpRequest) -> str:
    """The id that the middleware gave to this request."""
    return str(request.META["duekeeper.request_id"])


def problem_of(error: BaseException) -> Problem:
    """The problem that an exception means; "internal", without a word about it, for any that nobody expected."""
    match error:
        case Problem():
            return error
        case domain.JobError():
            return _of_domain(error)
        case DatabaseError() | InterfaceError() if is_unavailable(error):
            return _try_later("database_unavailable")
        case framework.MethodNotAllowed():
            return Problem("method_not_allowed", str(error.detail))
        case framework.UnsupportedMediaType():
            reason = "the header Content-Type must be application/json, in UTF-8"
            fault = domain.InvalidField("", "unsupported_media_type", reason)
            detail = 'Send "Content-Type: application/json".'
            return Problem("unsupported_media_type", detail, errors=[fault])
        case framework.APIException():
            return problem_of_status(error.status_code)
        case Http404():
            return Problem("not_found")
        case PermissionDenied():
            return Problem("forbidden")
        case RequestDataTooBig():
            return Problem("payload_too_large")
        case SuspiciousOperation() | BadRequest() | UnreadablePostError():
            return Problem("bad_request")
    return Problem("internal")


def problem_of_status(status: int) -> Problem:
    """The problem of an answer of which only the status is known: one that the framework made."""
    code = _CODE_OF_STATUS.get(status, "internal" if status >= 500 else "bad_request")
    return _try_later(code) if KINDS[code].status == 503 else Problem(code)


def answer_exception(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """REST framework's exception handler: every exception of a view becomes a problem document."""
    request: Request = context["request"]
    request_id = request_id_of(request._request)
    problem = problem_of(error)
    extra = {"request_id": request_id, "method": request.method, "path": request.path}
    if problem.kind.status == 503:  # an outage fails every request: one line each, no traceback
        drop_if_gone(error)
        log.warning(UNAVAILABLE, extra={**extra, "error": str(error)})
    elif problem.kind.status >= 500:
        log.error(FAILED, exc_info=error, extra=extra)
    return problem.write_to(HttpResponse(), request_id)


def _of_domain(error: domain.JobError) -> Problem:
    code, detail = error.code, error.detail
    match error:
        case domain.ValidationFailed():
            return Problem(code, _summary(error.errors), errors=error.errors)
        case domain.InvalidField():
            return Problem(code, _summary([error]), errors=[error])
        case domain.MalformedJson():
            fault = domain.InvalidField(error.pointer, code, detail)
            return Problem(code, _summary([fault]), errors=[fault])
        case domain.PayloadTooLarge():
            fault = domain.InvalidField(error.pointer, "too_large", detail)
            return Problem(code, _summary([fault]), errors=[fault], limit=error.limit)
        case domain.UnknownHandler() | domain.NoMatchingPool():
            fault = domain.InvalidField(error.pointer, code, detail)
            return Problem(code, detail, errors=[fault])
        case domain.RequestKeyReused():
            differing = [
                domain.InvalidField(f"/{name}", "differs", "is not as in the first request")
                for name in error.differs
            ]
            made = ("job", error.job_id) if error.job_id else ("schedule", error.schedule_id)
            return Problem(code, detail, errors=differing, **{made[0]: {"id": str(made[1])}})
        case domain.QuotaExceeded():
            return _try_later(
                code, detail, QUOTA_RETRY_SECONDS, limit=error.limit, used=error.used
            )
    match KINDS.get(code, KINDS["internal"]).status:
        case 500:
            return Problem("internal")
        case 503:
            return _try_later(code)
    return Problem(code, detail)


def _try_later(
    code: str, detail: str = "", wait: int = RETRY_AFTER_SECONDS, **extras: Any
) -> Problem:
    headers = {"Retry-After": str(wait)}
    return Problem(code, detail, headers=headers, retry_after_seconds=wait, **extras)


def _summary(faults: list[domain.InvalidField]) -> str:
    first = faults[0]
    more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{first.pointer or 'The body'}: {first.reason}{more}"
