"""The example shop: its provider as a real process, its API client, its books, its orders."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import pytest

from examples import client as client_module
from examples.books import Books, balance
from examples.client import ApiError, Client
from examples.shop import handlers
from examples.shop.payments import CALL_SECONDS, ProviderTrouble
from jobs.services.requests import parse_request
from jobs.transitions.take import Taken
from workers.handlers import (
    Cancelled,
    JobContext,
    PermanentFailure,
    RetryAfter,
    Snooze,
    discover,
)
from workers.stopping import Stop

EXAMPLES = Path(__file__).parents[2] / "examples"
CHARGE = {"invoice": 8812, "amount_cents": 4599, "currency": "EUR"}


# ── the provider ─────────────────────────────────────────────────────────────────────────────


class Provider:
    """The provider as a child process, isolated (-I) and without site packages (-S)."""

    def __init__(self, folder: Path, *options: str) -> None:
        script = str(EXAMPLES / "provider.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, "--data-dir", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if not ready:
            raise AssertionError(self.process.communicate(timeout=60)[1])
        self.url: str = json.loads(ready)["url"]
        self.address = (urlsplit(self.url).hostname or "", urlsplit(self.url).port or 0)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        connection = HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        return response.status, json.loads(raw) if raw[:1] == b"{" else raw

    def deliver(
        self, token: str, body: object, *, path: str = "/charges", attempt: int = 1
    ) -> tuple[int, Any]:
        headers = {
            "Idempotency-Key": quote(token),
            "Job-Attempt": str(attempt),
            "Fencing-Token": str(attempt),
        }
        return self.request("POST", path, json.dumps(body).encode(), headers)

    def report(self) -> dict[str, Any]:
        status, report = self.request("GET", "/report?tokens=1")
        assert status == 200
        return dict(report)

    def figures(self) -> tuple[int, int, int]:
        """Deliveries, charges, duplicates collapsed."""
        report = self.report()
        return report["deliveries"], report["charges"], report["duplicate_deliveries_collapsed"]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Sends the signal, if it still runs, and returns the exit code and what stderr held."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            _, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, errors


@pytest.fixture
def start_provider(tmp_path: Path) -> Iterator[Callable[..., Provider]]:
    started: list[Provider] = []

    def start(*options: str) -> Provider:
        started.append(Provider(tmp_path / "provider", *options))
        return started[-1]

    yield start
    for provider in started:
        if provider.process.poll() is None:
            provider.stop(signal.SIGKILL)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for an event in another process; fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited state did not come"
        threading.Event().wait(0.02)


def test_a_repeated_charge_is_made_once_and_every_delivery_is_counted(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    answers = [provider.deliver("nordwind/a", CHARGE, attempt=n) for n in (1, 2, 3)]
    assert [status for status, _ in answers] == [201, 200, 200]
    assert len({body["charge_id"] for _, body in answers}) == 1
    assert provider.report() == {
        "deliveries": 3,
        "charges": 1,
        "mails": 0,
        "duplicate_deliveries_collapsed": 2,
        "refused": 0,
        "answers_withheld": 0,
        "per_token": {
            "nordwind/a": {
                "token": "nordwind/a",
                "deliveries": 3,
                "attempts": [1, 2, 3],
                "charges": 1,
                "mails": 0,
            }
        },
    }
    assert "per_token" not in provider.request("GET", "/report")[1]


def test_equal_charges_at_the_same_moment_are_one_charge(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: provider.deliver("nordwind/a", CHARGE), range(20)))
    assert Counter(status for status, _ in answers) == {201: 1, 200: 19}
    assert len({body["charge_id"] for _, body in answers}) == 1
    assert provider.figures() == (20, 1, 19)


def test_charges_and_mails_have_separate_books_and_tokens_in_any_script(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    awkward = "kiosk-24/فاتورة %2F #1 🎁"
    assert provider.deliver(awkward, CHARGE)[0] == 201
    mail = {"to": "נועה <c7@example.com>"}
    assert provider.deliver(awkward, mail, path="/mails")[0] == 201
    assert provider.deliver(awkward, mail, path="/mails")[0] == 200
    report = provider.report()
    assert (report["charges"], report["mails"], report["deliveries"]) == (1, 1, 3)
    assert list(report["per_token"]) == [awkward]


def test_a_lost_answer_means_charged_and_its_repeat_collapses(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider("--fail-every", "2")
    assert provider.deliver("t/1", CHARGE)[0] == 201
    with pytest.raises(RemoteDisconnected):
        provider.deliver("t/2", CHARGE)
    assert provider.deliver("t/3", CHARGE)[0] == 201
    assert provider.deliver("t/4", CHARGE)[0] == 503
    assert provider.figures() == (4, 4, 0)
    # Repeats are no first deliveries: none of them loses its answer.
    assert [provider.deliver(f"t/{n}", CHARGE, attempt=2)[0] for n in (2, 4, 2, 4)] == [200] * 4
    assert provider.figures() == (8, 4, 4)
    assert provider.report()["answers_withheld"] == 2


def test_a_declined_card_is_refused_each_time_and_never_charged(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    for _ in range(2):
        status, body = provider.deliver("t/1", CHARGE | {"payment_method": "pm_declined"})
        assert (status, body) == (402, {"error": "card_declined"})
    assert provider.figures() == (2, 0, 0)
    assert provider.report()["refused"] == 2


def test_a_token_reused_for_another_charge_is_refused(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    assert provider.deliver("t/1", CHARGE)[0] == 201
    assert provider.deliver("t/1", CHARGE | {"amount_cents": 1})[0] == 422
    assert provider.figures() == (2, 1, 0)


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "counted"),
    [
        ("/charges", b"{}", {}, 400, 0),  # no token to count it under
        ("/charges", b"{}", {"Idempotency-Key": "t/1"}, 422, 1),
        ("/charges", b"[1]", {"Idempotency-Key": "t/1"}, 400, 1),
        ("/charges", b"\xff\x00", {"Idempotency-Key": "t/1"}, 400, 1),
        ("/charges", b"[" * 50_000, {"Idempotency-Key": "t/1"}, 400, 1),
        ("/charges", b"", {"Idempotency-Key": "t/1", "Content-Length": "70000"}, 413, 0),
        ("/charges", b"", {"Idempotency-Key": "t/1", "Content-Length": "-1"}, 411, 0),
        ("/refunds", b"{}", {"Idempotency-Key": "t/1"}, 404, 0),
    ],
)
def test_a_wrong_request_is_refused_and_applies_nothing(
    start_provider: Callable[..., Provider],
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    counted: int,
) -> None:
    provider = start_provider()
    assert provider.request("POST", path, body, headers)[0] == status
    assert provider.figures() == (counted, 0, 0)
    assert provider.request("GET", "/healthz") == (200, {"status": "ok"})
    assert provider.stop() == (0, "")


def test_a_client_killed_in_the_middle_of_a_charge_leaves_one_charge_and_two_deliveries(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider("--delay-ms", "60000")
    charging = (
        "import sys, http.client as h; c = h.HTTPConnection(sys.argv[1]);"
        "c.request('POST', '/charges', sys.argv[2], {'Idempotency-Key': 't/1', 'Job-Attempt': '1'});"
        "c.getresponse()"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", charging, urlsplit(provider.url).netloc, json.dumps(CHARGE)]
    )
    try:
        until(lambda: provider.figures() == (1, 1, 0))
        assert victim.poll() is None, "it still waits for its answer"
    finally:
        victim.kill()
        victim.wait()
    assert provider.deliver("t/1", CHARGE, attempt=2)[0] == 200
    assert provider.figures() == (2, 1, 1)
    assert provider.report()["per_token"]["t/1"]["attempts"] == [1, 2]
    # The delay of the first delivery still runs; a stop does not wait for it.
    assert provider.stop() == (0, "")


def test_a_request_that_breaks_off_half_way_is_no_delivery(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    head = (
        b"POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: t/1\r\nContent-Length: 99\r\n\r\n"
    )
    for sent in (b"POST /char", head, head + b'{"invoice": 88'):
        with socket.create_connection(provider.address, timeout=20) as line:
            line.sendall(sent)
    with socket.create_connection(provider.address, timeout=20) as line:
        line.sendall(head + b'{"invoice": 88')
        line.shutdown(socket.SHUT_WR)
        assert line.recv(100) == b""  # it read the end of the body that never came
    assert provider.figures() == (0, 0, 0)
    assert provider.stop() == (0, "")


def test_charges_outlive_a_provider_that_is_killed(
    start_provider: Callable[..., Provider],
) -> None:
    provider = start_provider()
    first = provider.deliver("t/1", CHARGE)[1]
    assert provider.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    again = start_provider()
    assert again.deliver("t/1", CHARGE, attempt=2) == (200, first)
    assert again.figures() == (2, 1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_provider_ends_cleanly_on_a_signal(
    start_provider: Callable[..., Provider], number: signal.Signals
) -> None:
    provider = start_provider("--delay-ms", "60000")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(provider.deliver, "t/1", CHARGE)
        until(lambda: provider.figures() == (1, 1, 0))
        assert provider.stop(number) == (0, "")
        assert slow.result(timeout=60)[0] == 201  # the answer under way was still sent
    with pytest.raises(ConnectionRefusedError):
        provider.request("GET", "/healthz")


# ── the handlers ─────────────────────────────────────────────────────────────────────────────


class Attempt(JobContext):
    """A real context, held for `lease_seconds`; pauses are counted, not slept."""

    def __init__(
        self, payload: object, *, key: str = "k", attempt: int = 1, lease_seconds: float = 24.0
    ) -> None:
        taken = Taken(
            lease_id=UUID(int=1),
            job_id=UUID(int=2),
            shard=3,
            tenant_id=4,
            route_id=5,
            attempt=attempt,
            token=attempt + 10,
            attempt_limit=5,
            handler="",
            payload=json.dumps(payload),
            payload_ref=None,
            retry="{}",
            timeout_seconds=30.0,
            request_key=key,
        )
        self.drain = threading.Event()
        now = time.monotonic()
        stop = Stop(deadline=now + 30, trusted_until=now + lease_seconds, drain=self.drain)
        super().__init__(taken, tenant="nordwind", stop=stop)
        self.ask, self.pauses = stop.ask, 0
        self.at_pause: Callable[[int], None] = lambda number: None

    def wait(self, seconds: float) -> bool:
        self.pauses += 1
        self.at_pause(self.pauses)
        return self.cancelled


@pytest.fixture
def shop(
    start_provider: Callable[..., Provider], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Provider]:
    """Starts a provider that the handlers know."""

    def start(*options: str) -> Provider:
        provider = start_provider(*options)
        monkeypatch.setenv("SHOP_PROVIDER_URL", provider.url)
        return provider

    return start


def test_all_attempts_of_a_charge_present_one_token_and_make_one_charge(
    shop: Callable[..., Provider],
) -> None:
    provider = shop()
    key = "invoice-8812 فاتورة #1 50%"
    results = [handlers.charge(Attempt(CHARGE, key=key, attempt=n)) for n in (1, 2)]
    assert results == [{"charge_id": "ch_000001"}] * 2
    [(token, charged)] = provider.report()["per_token"].items()
    assert token == f"nordwind/{key}" == Attempt(None, key=key).idempotency_token
    assert (charged["attempts"], charged["charges"]) == ([1, 2], 1)
    assert handlers.charge(Attempt({"invoice": 1}, key="other")) == {"charge_id": "ch_000002"}


def test_the_handlers_reach_the_provider_past_a_proxy_of_the_environment(
    shop: Callable[..., Provider],
) -> None:
    provider = shop()
    asking = (
        "import sys; from examples.shop.payments import opener\n"
        "with opener.open(sys.argv[1], timeout=10) as answer: print(answer.status)"
    )
    # A process of its own, for an opener takes its proxies from the environment when it is built.
    asked = subprocess.run(
        [sys.executable, "-c", asking, f"{provider.url}/healthz"],
        cwd=EXAMPLES.parent,
        env=os.environ | {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""},
        capture_output=True,
        text=True,
    )
    assert (asked.stdout, asked.stderr) == ("200\n", "")


def test_a_declined_card_is_a_permanent_failure(shop: Callable[..., Provider]) -> None:
    shop()
    with pytest.raises(PermanentFailure, match=r"402.*card_declined"):
        handlers.charge(Attempt(CHARGE | {"payment_method": "pm_declined"}))


def test_a_lost_answer_and_a_busy_provider_are_tried_again(shop: Callable[..., Provider]) -> None:
    provider = shop("--fail-every", "1")  # by turns a cut line and a 503
    with pytest.raises(ConnectionError):
        handlers.charge(Attempt(CHARGE, key="a"))
    with pytest.raises(RetryAfter) as busy:
        handlers.charge(Attempt(CHARGE, key="b"))
    assert busy.value.seconds == 1
    for key in ("a", "b"):
        handlers.charge(Attempt(CHARGE, key=key, attempt=2))
    assert provider.figures() == (4, 2, 2)


def test_a_call_ends_with_the_lease_and_none_begins_after_it(
    shop: Callable[..., Provider],
) -> None:
    provider = shop("--delay-ms", "60000")
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        handlers.charge(Attempt(CHARGE, lease_seconds=2.0))
    assert 1.9 < time.monotonic() - begun < CALL_SECONDS  # after that it would end without a lease
    with pytest.raises(ProviderTrouble, match="lease"):
        handlers.charge(Attempt(CHARGE, key="late", lease_seconds=0))
    assert list(provider.report()["per_token"]) == ["nordwind/k"]


def test_mails_go_out_once_and_one_without_an_address_never_will(
    shop: Callable[..., Provider],
) -> None:
    provider = shop()
    mail = {"to": "June <c1@example.com>", "invoice": 8812}
    for attempt in (1, 2):
        assert handlers.receipt(Attempt(mail, key="r", attempt=attempt)) == {
            "mail_id": "ml_000001"
        }
    assert handlers.password_reset(Attempt(mail, key="p")) == {"mail_id": "ml_000002"}
    with pytest.raises(PermanentFailure, match="no address"):
        handlers.receipt(Attempt({"invoice": 8812}))
    report = provider.report()
    assert (report["mails"], report["deliveries"], report["charges"]) == (2, 3, 0)


def test_a_digest_tells_how_far_it_is_and_stops_between_two_steps() -> None:
    whole = Attempt({"week": "2026-W48"})
    result = handlers.weekly_digest(whole)
    assert isinstance(result, dict)
    assert len(result["sections"]) == whole.pauses == 5
    assert whole.progress_note == {"fraction": 1.0, "note": "searches"}

    stopped = Attempt({"week": "2026-W48"})
    stopped.at_pause = lambda number: stopped.ask("cancel") if number == 3 else None
    with pytest.raises(Cancelled):
        handlers.weekly_digest(stopped)
    assert stopped.progress_note == {"fraction": 0.4, "note": "refunds"}


def test_a_cancelled_campaign_says_how_many_batches_are_out(shop: Callable[..., Provider]) -> None:
    provider = shop()
    ctx = Attempt({"campaign": "🖤", "list": "all", "batches": 50, "pause_seconds": 0.25})
    ctx.at_pause = lambda number: ctx.ask("cancel") if number == 3 else None
    with pytest.raises(Cancelled, match="3 of 50"):
        handlers.send_campaign(ctx)
    assert provider.report()["mails"] == 3


def test_a_campaign_moved_to_another_worker_mails_no_batch_twice(
    shop: Callable[..., Provider],
) -> None:
    provider = shop()
    payload = {"campaign": "🖤", "list": "all", "batches": 4, "pause_seconds": 0.25}
    first = Attempt(payload)
    first.at_pause = lambda number: first.drain.set() if number == 2 else None
    with pytest.raises(Snooze, match="2 of 4"):
        handlers.send_campaign(first)
    second = Attempt(payload, attempt=2)
    assert handlers.send_campaign(second) == {"campaign": "🖤", "batches": 4}
    assert second.progress_note == {"fraction": 1.0, "note": "batch 4 of 4"}
    report = provider.report()
    assert (report["mails"], report["duplicate_deliveries_collapsed"]) == (4, 2)
    sent = row("nordwind/k", "campaigns.send", attempt=2)
    books = balance(accepted=["nordwind/k"], jobs=[sent], provider_report=report)
    assert books.balanced, books.problems


def test_the_stock_error_is_as_odd_as_it_came(shop: Callable[..., Provider]) -> None:
    provider = shop()
    with pytest.raises(ProviderTrouble) as caught:
        handlers.sync_inventory(Attempt({"warehouse": "Lager 2"}))
    assert all(odd in str(caught.value) for odd in ("\x00", "💥", "المخزن", "<script>", "500"))
    assert provider.figures() == (0, 0, 0)


def test_an_export_waits_for_the_warehouse_once() -> None:
    payload = {"day": "2026-11-27", "rows": 12}
    with pytest.raises(Snooze, match="closed") as asleep:
        handlers.export_orders(Attempt(payload))
    assert asleep.value.seconds == 2
    result = handlers.export_orders(Attempt(payload, attempt=2))
    assert result == {"file": "orders-2026-11-27.csv", "rows": 12}


# ── the client ───────────────────────────────────────────────────────────────────────────────

type Script = tuple[int, dict[str, str], object] | None  # None: hang up without an answer


class FakeServer(ThreadingHTTPServer):
    """Answers by a script, in order, and keeps what it was asked."""

    def __init__(self, answers: list[Script]) -> None:
        super().__init__(("127.0.0.1", 0), FakeRequest)
        self.answers = answers
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class FakeRequest(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, FakeServer)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = json.loads(body) if body else None
        server.asked.append((self.command, self.path, asked, headers))
        answer = server.answers.pop(0)
        if answer is None:
            return
        status, headers, content = answer
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST  # noqa: N815 - inherited name

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
        """Silent."""


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    servers: list[tuple[FakeServer, threading.Thread]] = []

    def start(*answers: Script) -> FakeServer:
        server = FakeServer(list(answers))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, taken down instead of slept."""
    taken: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=taken.append)
    monkeypatch.setattr(client_module, "time", clock)
    return taken


