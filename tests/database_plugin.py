"""Gives a test run its database before Django reads its settings.

With DATABASE_URL that server is used; without it one embedded PostgreSQL is started for this run alone, in a temporary
folder, and stopped at its end; with `-n 2` each of the two processes has one of its own, for some tests change or kill
it. The environment of the developer's shell decides nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from workers import embedded

SETTINGS = {
    "DUEKEEPER_SECRET_KEY": "key-of-a-test-run-that-signs-nothing-of-value",
    "DUEKEEPER_PLAIN_HTTP": "1",  # the test client speaks no TLS
}


@pytest.hookimpl(tryfirst=True)  # before pytest-django, which loads the settings in the same hook
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Set the environment and start the server."""
    for name in [name for name in os.environ if name.startswith("DUEKEEPER_")]:
        del os.environ[name]
    os.environ.update(SETTINGS)
    # Hundreds of processes that a run starts would each compile Django and all of our modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    options = parser.parse_known_args(args)
    if options.help or options.version or options.collectonly:
        return
    if options.numprocesses and "PYTEST_XDIST_WORKER" not in os.environ:  # it only hands out tests
        return
    if "DATABASE_URL" in os.environ or "DATABASE_URL_FILE" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="duekeeper-tests-"))
    server = embedded.start(folder)
    os.environ["DATABASE_URL"] = server.url

    def end() -> None:
        server.stop()
        del os.environ["DATABASE_URL"]
        for path in {server.home, folder}:
            shutil.rmtree(path)

    early_config.add_cleanup(end)  # runs after Ctrl-C and after a failed start too


CRASHED = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(sched: Any) -> None:
    """A process of the run died in the middle of a test, which xdist counts as one failed test."""
    sched.config.stash[CRASHED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A crash is no failed test to who reads the exit code."""
    if session.config.stash.get(CRASHED, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
