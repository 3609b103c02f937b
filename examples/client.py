"""A small client of the Duekeeper REST API, standard library only: copy it into your own code.

client = Client("https://jobs.example.com", token)
job = client.create("billing.charge", {"invoice": 8812}, request_key="invoice-8812-charge")
job = client.wait(job["id"], timeout_seconds=30)
"""

import http.client
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

FINISHED = frozenset({"succeeded", "dead", "cancelled"})
type Json = dict[str, Any]


class ApiError(Exception):
    """The server refused, and said why (problem details, RFC 9457).

    `code` is stable and made for programs; `errors` names the fields, as JSON pointers; `problem`
    is the whole body with its extras, such as the `job` of a refused cancel.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[Mapping[str, Any]] = (),
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.problem = dict(problem or {})

    def __str__(self) -> str:
        fields = "; ".join(f"{e.get('pointer')}: {e.get('detail')}" for e in self.errors)
        return f"{self.status} {self.code}: {self.detail}" + (f" ({fields})" if fields else "")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as the server holds it; `replayed` when the request key had created it before."""

    job: Json
    replayed: bool


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: Json


class Client:
    """Calls one server with one tenant's token. Threads may share it: it keeps no connection open.

    It talks straight to the server, without proxies or redirects, so the token goes nowhere else.
    A call is repeated, for up to `retry_seconds`, after 429 (nothing was stored) and, when doing
    it twice is the same as once, after 503 and lost connections. A create without a request key
    is never repeated after those: the job may exist, and the repeat would be a second one.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 60.0,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError(f"not an http(s) address: {base_url!r}")
        self._connection = (
            http.client.HTTPSConnection
            if address.scheme == "https"
            else http.client.HTTPConnection
        )
        self._host, self._port = address.hostname, address.port
        self._root = address.path.rstrip("/") + "/api/v1"
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds

    def create(
        self,
        handler: str,
        payload: Mapping[str, Any],
        *,
        request_key: str | None = None,
        delay_seconds: float | None = None,
        due_at: datetime | None = None,
        lane: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        reference: str | None = None,
        tags: Sequence[str] | None = None,
        max_attempts: int | None = None,
        retry: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        concurrency_key: str | None = None,
    ) -> Json:
        """Creates a job and returns it; the same request key and body return the same job.

        Raises:
            ApiError: Refused; nothing was stored. `request_key_reused`: the key made another job.
            ConnectionError, TimeoutError: No answer. Without a request key the job may exist.
        """
        if due_at is not None and due_at.tzinfo is None:
            raise ValueError("due_at needs a time zone")
        fields = {
            "handler": handler,
            "payload": dict(payload),
            "request_key": request_key,
            "delay_seconds": delay_seconds,
            "due_at": due_at.isoformat() if due_at else None,
            "lane": lane,
            "priority": priority,
            "labels": labels,
            "reference": reference,
            "tags": tags,
            "max_attempts": max_attempts,
            "retry": retry,
            "timeout_seconds": timeout_seconds,
            "concurrency_key": concurrency_key,
        }
        return self.submit(
            {name: value for name, value in fields.items() if value is not None}
        ).job

    def submit(self, body: Mapping[str, Any]) -> Submission:
        """POSTs a body as it is, for callers that hold one, and tells a new job from a replay."""
        repeatable = body.get("request_key") is not None
        answer = self._call("POST", "/jobs", body, repeatable=repeatable)
        return Submission(answer.body, replayed=answer.status == 200)

    def get(self, job_id: str, include: Sequence[str] = ()) -> Json:
        """Returns the job; `include` adds "attempts", "events" or "why"."""
        query = f"?{urlencode({'include': ','.join(include)})}" if include else ""
        return self._call("GET", f"/jobs/{quote(job_id, safe='')}{query}").body

    def cancel(self, job_id: str, reason: str) -> Json:
        """Ends the job, or asks its worker to: look at `outcome`.

        "cancelled": it will never run. "cancel_requested": a worker has it; wait() and see.

        Raises:
            ApiError: `already_finished`, with the job in `problem`.
        """
        path = f"/jobs/{quote(job_id, safe='')}/cancel"
        return self._call("POST", path, {"reason": reason}).body

    def wait(self, job_id: str, timeout_seconds: float = 30.0) -> Json:
        """Polls, slower and slower, until the job is succeeded, dead or cancelled.

        Raises:
            TimeoutError: Still unfinished after `timeout_seconds`; the job goes on.
        """
        deadline = time.monotonic() + timeout_seconds
        pause_seconds = 0.1
        while (job := self.get(job_id))["status"] not in FINISHED:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is {job['status']} after {timeout_seconds} s")
            time.sleep(min(pause_seconds, left))
            pause_seconds = min(pause_seconds * 1.5, 2.0)
        return job

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = True,
    ) -> Answer:
        give_up_at = time.monotonic() + self._retry_seconds
        for turn in itertools.count():
            failure: ApiError | OSError
            pause_seconds = min(0.2 * 2**turn, 5.0) * random.uniform(0.5, 1)
            try:
                answer = self._send(method, path, body)
            except OSError as error:
                if not repeatable:
                    raise
                failure = error
            else:
                if answer.status < 300:
                    return answer
                failure = problem_of(answer)
                if not (answer.status == 429 or (answer.status == 503 and repeatable)):
                    raise failure
                pause_seconds = max(pause_seconds, retry_after_seconds(answer))
            if time.monotonic() + pause_seconds > give_up_at:
                raise failure
            time.sleep(pause_seconds)
        raise AssertionError("the loop ends by return or raise")

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(self._host, self._port, timeout=self._timeout_seconds)
        try:
            connection.request(method, self._root + path, content, headers)
            response = connection.getresponse()
            raw = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: broken answer, {error!r}") from error
        finally:
            connection.close()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, lowered, json_object(raw))


def json_object(raw: bytes) -> Json:
    """The body, or {} when it is not a JSON object: a gateway's HTML page, for one."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def problem_of(answer: Answer) -> ApiError:
    """The refusal as an exception; an answer that is no problem document gets a code of its own."""
    body = answer.body
    code = str(body.get("code") or f"http_{answer.status}")
    detail = str(body.get("detail") or body.get("title") or "no problem details were sent")
    errors = body.get("errors")
    return ApiError(answer.status, code, detail, errors if isinstance(errors, list) else (), body)


def retry_after_seconds(answer: Answer) -> float:
    """Seconds the server asked for; 0 when it did not say, or gave a date instead."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0
