"""Rows of django-celery-beat's tables, through a connection that can only read. Knows no meaning."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.rows import dict_row

from workers.importing.entries import Unreadable

Row = dict[str, Any]
MOST_ROWS = 10_000
PREFIX = "django_celery_beat_"
KINDS = ("crontab", "interval", "solar", "clocked")
WAIT_SECONDS = 10


def read_tables(url: str) -> list[Row]:
    """Rows of periodictask in order of their id, each with the rows of its schedules as `crontab`, `interval` and so on.

    Columns that an older version does not have are missing in a row, and so are tables.

    Args:
        url: `postgresql://…`, or `sqlite:///path`.

    Raises:
        Unreadable: There is no such database, or it has no such tables. The text does not repeat the URL.
    """
    scheme = url.partition("://")[0]
    if scheme in ("postgres", "postgresql"):
        return _postgresql(url)
    if scheme == "sqlite":
        return _sqlite(url)
    raise Unreadable("must be a URL like postgresql://user:password@host/name or sqlite:///path")


def _postgresql(url: str) -> list[Row]:
    try:
        with psycopg.connect(url, connect_timeout=WAIT_SECONDS, row_factory=dict_row) as link:
            link.read_only = True
            link.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

            def table(name: str) -> list[Row] | None:
                found = link.execute("select to_regclass(%s) as known", [PREFIX + name]).fetchone()
                if found is None or found["known"] is None:
                    return None
                return link.execute(_select(name)).fetchall()

            return _joined(table)
    except psycopg.Error as error:
        raise Unreadable(f"the database cannot be read: {type(error).__name__}") from None


def _sqlite(url: str) -> list[Row]:
    path = url.removeprefix("sqlite://").removeprefix("/")
    if not Path(path).is_file():
        raise Unreadable(
            "there is no such sqlite file (three slashes and a path, four for one from the root)"
        )
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as link:
            link.row_factory = sqlite3.Row

            def table(name: str) -> list[Row] | None:
                known = "select 1 from sqlite_master where type in ('table', 'view') and name = ?"
                if link.execute(known, [PREFIX + name]).fetchone() is None:
                    return None
                return [dict(row) for row in link.execute(_select(name))]

            return _joined(table)
    except sqlite3.Error as error:
        raise Unreadable(f"the database cannot be read: {error}") from None


def _select(name: str) -> str:
    return f"select * from {PREFIX}{name} order by id limit {MOST_ROWS + 1}"


def _joined(table: Callable[[str], list[Row] | None]) -> list[Row]:
    tasks = table("periodictask")
    if tasks is None:
        raise Unreadable("has no tables of django-celery-beat")
    if len(tasks) > MOST_ROWS:
        raise Unreadable(f"has more than {MOST_ROWS} periodic tasks")
    for kind in KINDS:
        found = {row["id"]: row for row in table(f"{kind}schedule") or ()}
        for task in tasks:
            task[kind] = found.get(task.get(f"{kind}_id"))
    return tasks
