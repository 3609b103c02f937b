"""The API behind a real server: bodies in chunks, bodies far over the limit, answers that nobody waited for."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from tests.api.caller import JOBS, PROBLEM_MEMBERS, REQUEST, Caller

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
LISTENING = re.compile(r"Listening at: http://127\.0\.0\.1:([0-9]+)")
LIMIT_SECONDS = 30


class Server:
    """gunicorn on a free port of the loopback interface."""

    def __init__(self, database_url: str, log: Path) -> None:
        arguments = ["-b", "127.0.0.1:0", "--threads", "4", "--no-control-socket"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "scheduler_site.wsgi", *arguments],
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": database_url},
                stdout=output,
                stderr=output,
            )
        self.log = log
        self.port = 0

    def __enter__(self) -> Server:
        self.port = int(wait_for(self._port, self.log))
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(LIMIT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def _port(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        found = LISTENING.search(self.log.read_text())
        return found[1] if found else None


def wait_for(look: Callable[[], Any], log: Path) -> Any:
    """What `look` finds, once it finds something."""
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < give_up_at:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing in {LIMIT_SECONDS} s\n{log.read_text()}")


@pytest.fixture
def start(committed_owner, database_url, tmp_path) -> Callable[[], Server]:
    return lambda: Server(database_url, tmp_path / "gunicorn.log")


@pytest.fixture
def server(start) -> Iterator[Server]:
    with start() as running:
        yield running


def post(server: Server, owner: Caller, body: Any, **headers: str) -> tuple[int, Any, Any]:
    """One POST /jobs; a body that is an iterator goes in chunks."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_SECONDS)) as connection:
        return send(connection, owner, body, **headers)


def send(
    connection: HTTPConnection, owner: Caller, body: Any, **headers: str
) -> tuple[int, Any, Any]:
    sent = {"Authorization": f"Bearer {owner.text}", "Content-Type": "application/json", **headers}
    connection.request("POST", JOBS, body, sent, encode_chunked=not isinstance(body, bytes))
    response = connection.getresponse()
    return response.status, response.headers, json.loads(response.read())


def chunks(body: bytes, size: int = 10_000) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def with_payload(size: int) -> bytes:
    return b'{"handler": "billing.charge", "payload": "' + b"x" * size + b'"}'


def test_bodies_in_chunks_and_bodies_over_the_limit(server, committed_owner):
    chunked = {"Transfer-Encoding": "chunked"}
    status, _, job = post(server, committed_owner, chunks(with_payload(60_000)), **chunked)
    assert (status, len(job["payload"])) == (201, 60_000)

    with closing(HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_SECONDS)) as connection:
        for _ in range(2):  # the connection lives on after each refusal
            for body, headers in (
                (with_payload(2_000_000), {}),
                (chunks(with_payload(2_000_000)), chunked),
            ):
                status, received, problem = send(connection, committed_owner, body, **headers)
                assert (status, problem["code"]) == (413, "payload_too_large")
                assert received["Content-Type"] == "application/problem+json"
                assert problem.keys() >= PROBLEM_MEMBERS
        assert send(connection, committed_owner, json.dumps(REQUEST).encode())[0] == 201
    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    "sent", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx0\r\n\r\n", b"-1\r\n{}\r\n"]
)
def test_chunks_that_are_none_are_the_callers_fault(server, committed_owner, sent):
    head = (
        f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {committed_owner.text}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS) as caller:
        caller.sendall(head.encode() + sent)
        answer = caller.makefile("rb").readline()
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_key_in_the_header_is_utf_8_on_the_wire(server, committed_owner):
    key = "Rechnung-ü-🧾"
    header = {"Idempotency-Key": key.encode().decode("latin-1")}
    assert post(server, committed_owner, json.dumps(REQUEST).encode(), **header)[0] == 201
    body = json.dumps({**REQUEST, "request_key": key}).encode()
    status, _, job = post(server, committed_owner, body)
    assert (status, job["request_key"]) == (200, key)


def test_f20_a_caller_that_hung_up_and_a_server_that_was_killed_leave_one_job(
    start, committed_owner, tmp_path
):
    body = json.dumps({**REQUEST, "request_key": "k"}).encode()
    head = (
        f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {committed_owner.text}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with start() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(head.encode() + body)  # and gone before the answer
        first = wait_for(Job.objects.first, server.log)
        status, headers, job = post(server, committed_owner, body)
        assert (status, headers["Idempotent-Replayed"], job["id"]) == (200, "true", str(first.pk))
        server.process.kill()
        server.process.wait()
    with start() as server:
        status, headers, job = post(server, committed_owner, body)
        assert (status, headers["Idempotent-Replayed"], job["id"]) == (200, "true", str(first.pk))
    assert Job.objects.count() == 1
