"""What holds for every answer: a request id on all of them, and problem documents for every refusal below /api/."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from typing import cast

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.middleware.http import ConditionalGetMiddleware

from jobs.api.errors import CONTENT_TYPE, FAILED, problem_of_status, request_id_of

log = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")  # it comes back in headers, bodies and logs
_PREFIX = "/api/"

type Answer = Callable[[HttpRequest], HttpResponseBase]


class ApiMiddleware:
    """First of all middleware: what the others refuse (a foreign host, a route that is not there) passes here too.

    Below /api/ it also answers If-None-Match on GET and compresses for clients that ask for it.
    """

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response
        # Compression outermost, for the entity tag is of the plain text.
        conditional = cast("Answer", ConditionalGetMiddleware(self._with_problems))
        self._api = cast("Answer", GZipMiddleware(conditional))

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer, with the caller's request id, or a new one if that is missing or odd."""
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _SANE_ID.fullmatch(given) else secrets.token_hex(16)
        request.META["duekeeper.request_id"] = request_id
        answer = self._api if request.path_info.startswith(_PREFIX) else self._get_response
        response = answer(request)
        response["X-Request-ID"] = request_id
        if request.method == "HEAD" and isinstance(response, HttpResponse):
            response.content = b""  # Content-Length stays: it is the one of GET
        return response

    def _with_problems(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        if response.status_code < 400 or response.get("Content-Type") == CONTENT_TYPE:
            return response
        # Not from a view of the API: the framework's own page, in HTML, with a traceback when DEBUG is on.
        request_id = request_id_of(request)
        if response.status_code >= 500:
            extra = {"request_id": request_id, "method": request.method, "path": request.path}
            log.error(FAILED, extra=extra)
        if not isinstance(response, HttpResponse):
            response = HttpResponse()
        return problem_of_status(response.status_code).write_to(response, request_id)
