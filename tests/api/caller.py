"""A caller of the API in tests: one tenant's token, JSON in, JSON out, and no exception of the server passed through."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

from django.test import Client

from jobs.models import DueEntry, Job, JobEvent, Route, Tenant
from jobs.services.credentials import SCOPES, create_token
from tests.factories import make_tenant

JOBS = "/api/v1/jobs"
REQUEST = {"handler": "billing.charge", "payload": {"invoice": 8812}}
PROBLEM_MEMBERS = {"type", "title", "status", "detail", "instance", "code", "errors"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    body: Any
    content: bytes


class Caller:
    """Has every scope unless told otherwise."""

    def __init__(self, tenant: Tenant | None = None, scopes: Any = SCOPES, **token: Any) -> None:
        self.tenant = tenant or make_tenant()
        self.token, self.text = create_token(self.tenant, "test", scopes, "user:anna", **token)
        self.actor = f"token:{self.token.pk}"

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        headers = {"Authorization": f"Bearer {self.text}", **options.pop("headers", {})}
        return call(method, path, body, headers=headers, **options)

    def create(self, headers: Any = None, **fields: Any) -> Answer:
        return self.call("POST", JOBS, {**REQUEST, **fields}, headers=headers or {})

    def get(self, job_id: object, query: str = "") -> Answer:
        return self.call("GET", f"{JOBS}/{job_id}{query}")

    def cancel(self, job_id: object, query: str = "", reason: str = "order withdrawn") -> Answer:
        return self.call("POST", f"{JOBS}/{job_id}/cancel{query}", {"reason": reason})


def call(
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Any = None,
    content_type: str = "application/json",
    client: Client | None = None,
    **environ: Any,
) -> Answer:
    """One request; `body` is sent as it is when it is bytes."""
    client = client or Client(raise_request_exception=False)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response = client.generic(method, path, data, content_type, headers=headers or {}, **environ)
    kind = response.get("Content-Type", "")
    content = response.content
    plain = gzip.decompress(content) if response.get("Content-Encoding") == "gzip" else content
    parsed = json.loads(plain) if "json" in kind and plain else None
    return Answer(response.status_code, response.headers, parsed, content)


def assert_problem(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The answer is this refusal, complete and of the right form; returns its body."""
    assert (answer.status, answer.body and answer.body.get("code")) == (status, code), answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Content-Length"] == str(len(answer.content))
    body: dict[str, Any] = answer.body
    assert body.keys() >= PROBLEM_MEMBERS
    assert (body["type"], body["status"]) == (f"/problems/{code}", status)
    assert body["instance"] == answer.headers["X-Request-ID"]
    for fault in body["errors"]:
        assert fault.keys() - {"parameter"} == {"pointer", "code", "detail"}
    return body


def pointers(answer: Answer) -> set[str]:
    """Which places the refusal names."""
    return {fault["pointer"] for fault in answer.body["errors"]}


def stored() -> tuple[int, ...]:
    """How many rows a create request could have added to, table by table."""
    return tuple(model.objects.count() for model in (Job, DueEntry, JobEvent, Route))
