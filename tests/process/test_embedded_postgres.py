"""The embedded PostgreSQL: durable settings, one owner, and no process left behind however the owner ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from workers import embedded, embedded_files

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys
from pathlib import Path
from workers import embedded
server = embedded.start(Path(sys.argv[1]))
print(server.pid, flush=True)
sys.stdin.read()
"""
FORKING_OWNER = """
import os, sys
from pathlib import Path
import psycopg
from workers import embedded
server = embedded.start(Path(sys.argv[1]))
if os.fork() == 0:
    sys.exit()  # runs the exit handlers that it inherited
os.wait()
psycopg.connect(server.url).close()
server.stop()
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tie to the parent is Linux"),
]


@pytest.fixture(scope="module")
def folder():
    """One cluster for the whole file: making it is the slow part. Not tmp_path, which is 0700 all the way up."""
    path = Path(tempfile.mkdtemp(prefix="duekeeper-embedded-"))
    path.chmod(0o711)  # or root would use another place
    yield path
    until = time.monotonic() + 30
    while path.exists():  # a server that was told to end may still be writing
        with suppress(OSError):
            shutil.rmtree(path)
        assert time.monotonic() < until


@pytest.fixture
def owner(folder):
    """A process that owns a running server; yields it and the server's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def assert_gone(pid: int) -> None:
    """Wait until no such process runs; a zombie, which only its reaper can remove, counts as gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} still runs")


def test_server_is_durable_and_keeps_its_data_over_a_restart(folder):
    with embedded.start(folder) as server, psycopg.connect(server.url) as connection:
        connection.execute("create table if not exists kept (id int)")
        connection.execute("insert into kept values (1)")
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert connection.execute(f"show {name}").fetchone() == ("on",)
        assert connection.execute("show timezone").fetchone() == ("UTC",)
        assert connection.execute("show listen_addresses").fetchone() == ("",)
    with embedded.start(folder) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (1,)
        connection.execute("drop table kept")


def test_stop_leaves_no_process_and_may_be_called_again(folder):
    server = embedded.start(folder)
    backends = psutil.Process(server.pid).children()
    assert backends
    server.stop()
    server.stop()
    for pid in (server.pid, *(backend.pid for backend in backends)):
        assert_gone(pid)


def test_a_forked_copy_of_the_owner_takes_nothing_away_at_its_exit(folder):
    # A path too long for a socket, so that the socket's folder is one of those things.
    forking = subprocess.run(
        [sys.executable, "-c", FORKING_OWNER, folder / ("long" * 25)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert forking.returncode == 0, forking.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_ends_with_its_owner_whatever_the_signal(owner, number):
    process, server_pid = owner
    backends = [child.pid for child in psutil.Process(server_pid).children()]
    process.send_signal(number)
    for pid in (server_pid, *backends):
        assert_gone(pid)


def test_ctrl_c_for_the_owners_group_leaves_the_order_of_the_end_to_the_owner(owner):
    process, server_pid = owner
    assert os.getpgid(server_pid) != os.getpgid(process.pid)


def test_a_folder_has_one_owner_at_a_time(owner, folder):
    with pytest.raises(embedded.EmbeddedPostgresError, match="in use by another process"):
        embedded.start(folder)


def test_a_killed_owners_folder_can_be_used_again_at_once(owner, folder):
    process, _ = owner
    process.kill()
    process.wait()
    with embedded.start(folder) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_refusal_of_the_server_is_shown_and_leaves_nothing_running(folder):
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(embedded.EmbeddedPostgresError, match="max_connections"):
        embedded.start(folder, settings={"max_connections": "many"})
    assert {child.pid for child in psutil.Process().children()} <= before
    embedded.start(folder).stop()  # its lock is free again


def test_files_of_another_major_version_are_refused_with_a_way_out(folder):
    version = folder / "pgdata" / "PG_VERSION"
    embedded.start(folder).stop()
    kept = version.read_text()
    version.write_text("12\n")
    try:
        with pytest.raises(embedded.EmbeddedPostgresError, match="made by PostgreSQL 12"):
            embedded.start(folder)
    finally:
        version.write_text(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to leave its own folders")
def test_root_uses_a_twin_for_a_folder_that_others_cannot_enter(monkeypatch):
    with (
        tempfile.TemporaryDirectory(prefix="duekeeper-closed-") as closed,
        tempfile.TemporaryDirectory() as store,
    ):
        Path(store).chmod(0o755)
        monkeypatch.setattr(embedded_files, "ROOT_STORE", Path(store))
        wanted = Path(closed) / "postgres"  # below a folder of mode 0700
        with embedded.start(wanted) as first:
            assert first.home.parent == Path(store)
        with embedded.start(wanted) as second:
            assert second.home == first.home
        assert Path(closed).stat().st_mode & 0o077 == 0  # nothing was opened to others


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to leave its own folders")
def test_root_copies_programs_that_others_cannot_enter(monkeypatch):
    with tempfile.TemporaryDirectory() as store:
        Path(store).chmod(0o755)
        monkeypatch.setattr(embedded_files, "ROOT_STORE", Path(store))
        monkeypatch.setattr(embedded_files, "_can_reach", lambda path, account: False)
        account = embedded_files.unprivileged_account()
        first = embedded_files.find_bin_dir(account)
        assert first == embedded_files.find_bin_dir(account)
        assert first.is_relative_to(store)
        shown = subprocess.run(
            [first / "initdb", "--version"], check=True, capture_output=True, text=True
        )
        assert "PostgreSQL" in shown.stdout
        assert [path.name for path in Path(store).iterdir()] == [first.parents[2].name]


def test_a_missing_package_is_named_with_both_ways_out(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(embedded.EmbeddedPostgresError, match=r"uv sync.*DATABASE_URL"):
        embedded_files.find_bin_dir(None)


def test_a_command_gets_a_server_of_its_own_and_its_exit_code_back():
    ask = "import os, psycopg, sys; psycopg.connect(os.environ['DATABASE_URL']); sys.exit(7)"
    command = [sys.executable, "-m", "workers.embedded", sys.executable, "-c", ask]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 7