def job(status: str = "scheduled") -> dict[str, Any]:
    return {"id": "0193-7f", "status": status}


def problem(status: int, code: str, **headers: str) -> Script:
    body = {"status": status, "code": code, "detail": "as it says", "errors": []}
    return status, {"Content-Type": "application/problem+json", **headers}, body


def test_create_sends_what_was_given_and_nothing_else(serve: Callable[..., FakeServer]) -> None:
    server = serve((201, {}, job()))
    client = Client(server.url + "/dk/", "dk_test_1")
    created = client.create(
        "billing.charge",
        {"invoice": 8812, "note": "شكرا 🎁"},
        request_key="invoice-8812-charge",
        due_at=datetime(2026, 12, 1, tzinfo=UTC),
        lane="urgent",
        tags=["storefront"],
    )
    assert created == job()
    [(method, path, body, headers)] = server.asked
    assert (method, path) == ("POST", "/dk/api/v1/jobs")
    assert headers["authorization"] == "Bearer dk_test_1"
    assert headers["content-type"] == "application/json"
    assert body == {
        "handler": "billing.charge",
        "payload": {"invoice": 8812, "note": "شكرا 🎁"},
        "request_key": "invoice-8812-charge",
        "due_at": "2026-12-01T00:00:00+00:00",
        "lane": "urgent",
        "tags": ["storefront"],
    }


