"""Environment variables become settings, or an error that names the variable and keeps the password."""

from __future__ import annotations

from typing import Any

import environ
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler
from environ.fileaware_mapping import FileAwareMapping

from scheduler_site.environment import database, typed_values


def described(url: str, **overrides: Any):
    return database(url, **({"pool_size": 0, "max_age_seconds": 60} | overrides))


def test_every_connection_notices_a_vanished_peer_and_asks_for_a_writable_host():
    options = described("postgresql://user:secret@db:6432/duekeeper")["OPTIONS"]
    assert options["connect_timeout"] == 3
    assert (options["keepalives_idle"], options["keepalives_interval"]) == (3, 1)
    assert options["keepalives_count"] == 3
    assert options["tcp_user_timeout"] == 6000
    assert options["target_session_attrs"] == "read-write"


def test_parameters_of_the_url_win_over_the_defaults():
    options = described("postgresql://db/duekeeper?connect_timeout=9&sslmode=verify-full")[
        "OPTIONS"
    ]
    assert options["connect_timeout"] == "9"
    assert options["sslmode"] == "verify-full"


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql://a@db1:5432,db2:5433/jobs", "db1,db2", "5432,5433"),
        ("postgresql://a@[2001:db8::1]:5432/jobs", "2001:db8::1", "5432"),
        ("postgresql://a@%2Frun%2Fpg/jobs", "/run/pg", ""),
        ("postgresql://a@/jobs?host=/run/with%20space", "/run/with space", ""),
        ("postgresql:///jobs", "", ""),
    ],
)
def test_every_form_of_a_libpq_url_is_understood(url, host, port):
    found = described(url)
    assert (found["NAME"], found["HOST"], found["PORT"]) == ("jobs", host, port)


def test_user_and_password_are_unquoted():
    found = described("postgresql://us%40er:p%2Fw%25@db/jobs")
    assert (found["USER"], found["PASSWORD"]) == ("us@er", "p/w%")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///hunter2",
        "postgresql://u:hunter2@db",
        "postgresql://u:hunter2%zz@db/x",
        "hunter2",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_its_password(url):
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL must look like") as caught:
        described(url)
    assert "hunter2" not in str(caught.value)


def test_without_a_url_only_commands_that_need_no_database_work():
    missing = DatabaseWrapper({**ConnectionHandler({}).databases["default"], **described("")})
    with pytest.raises(ImproperlyConfigured, match="Please supply the NAME"):
        missing.get_connection_params()


def test_a_pool_replaces_connections_that_threads_keep():
    assert described("postgresql://db/jobs")["CONN_MAX_AGE"] == 60
    pooled = described("postgresql://db/jobs", pool_size=4)
    assert pooled["CONN_MAX_AGE"] == 0
    assert pooled["OPTIONS"]["pool"]["max_size"] == 4


def environment_of(**variables: str) -> environ.FileAwareEnv:
    env = environ.FileAwareEnv()
    env.ENVIRON = FileAwareMapping(env=variables, cache=False)
    return env


def test_values_are_read_as_the_type_of_their_field():
    env = environment_of(
        DUEKEEPER_TICK_SECONDS=" 0.5 ",
        DUEKEEPER_CLAIM_BATCH="20",
        DUEKEEPER_LOUD="Off",
        DUEKEEPER_NAME="",  # compose files write unset variables so
        DUEKEEPER_OTHER="not asked for",
    )
    fields = {"tick_seconds": float, "claim_batch": int, "loud": bool, "name": str, "absent": int}
    assert typed_values(env, fields) == {"tick_seconds": 0.5, "claim_batch": 20, "loud": False}


@pytest.mark.parametrize(
    ("kind", "text"), [(int, "3x"), (int, "1,5"), (int, "0.5"), (float, "1,5"), (bool, "yess")]
)
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_variable(kind, text):
    with pytest.raises(ImproperlyConfigured, match=f"DUEKEEPER_FIELD='{text}'"):
        typed_values(environment_of(DUEKEEPER_FIELD=text), {"field": kind})


def test_a_secret_can_come_from_a_file(tmp_path):
    (tmp_path / "url").write_text("postgresql://db/listen\n")
    env = environment_of(DUEKEEPER_LISTEN_URL_FILE=str(tmp_path / "url"))
    assert typed_values(env, {"listen_url": str}) == {"listen_url": "postgresql://db/listen"}
