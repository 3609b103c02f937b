"""How a process begins: it waits for a database that is away, and refuses a configuration that cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import OperationalError, connection

from scheduler_site.environment import apps
from workers import process

ROOT = Path(__file__).parents[2]
REFUSED = "connection to server at 127.0.0.1 failed: Connection refused"


def answers(monkeypatch: pytest.MonkeyPatch, *messages: str | None) -> list[str | None]:
    """Let the database answer each connection attempt with the next message; None is success."""
    left = list(messages)

    def connect() -> None:
        if (message := left.pop(0)) is not None:
            raise OperationalError(message)

    monkeypatch.setattr(connection, "ensure_connection", connect)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return left


@pytest.mark.parametrize(
    "passing",
    [
        REFUSED,
        "FATAL:  the database system is starting up",
        "FATAL:  sorry, too many clients already",
    ],
)
def test_kf55_a_database_that_is_away_is_waited_for(monkeypatch, passing):
    left = answers(monkeypatch, passing, passing, None)
    process.wait_for_database()
    assert left == []


@pytest.mark.parametrize(
    "final", ['FATAL:  role "x" does not exist', "FATAL:  password authentication failed"]
)
def test_a_database_that_will_not_have_us_is_wrong_configuration(monkeypatch, final):
    answers(monkeypatch, REFUSED, final)
    with pytest.raises(CommandError) as refused:
        process.wait_for_database()
    assert refused.value.returncode == process.CONFIGURATION_WRONG


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_URL", ""),
        ("DUEKEEPER_LEASE_TTL_SECONDS", "abc"),
        ("DUEKEEPER_APPS", "no_such_app"),
    ],
)
@pytest.mark.process
def test_wrong_configuration_ends_with_one_line_and_78(variable, value):
    environment = {**os.environ, variable: value}
    ended = subprocess.run(
        [sys.executable, "manage.py", "runscheduler"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == process.CONFIGURATION_WRONG
    assert "Traceback" not in ended.stderr
    assert variable in ended.stderr


def test_an_app_that_cannot_be_imported_is_named():
    with pytest.raises(ImproperlyConfigured, match="no_such_app"):
        apps(["examples.shop", "no_such_app"])