def test_submit_tells_a_new_job_from_a_replay(serve: Callable[..., FakeServer]) -> None:
    server = serve((201, {}, job()), (200, {"Idempotent-Replayed": "true"}, job("succeeded")))
    client = Client(server.url, "t")
    body = {"handler": "billing.charge", "payload": {}, "request_key": "k"}
    assert [client.submit(body).replayed for _ in range(2)] == [False, True]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", ""])
def test_an_address_that_is_not_http_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        Client(url, "t")


def test_times_without_a_zone_and_numbers_without_a_value_are_not_sent(
    serve: Callable[..., FakeServer],
) -> None:
    server = serve()
    client = Client(server.url, "t")
    with pytest.raises(ValueError, match="time zone"):
        client.create("billing.charge", {}, due_at=datetime(2026, 12, 1))  # noqa: DTZ001 - the case
    with pytest.raises(ValueError, match="JSON"):
        client.create("billing.charge", {"amount": float("nan")})
    assert server.asked == []


def test_a_refusal_names_its_fields(serve: Callable[..., FakeServer]) -> None:
    errors = [{"pointer": "/payload/invoice", "code": "required", "detail": "is required"}]
    body = {"status": 422, "code": "payload_schema", "detail": "No.", "errors": errors, "job": "j"}
    server = serve((422, {}, body))
    with pytest.raises(ApiError) as caught:
        Client(server.url, "t").create("billing.charge", {}, request_key="k")
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.detail) == (422, "payload_schema", "No.")
    assert refusal.errors == errors
    assert refusal.problem["job"] == "j"
    assert str(refusal) == "422 payload_schema: No. (/payload/invoice: is required)"


