"""The shop's payment provider, a process of its own: collapses by idempotency key, counts deliveries.

It stands for the outside world, so it imports nothing of Duekeeper and keeps its own store.

    python examples/provider.py --data-dir /tmp/provider --delay-ms 200 --fail-every 20
"""

import argparse
import hashlib
import json
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, cast
from urllib.parse import parse_qs, unquote, urlsplit

MAX_BODY_BYTES = 64 * 1024
REQUIRED_FIELD = {"charge": "invoice", "mail": "to"}
DECLINED = "pm_declined"
# What a broken upstream really sends: half a page, a NUL, emoji, text from right to left, and a
# tag. Whoever records this error has to survive it.
ODD_ERROR = (
    "<h1>Lager-API</h1> \x00 💥 المخزن لا يجيب <script>alert('stock')</script> ".encode() * 8
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, token TEXT NOT NULL, body_hash TEXT NOT NULL, created_at TEXT NOT NULL,
    UNIQUE (kind, token)
);
CREATE TABLE IF NOT EXISTS deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, token TEXT NOT NULL, attempt INTEGER, fencing_token INTEGER,
    outcome TEXT NOT NULL CHECK (outcome IN ('applied', 'collapsed', 'refused')),
    withheld INTEGER NOT NULL DEFAULT 0, received_at TEXT NOT NULL
);
"""

# Totals over both tables, one row.
TOTALS = """
SELECT (SELECT count(*) FROM deliveries) AS deliveries,
       (SELECT count(*) FROM effects WHERE kind = 'charge') AS charges,
       (SELECT count(*) FROM effects WHERE kind = 'mail') AS mails,
       (SELECT count(*) FROM deliveries WHERE outcome = 'collapsed')
           AS duplicate_deliveries_collapsed,
       (SELECT count(*) FROM deliveries WHERE outcome = 'refused') AS refused,
       (SELECT coalesce(sum(withheld), 0) FROM deliveries) AS answers_withheld
"""

# For each token: its deliveries, and what came of them.
OF_EACH = """
SELECT d.token, count(*) AS deliveries, json_group_array(d.attempt) AS attempts,
       (SELECT count(*) FROM effects e WHERE e.token = d.token AND e.kind = 'charge') AS charges,
       (SELECT count(*) FROM effects e WHERE e.token = d.token AND e.kind = 'mail') AS mails
FROM (SELECT token, attempt FROM deliveries ORDER BY number) d GROUP BY d.token
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request as it arrived; `body` is None when it was not a JSON object."""

    kind: str
    token: str
    body: dict[str, object] | None
    attempt: int | None
    fencing_token: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back; `withhold` says how to lose it: not at all, a cut line, or a 503."""

    status: int
    body: Mapping[str, object]
    first: bool = False
    withhold: str | None = None


