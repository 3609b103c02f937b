"""The quickstart as a newcomer runs it: on a server of its own, to the end or to Ctrl-C, and no process stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from tests.support.process import MANAGE, PATIENCE_SECONDS, POLL_SECONDS, ROOT
from workers.quickstart import chaos as chaoses
from workers.quickstart import stack as stacks
from workers.quickstart.chaos import Chaos
from workers.quickstart.stack import Stack, StackError
from workers.tied import spawn

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left"),
]

MARK = "QUICKSTART_TEST"
CHARGE = {"amount_cents": 4599, "currency": "EUR", "payment_method": "pm_visa"}
ORDERS = [
    *(
        {
            "tenant": tenant,
            "handler": "billing.charge",
            "request_key": f"invoice-{number}",
            "payload": {"invoice": number, **CHARGE},
        }
        for number, tenant in enumerate(["acme-shop", "nordwind", "kiosk-24"] * 2, start=8800)
    ),
    *(
        {
            "tenant": "nordwind",
            "handler": "billing.receipt",
            "request_key": f"receipt-{number}",
            "payload": {"to": f"Zoë ✅ <c{number}@example.com>", "invoice": number},
            "delay_seconds": 1,
        }
        for number in range(8800, 8804)
    ),
    {
        "tenant": "kiosk-24",
        "handler": "accounts.password_reset",
        "request_key": "reset-1",
        "payload": {"to": "Γιώργος <c1@example.com>", "locale": "el"},
        "lane": "urgent",
    },
    {
        "tenant": "acme-shop",
        "handler": "reports.weekly_digest",
        "request_key": "digest-1",
        "payload": {"week": "2026-W48", "team": "June Carter"},
    },
    {
        "tenant": "acme-shop",
        "handler": "inventory.sync",
        "request_key": "sync-1",
        "payload": {"warehouse": "east"},
        "max_attempts": 1,
    },
    {
        "tenant": "acme-shop",
        "handler": "orders.export",
        "request_key": "export-1",
        "payload": {"day": "2026-11-30", "rows": 12},
    },
]
CAMPAIGN = {
    "tenant": "acme-shop",
    "handler": "campaigns.send",
    "request_key": "campaign-1",
    "payload": {"campaign": "🖤", "list": "all@example.com", "batches": 400, "pause_seconds": 0.2},
}
# The provider fails now and then; the cancel must find it running.
CALLED_OFF = {**CAMPAIGN, "max_attempts": 50, "cancel_after_ms": 1000, "then": "cancel"}


class Quickstart:
    """One run; `stop` is Ctrl-C."""

    def __init__(self, folder: Path, orders: list[dict[str, object]], *more: str) -> None:
        lines = folder / "orders.ndjson"
        lines.write_text("".join(f"{json.dumps(order)}\n" for order in orders))
        self.output, self.mark = folder / "output", str(uuid4())
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DUEKEEPER_")}
        kept.pop("DATABASE_URL", None)
        # A proxy that is not there: all calls between these processes must go past it.
        kept |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
        flags: list[str | Path] = ["--exit-when-done", "--port", "0", *more]
        flags += ["--orders", lines, "--data-dir", folder / "data"]
        self._folder = folder
        with self.output.open("wb") as output:
            self._process = spawn(
                [sys.executable, MANAGE, "quickstart", *flags],
                parting_signal=signal.SIGTERM,
                output=output,
                cwd=ROOT,
                env={**kept, MARK: self.mark},
            )

    def said(self) -> str:
        """All it has printed."""
        return self.output.read_text(errors="replace")

    def deliveries(self, request_key: str) -> int:
        """How often the shop's provider was called for this job, by its own store."""
        store = self._folder / "data" / "provider" / "provider.sqlite3"
        if not store.exists():
            return 0
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as ledger:
            if not ledger.execute(
                "select 1 from sqlite_master where name = 'deliveries'"
            ).fetchone():
                return 0  # it is just being made
            sql = "select count(*) from deliveries where instr(token, ?)"
            (count,) = ledger.execute(sql, [request_key]).fetchone()
        return int(count)

    def database_url(self) -> str:
        """As printed at the start; "" before that."""
        url, quote, _ = self.said().partition("DATABASE_URL='")[2].partition("'")
        return url if quote else ""

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until `holds()` is true.

        Raises:
            AssertionError: It takes too long, or the run is over.
        """
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        while not holds():
            assert self._process.poll() is None, f"ended while waiting: {what}\n{self.tell()}"
            assert time.monotonic() < deadline, f"never came: {what}\n{self.tell()}"
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ctrl-C: the terminal reaches this process alone, for its children have sessions of their own."""
        self._process.send_signal(signal.SIGINT)

    def exit_code(self, *, within: float) -> int:
        """Wait for its end.

        Raises:
            AssertionError: It still runs.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within:g} s\n{self.tell()}") from None

    def processes(self) -> list[psutil.Process]:
        """All processes of this run: they carry its mark or work in its folder (as the database does)."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def kill(self) -> None:
        """End whatever is left; the database, which has lost its owner then, ends by itself."""
        for process in self.processes():
            process.kill()
        self._process.wait()

    def tell(self) -> str:
        """Its output and the end of each log."""
        logs = [
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            for log in sorted((self._folder / "data").glob("logs/*.log"))
        ]
        return "\n".join([self.said(), *logs])

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            inside = Path(process.cwd()).is_relative_to(self._folder)
            return inside or process.environ().get(MARK) == self.mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False  # it has just ended, or belongs to somebody else