@pytest.mark.parametrize("status", [302, 404, 502])
def test_an_answer_that_is_no_problem_document_is_an_error_too(
    serve: Callable[..., FakeServer], status: int
) -> None:
    server = serve((status, {"Location": "/elsewhere"}, b"<html>Bad gateway</html>"))
    with pytest.raises(ApiError) as caught:
        Client(server.url, "t").get("j")
    assert caught.value.code == f"http_{status}"
    assert len(server.asked) == 1  # a redirect is not followed: the token stays here


def test_a_full_server_is_asked_again_after_the_time_it_named(
    serve: Callable[..., FakeServer], pauses: list[float]
) -> None:
    limited = problem(429, "rate_limited", **{"Retry-After": "7"})
    server = serve(limited, limited, (201, {}, job()))
    assert Client(server.url, "t").create("billing.receipt", {}) == job()
    assert pauses == [7.0, 7.0]


def test_a_wait_beyond_the_clients_patience_is_not_begun(
    serve: Callable[..., FakeServer], pauses: list[float]
) -> None:
    server = serve(problem(429, "backlog_quota", **{"Retry-After": "3600"}))
    with pytest.raises(ApiError, match="backlog_quota"):
        Client(server.url, "t").create("billing.receipt", {}, request_key="k")
    assert pauses == []


