"""Turns environment variables into values that settings.py can use, or says which one is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

ENGINE = "django.db.backends.postgresql"
# A peer that vanished is noticed within seconds, on every connection. Seconds, except
# tcp_user_timeout (milliseconds). A URL that names one of these keeps its own value.
CONNECTION_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 6000,
    "target_session_attrs": "read-write",  # of several hosts the one that takes writes
    "application_name": "duekeeper",
}

BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


def database(url: str, *, pool_size: int, max_age_seconds: int) -> dict[str, Any]:
    """Django's description of the database behind a libpq URL.

    libpq's own parser reads the URL, so that several hosts, socket folders and every libpq parameter work as they
    do in psql. Without a URL the answer has no name: commands that need no database run, and Django refuses the first
    connection, saying so.

    Args:
        url: `postgresql://user:password@host:port/name?parameter=value`, or "" for none.
        pool_size: Most connections of a pool shared by the threads of this process; 0 for one connection a thread.
        max_age_seconds: How long an idle connection of a web thread is kept; a pool keeps its own.

    Raises:
        ImproperlyConfigured: The URL is not one of PostgreSQL. The message does not repeat it: it holds a password.
    """
    if not url:
        return {"ENGINE": ENGINE, "NAME": ""}
    try:
        given = conninfo_to_dict(url)
    except ProgrammingError:
        given = {}
    if not given.get("dbname"):
        raise ImproperlyConfigured(
            "DATABASE_URL must look like postgresql://user:password@host:port/database."
        )
    options = CONNECTION_DEFAULTS | {
        name: value
        for name, value in given.items()
        if name not in ("dbname", "user", "password", "host", "port")
    }
    if pool_size:
        options["pool"] = {"min_size": 1, "max_size": pool_size, "timeout": 5}
    return {
        "ENGINE": ENGINE,
        "NAME": given["dbname"],
        "USER": given.get("user", ""),
        "PASSWORD": given.get("password", ""),
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
        "OPTIONS": options,
        "CONN_MAX_AGE": 0 if pool_size else max_age_seconds,
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,  # each operation owns its transaction
    }


def apps(names: list[str]) -> list[str]:
    """Names of apps, each of which can be imported.

    Raises:
        ImproperlyConfigured: One cannot; Django itself would end in a trace that names no setting.
    """
    for name in names:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ImproperlyConfigured(f"DUEKEEPER_APPS names {name!r}, which cannot be imported.")
    return names


def typed_values(env: environ.Env, fields: Mapping[str, type]) -> dict[str, Any]:
    """Those fields that the environment names: field `tick_seconds` is DUEKEEPER_TICK_SECONDS. Empty is not named.

    Read by plain constructors: django-environ makes some number of "1,5" and "3x", and False of "yess".

    Raises:
        ImproperlyConfigured: A value cannot be read as the type of its field.
    """
    found: dict[str, Any] = {}
    for name, kind in fields.items():
        variable = f"DUEKEEPER_{name.upper()}"
        text = str(env.ENVIRON.get(variable, "")).strip()
        if not text:
            continue
        try:
            found[name] = BOOLEANS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ImproperlyConfigured(
                f"{variable}={text!r} cannot be read as {kind.__name__}."
            ) from None
    return found