@pytest.fixture
def folder() -> Iterator[Path]:
    """One cluster for both runs. Not tmp_path: root's server could not enter it and would move elsewhere."""
    path = Path(tempfile.mkdtemp(prefix="duekeeper-quickstart-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[..., Quickstart]]:
    """Start a quickstart with these orders, and perhaps more flags."""
    runs: list[Quickstart] = []

    def start(orders: list[dict[str, object]], *more: str) -> Quickstart:
        runs.append(Quickstart(folder, orders, *more))
        return runs[-1]

    yield start
    for each in runs:
        each.kill()


def test_ctrl_c_ends_everything_with_a_report_and_the_next_run_ends_with_balanced_books(run):
    """The second run carries on what the first one had left, and its provider sees the effects of both."""
    stopped = run([CAMPAIGN, *ORDERS])
    stopped.until(lambda: stopped.deliveries("campaign-1") > 1, "the campaign is under way")
    names = {_name(process) for process in stopped.processes()}
    assert {"postgres", "quickstart", "gunicorn", "runscheduler", "runworker"} <= names
    stopped.stop()

    assert stopped.exit_code(within=60) == 1, stopped.tell()  # not done, so not 0
    assert stopped.processes() == []
    figures = _figures(stopped.said())
    assert figures["unfinished"] >= 1
    assert figures["lost"] == 0
    assert "they go on at the next start; nothing lost" in stopped.said()
    assert "BOOKS DO NOT BALANCE" not in stopped.said()

    complete = run([CALLED_OFF, *ORDERS])
    # The first run may have sent this receipt already, so that the second has said where its database is counts too.
    complete.until(complete.database_url, "it has said where its database is")
    complete.until(lambda: complete.deliveries("receipt-8800"), "the shop's day is under way")
    with psycopg.connect(complete.database_url(), autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    assert complete.exit_code(within=150) == 0, complete.tell()
    assert complete.processes() == []
    assert "books balance" in complete.said()
    figures = _figures(complete.said())
    assert figures["accepted"] == len(ORDERS) + 1
    assert (figures["dead"], figures["cancelled"], figures["lost"]) == (1, 1, 0)
    assert figures["succeeded"] == len(ORDERS) - 1
    assert figures["charges"] >= 6
    assert figures["unfinished"] == 0


def test_ctrl_c_before_anything_runs_is_quiet(run):
    early = run(ORDERS)
    early.until(lambda: "starting database" in early.said(), "it has begun")
    early.stop()

    # On a slow machine all had begun by then, and what was handed in was finished.
    code = early.exit_code(within=60)
    assert code == (0 if "books balance" in early.said() else 1), early.tell()
    # A killed initdb's own children notice a moment later.
    psutil.wait_procs(early.processes(), timeout=PATIENCE_SECONDS)
    assert early.processes() == []
    assert "Traceback" not in early.said()
    assert "Error" not in early.said()


def test_a_database_server_that_ended_ends_the_run_with_one_sentence(run):
    orphan = run([CAMPAIGN])
    orphan.until(lambda: orphan.deliveries("campaign-1"), "the campaign is under way")
    for process in orphan.processes():
        if _name(process) == "postgres":
            process.kill()

    assert orphan.exit_code(within=120) == 1, orphan.tell()
    assert orphan.processes() == []
    assert "The database server ended" in orphan.said()
    assert "Traceback" not in orphan.said()


def test_f01_f02_f06_chaos_loses_nothing_and_every_history_is_whole(run):
    kills = 4
    chaos = run(ORDERS, "--chaos", "--chaos-seed", "7", "--chaos-kills", str(kills))

    assert chaos.exit_code(within=240) == 0, chaos.tell()
    assert chaos.processes() == []
    assert "books balance" in chaos.said()
    figures = _figures(chaos.said())
    assert (figures["accepted"], figures["lost"], figures["violations"]) == (len(ORDERS), 0, 0)
    assert figures["charges"] == figures["charge jobs succeeded"] == 6
    assert figures["histories verified"] == len(ORDERS)
    assert figures["processes killed"] >= kills


def test_chaos_strikes_only_who_is_at_work_and_leaves_nobody_frozen(tmp_path, monkeypatch):
    monkeypatch.setattr(chaoses, "GAP_SECONDS", (0.0, 0.01))
    said: list[str] = []
    at_work: set[int] = set()
    with _stack(tmp_path, []) as stack:
        for name in ("worker", "scheduler", "starting"):
            stack.start(name, sys.executable, "-c", "import time; time.sleep(60)")
        fate = Chaos(
            stack,
            ["worker", "scheduler", "starting"],
            seed=3,
            lease_seconds=0.3,
            at_work=lambda: at_work,
            say=said.append,
        )
        fate.turn()
        assert said == []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while fate.kills < 5 or fate.freezes < 5:
            assert time.monotonic() < deadline, said
            at_work = {stack.children[name].process.pid for name in ("worker", "scheduler")}
            fate.turn()
            stack.watch()
            time.sleep(POLL_SECONDS)
        fate.end()
        stack.watch()
        states = [psutil.Process(each.process.pid).status() for each in stack.children.values()]
        struck, before = len(said), (fate.kills, fate.freezes)
        fate.turn()
        assert psutil.STATUS_STOPPED not in states
        assert (len(said), (fate.kills, fate.freezes)) == (struck, before)
    assert struck == sum(before)
    assert not any("starting" in line for line in said)


def test_a_killed_child_is_started_again_at_once_and_counts_as_no_death(tmp_path):
    said: list[str] = []
    with _stack(tmp_path, said) as stack:
        stack.start("worker", sys.executable, "-c", "import time; time.sleep(60)")
        first = stack.pid("worker")
        for _ in range(stacks.MOST_IMMEDIATE_DEATHS + 1):
            stack.kill("worker")
            assert stack.pid("worker") is None
            stack.watch()
        assert stack.pid("worker") not in (None, first)
    assert said == []


def test_a_frozen_child_is_stopped_in_order_too(tmp_path):
    with _stack(tmp_path, []) as stack:
        stack.start("worker", sys.executable, "-c", "import time; time.sleep(60)")
        child = stack.children["worker"].process
        stack.freeze("worker")
        began = time.monotonic()
        stack.stop("worker")
        assert time.monotonic() - began < stacks.STOP_SECONDS
        assert child.returncode == -signal.SIGTERM


def _stack(folder: Path, said: list[str]) -> Stack:
    return Stack(folder=folder, env={}, say=said.append, stopping=lambda: False)


def _watch_until_it_gives_up(stack: Stack) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        stack.watch()
        time.sleep(POLL_SECONDS)


def test_a_child_with_a_wrong_configuration_is_not_started_again(tmp_path):
    said: list[str] = []
    with _stack(tmp_path, said) as stack:
        stack.start("worker", sys.executable, "-c", "print('no such lane'); raise SystemExit(78)")
        with pytest.raises(StackError, match=r"worker\.log\n  no such lane"):
            _watch_until_it_gives_up(stack)
    assert said == []


def test_a_child_that_dies_at_once_is_started_later_and_later_and_then_given_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(stacks, "FIRST_PAUSE_SECONDS", 0.001)
    said: list[str] = []
    files = psutil.Process().num_fds()
    with _stack(tmp_path, said) as stack:
        stack.start("worker", sys.executable, "-c", "raise SystemExit(3)")
        with pytest.raises(StackError, match="8 times in a row"):
            _watch_until_it_gives_up(stack)
    assert psutil.Process().num_fds() == files
    assert [line.rpartition(" in ")[2] for line in said if "starts again" in line] == [
        f"{2**n / 1000:g} s" for n in range(7)
    ]


def _name(process: psutil.Process) -> str:
    """What a process is, by its command line."""
    known = ("postgres", "quickstart", "gunicorn", "runscheduler", "runworker")
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return next((name for name in known if any(name in word for word in words[:4])), "")


def _figures(said: str) -> dict[str, int]:
    """The report's table."""
    rows = [line.strip("│ ").rsplit(maxsplit=1) for line in said.splitlines() if "│" in line]
    return {row[0].strip(): int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