@pytest.mark.parametrize("trouble", [None, problem(503, "database_unavailable")])
def test_an_unknown_outcome_is_repeated_only_under_a_request_key(
    serve: Callable[..., FakeServer], pauses: list[float], trouble: Script
) -> None:
    server = serve(trouble, trouble, (200, {}, job()), trouble)
    client = Client(server.url, "t")
    assert client.create("billing.charge", {}, request_key="k") == job()
    assert len(pauses) == 2
    assert [body["request_key"] for _, _, body, _ in server.asked] == ["k"] * 3
    with pytest.raises((ConnectionError, ApiError)):
        client.create("billing.charge", {})
    assert len(server.asked) == 4
    assert len(pauses) == 2


def test_a_server_that_is_gone_is_given_up_in_the_end(pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", "t", retry_seconds=0.5)
    with pytest.raises(ConnectionRefusedError):
        client.get("j")
    assert pauses
    assert max(pauses) <= 0.5


def test_reading_and_cancelling_are_repeated_without_a_key(
    serve: Callable[..., FakeServer], pauses: list[float]
) -> None:
    answer = {"outcome": "cancel_requested"}
    server = serve(None, (200, {}, job()), None, (202, {}, answer))
    client = Client(server.url, "t")
    assert client.get("a/b", include=("events", "why")) == job()
    assert client.cancel("a/b", reason="order withdrawn") == answer
    assert [(method, path) for method, path, _, _ in server.asked[1::2]] == [
        ("GET", "/api/v1/jobs/a%2Fb?include=events%2Cwhy"),
        ("POST", "/api/v1/jobs/a%2Fb/cancel"),
    ]
    assert server.asked[-1][2] == {"reason": "order withdrawn"}


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled"])
def test_wait_polls_until_the_job_is_finished(
    serve: Callable[..., FakeServer], pauses: list[float], end: str
) -> None:
    server = serve((200, {}, job()), (200, {}, job("leased")), (200, {}, job(end)))
    assert Client(server.url, "t").wait("0193-7f", timeout_seconds=60) == job(end)
    assert len(pauses) == 2


def test_wait_gives_up_and_names_the_state(serve: Callable[..., FakeServer]) -> None:
    server = serve((200, {}, job("leased")))
    with pytest.raises(TimeoutError, match="0193-7f is leased"):
        Client(server.url, "t").wait("0193-7f", timeout_seconds=0)


def test_proxies_of_the_environment_never_see_the_token(
    serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    server = serve((200, {}, job()))
    assert Client(server.url, "t", retry_seconds=0).get("j") == job()


# ── the books ────────────────────────────────────────────────────────────────────────────────


def row(token: str, handler: str = "billing.charge", **fields: object) -> dict[str, object]:
    base: dict[str, object] = {"status": "succeeded", "attempt": 1}
    return base | {"handler": handler, "idempotency_token": token} | fields


def seen(deliveries: int = 1, charges: int = 0, mails: int = 0) -> dict[str, int]:
    return {"deliveries": deliveries, "charges": charges, "mails": mails}


def report_of(tokens: dict[str, dict[str, int]], **figures: int) -> dict[str, object]:
    """A report whose sums are right unless `figures` says otherwise."""
    sums = Counter[str]()
    for figure in tokens.values():
        sums.update(figure)
    effects = sums["charges"] + sums["mails"]
    report: dict[str, object] = {"refused": 0, **seen(0), **sums, "per_token": tokens}
    report["duplicate_deliveries_collapsed"] = sums["deliveries"] - effects
    return report | figures


def books_of(
    rows: list[dict[str, object]], tokens: dict[str, dict[str, int]], **figures: int
) -> Books:
    accepted = [str(r["idempotency_token"]) for r in rows]
    return balance(accepted=accepted, jobs=rows, provider_report=report_of(tokens, **figures))


def test_books_of_an_honest_day_balance() -> None:
    rows = [
        row("t/charge", attempt=2),
        row("t/receipt", "billing.receipt"),
        row("t/digest", "reports.weekly_digest"),
        row("t/declined", status="dead"),
        row("t/campaign", "campaigns.send", status="cancelled", attempt=2),
        row("t/early", "campaigns.send", status="cancelled", attempt=0),
        row("t/unlucky", status="dead", attempt=5),
    ]
    tokens = {
        "t/charge": seen(2, charges=1),
        "t/receipt": seen(1, mails=1),
        "t/declined": seen(1),
        "t/campaign#batch-0": seen(2, mails=1),
        "t/campaign#batch-1": seen(1, mails=1),
        "t/unlucky": seen(5, charges=1),
    }
    books = books_of(rows, tokens, refused=1, duplicate_deliveries_collapsed=6)
    assert books.balanced, books.problems
    assert books == Books(
        accepted=7,
        succeeded=3,
        dead=2,
        cancelled=2,
        unfinished=0,
        lost=0,
        deliveries=12,
        charges=2,
        charge_jobs_succeeded=1,
        mails=3,
        duplicate_deliveries_collapsed=6,
        charged_but_not_succeeded=1,
    )


def test_a_replayed_request_is_one_job_and_a_strangers_job_is_nobodys_loss() -> None:
    books = balance(
        accepted=["t/1", "t/1"],
        jobs=[row("t/1"), row("t/curl", status="scheduled", attempt=0)],
        provider_report=report_of({"t/1": seen(1, charges=1)}),
    )
    assert books.balanced, books.problems
    assert (books.accepted, books.succeeded, books.unfinished) == (1, 1, 0)


@pytest.mark.parametrize(
    ("rows", "tokens", "figures", "named"),
    [
        ([row("t/1", status="leased")], {}, {}, "unfinished: t/1 is leased"),
        ([row("t/1"), row("t/1")], {"t/1": seen(1, 1)}, {}, "doubled: 2 jobs"),
        ([row("t/1")], {}, {}, "unequal: t/1 succeeded with 0 charges"),
        ([row("t/1")], {"t/1": seen(1)}, {"refused": 1}, "with 0 charges"),
        ([row("t/1", attempt=2)], {"t/1": seen(2, 2)}, {}, "with 2 charges"),
        ([row("t/1", "billing.receipt")], {}, {}, "with 0 mails"),
        ([], {"t/9": seen(1, 1)}, {}, "unasked: t/9 has 1 deliveries and no job"),
        ([row("t/1")], {"t/1": seen(2, 1)}, {}, "unasked: t/1, 2 deliveries in 1 attempts"),
        (
            [row("t/1", status="cancelled", attempt=0)],
            {"t/1": seen(1, 1)},
            {},
            "1 deliveries in 0 attempts",
        ),
        (
            [row("t/c", "campaigns.send")],
            {"t/c#batch-0": seen(2, mails=1)},
            {},
            "unasked: t/c#batch-0, 2 deliveries",
        ),
        ([row("t/1")], {"t/1": seen(1, 1)}, {"charges": 2, "deliveries": 2}, "2 charges for 1"),
        ([row("t/1")], {"t/1": seen(1, 1)}, {"deliveries": 4}, "sums: 4 deliveries, 1 explained"),
    ],
)
def test_books_that_do_not_balance_say_where(
    rows: list[dict[str, object]],
    tokens: dict[str, dict[str, int]],
    figures: dict[str, int],
    named: str,
) -> None:
    books = books_of(rows, tokens, **figures)
    assert not books.balanced
    assert any(named in problem for problem in books.problems), books.problems


def test_an_accepted_job_that_nobody_has_is_lost() -> None:
    books = balance(
        accepted={"t/1", "t/2"}, jobs=[row("t/1", "x.y")], provider_report=report_of({})
    )
    assert (books.lost, books.balanced) == (1, False)
    assert books.problems == ["lost: t/2 was accepted and no job has it"]


def test_a_report_without_tokens_proves_nothing() -> None:
    with pytest.raises(ValueError, match="tokens=1"):
        balance(accepted=[], jobs=[], provider_report={"deliveries": 0})


def test_the_books_read_the_providers_own_report(start_provider: Callable[..., Provider]) -> None:
    provider = start_provider("--fail-every", "2")
    provider.deliver("t/1", CHARGE)
    with pytest.raises(RemoteDisconnected):
        provider.deliver("t/2", CHARGE)
    provider.deliver("t/2", CHARGE, attempt=2)
    provider.deliver("t/3", CHARGE | {"payment_method": "pm_declined"})
    rows = [row("t/1"), row("t/2", attempt=2), row("t/3", status="dead")]
    accepted = [str(r["idempotency_token"]) for r in rows]
    books = balance(accepted=accepted, jobs=rows, provider_report=provider.report())
    assert books.balanced, books.problems
    assert (books.deliveries, books.charges, books.duplicate_deliveries_collapsed) == (4, 2, 1)


# ── the orders ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    text = (EXAMPLES / "orders.ndjson").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_orders_are_written_the_same_every_time(tmp_path: Path, hash_seed: str) -> None:
    made = tmp_path / "orders.ndjson"
    subprocess.run(
        [sys.executable, str(EXAMPLES / "make_orders.py"), str(made)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=True,
    )
    assert made.read_bytes() == (EXAMPLES / "orders.ndjson").read_bytes()


def test_every_order_is_a_body_of_the_api_and_says_whose_it_is(
    lines: list[dict[str, Any]],
) -> None:
    for line in lines:
        body = {name: line[name] for name in line.keys() - {"tenant", "cancel_after_ms", "then"}}
        request = parse_request(body)  # refuses unknown fields and faulty values
        assert request.handler in discover()
        assert line["tenant"] in {"acme-shop", "nordwind", "kiosk-24"}
        assert request.lane in {"urgent", "high", "normal", "low", "background"}
        assert request.delay_seconds <= 40
        assert request.request_key
        assert ("then" in line) == ("cancel_after_ms" in line)
        assert line.get("then", "cancel") == "cancel"


def test_the_day_has_everything_a_shop_day_has(lines: list[dict[str, Any]]) -> None:
    assert len(lines) == 340
    handlers = Counter(line["handler"] for line in lines)
    assert handlers["inventory.sync"] == 1
    assert {"billing.charge", "billing.receipt", "accounts.password_reset"} <= handlers.keys()
    assert {"reports.weekly_digest", "orders.export", "campaigns.send"} <= handlers.keys()
    assert {line["lane"] for line in lines} == {"urgent", "high", "normal", "low", "background"}

    repeats = Counter(json.dumps(line) for line in lines)
    assert sum(times - 1 for times in repeats.values()) == 6
    keys = Counter((line["tenant"], line["request_key"]) for line in lines)
    assert len(keys) == len(repeats)  # a key that comes twice has the same body both times

    running, waiting = (line for line in lines if line.get("then") == "cancel")
    assert "delay_seconds" not in running
    work_ms = running["payload"]["batches"] * running["payload"]["pause_seconds"] * 1000
    assert work_ms > 3 * running["cancel_after_ms"]
    assert waiting["delay_seconds"] * 1000 > 3 * waiting["cancel_after_ms"]

    [stock] = (line for line in lines if line["handler"] == "inventory.sync")
    assert (stock["max_attempts"], stock["retry"]["kind"]) == (3, "fixed")
    assert stock["retry"]["max_seconds"] <= 1
    text = "".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert all(sample in text for sample in ("قهوة", "נועה", "🎁", "🌙", "ß"))