class Ledger:
    """Effects and deliveries in SQLite; one connection under one lock, for transactions are short."""

    def __init__(self, path: Path, *, fail_every: int) -> None:
        self._fail_every = fail_every
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # an answered charge outlives a power cut
        self._db.executescript(SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._db:  # the connection commits, or rolls back on an exception
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    def deliver(self, delivery: Delivery) -> Answer:
        """Counts the delivery and applies it unless its token was before, in one transaction."""
        received_at = datetime.now(UTC).isoformat()
        with self._transaction() as db:
            answer, outcome = self._apply(db, delivery, received_at)
            db.execute(
                "INSERT INTO deliveries (kind, token, attempt, fencing_token, outcome, withheld,"
                " received_at) VALUES (:kind, :token, :attempt, :fencing_token, :outcome,"
                " :withheld, :received_at)",
                {
                    "kind": delivery.kind,
                    "token": delivery.token,
                    "attempt": delivery.attempt,
                    "fencing_token": delivery.fencing_token,
                    "outcome": outcome,
                    "withheld": answer.withhold is not None,
                    "received_at": received_at,
                },
            )
        return answer

    def _apply(self, db: sqlite3.Connection, delivery: Delivery, now: str) -> tuple[Answer, str]:
        kind, body = delivery.kind, delivery.body
        if body is None:
            return Answer(400, {"error": "body_is_not_a_json_object"}), "refused"
        if not body.get(REQUIRED_FIELD[kind]):
            return Answer(422, {"error": f"{REQUIRED_FIELD[kind]}_missing"}), "refused"
        if body.get("payment_method") == DECLINED:
            return Answer(402, {"error": "card_declined"}), "refused"
        body_hash = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        known = db.execute(
            "SELECT sequence, body_hash FROM effects WHERE kind = ? AND token = ?",
            (kind, delivery.token),
        ).fetchone()
        if known is not None and known["body_hash"] != body_hash:
            return Answer(422, {"error": "idempotency_key_reused"}), "refused"
        if known is not None:
            return Answer(200, receipt(kind, known["sequence"])), "collapsed"
        sequence = db.execute(
            "INSERT INTO effects (kind, token, body_hash, created_at) VALUES (?, ?, ?, ?)",
            (kind, delivery.token, body_hash, now),
        ).lastrowid
        if sequence is None:
            raise AssertionError("an inserted effect has a row id")
        lost = self._loss(sequence)
        return Answer(201, receipt(kind, sequence), first=True, withhold=lost), "applied"

    def _loss(self, sequence: int) -> str | None:
        # Only first deliveries lose their answer, so that every retry is a visible duplicate.
        if not self._fail_every or sequence % self._fail_every:
            return None
        return "cut" if (sequence // self._fail_every) % 2 else "unavailable"

    def report(self, *, tokens: bool) -> dict[str, object]:
        """Totals, and with `tokens` the deliveries, attempts, charges and mails of each token."""
        with self._transaction() as db:
            report: dict[str, object] = dict(db.execute(TOTALS).fetchone())
            if tokens:
                report["per_token"] = {
                    row["token"]: dict(row) | {"attempts": json.loads(row["attempts"])}
                    for row in db.execute(OF_EACH)
                }
        return report

    def close(self) -> None:
        with self._lock:
            self._db.close()


def receipt(kind: str, sequence: int) -> dict[str, object]:
    """The same answer for the first delivery and for every repeat."""
    return {f"{kind}_id": f"{'ch' if kind == 'charge' else 'ml'}_{sequence:06d}"}


class ProviderServer(ThreadingHTTPServer):
    """Joins its request threads when it closes, so that an answer under way is still sent."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, port: int, ledger: Ledger, *, delay_seconds: float) -> None:
        super().__init__(("127.0.0.1", port), ProviderRequest)
        self.ledger = ledger
        self.delay_seconds = delay_seconds
        self.stopping = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that vanished (kill -9, its own timeout) is daily business, not a traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class ProviderRequest(BaseHTTPRequestHandler):
    """Routes. An effect is committed before its answer is sent: that is what makes retries hard."""

    timeout: ClassVar[float] = 5.0  # a half-sent request holds its thread no longer than this

    @property
    def provider(self) -> ProviderServer:
        return cast(ProviderServer, self.server)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/healthz":
            self._send(200, {"status": "ok"})
        elif address.path == "/report":
            tokens = parse_qs(address.query).get("tokens") == ["1"]
            self._send(200, self.provider.ledger.report(tokens=tokens))
        elif address.path == "/stock":
            self._send_bytes(500, ODD_ERROR, "text/html; charset=utf-8")
        else:
            self._send(404, {"error": "not_found"})

    def do_POST(self) -> None:
        kind = {"/charges": "charge", "/mails": "mail"}.get(self.path)
        length = self._number("Content-Length")
        if length is None or not 0 <= length <= MAX_BODY_BYTES:
            self._send(411 if length is None else 413, {"error": "content_length"})
            return
        raw = self.rfile.read(length)
        token = unquote(self.headers.get("Idempotency-Key", ""))
        if len(raw) < length:  # the client died while sending: nothing was asked for yet
            return
        if kind is None or not token:
            missing = "not_found" if kind is None else "idempotency_key_missing"
            self._send(404 if kind is None else 400, {"error": missing})
            return
        attempt, fencing_token = self._number("Job-Attempt"), self._number("Fencing-Token")
        delivery = Delivery(kind, token, json_object(raw), attempt, fencing_token)
        self._answer(delivery, self.provider.ledger.deliver(delivery))

    def _answer(self, delivery: Delivery, answer: Answer) -> None:
        if answer.first and delivery.kind == "charge" and self.provider.delay_seconds:
            # After the commit: whoever dies in this wait leaves a charge it never heard of.
            self.provider.stopping.wait(self.provider.delay_seconds)
        if answer.withhold == "unavailable":
            self._send(503, {"error": "unavailable"}, {"Retry-After": "1"})
        elif answer.withhold is None:
            self._send(answer.status, answer.body)
        # "cut": no answer at all; returning closes the connection.

    def _number(self, header: str) -> int | None:
        text = self.headers.get(header, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def _send(
        self, status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> None:
        self._send_bytes(status, json.dumps(body).encode(), "application/json", headers)

    def _send_bytes(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
        """Silent: the report is the log."""


def json_object(raw: bytes) -> dict[str, object] | None:
    """The body as a JSON object, or None: a wrong body is counted and refused, never a crash."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def natural(text: str) -> int:
    """argparse type: a whole number from 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Prints one JSON line with the url once it accepts requests."""
    parser = argparse.ArgumentParser(description="A payment provider that collapses repeats.")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of its store")
    parser.add_argument("--port", type=natural, default=0, help="0 takes a free one")
    parser.add_argument("--delay-ms", type=natural, default=0, help="charged, but slow to say so")
    parser.add_argument(
        "--fail-every", type=natural, default=0, help="lose the answer of every Nth first delivery"
    )
    options = parser.parse_args(arguments)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    # Blocked before any thread starts, then awaited: no handler code runs at an odd moment.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    ledger = Ledger(options.data_dir / "provider.sqlite3", fail_every=options.fail_every)
    server = ProviderServer(options.port, ledger, delay_seconds=options.delay_ms / 1000)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    serving.start()
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}) + "\n")
    sys.stdout.flush()
    signal.sigwait(signals)
    server.stopping.set()
    server.shutdown()
    server.server_close()
    serving.join()
    ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
