"""Where a benchmark runs: a server of its own, or a database of its own on the server that DATABASE_URL names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import environ
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.processes import BenchmarkError
from workers import embedded

APPLICATION = "duekeeper-benchmark"


@contextmanager
def fresh_database() -> Iterator[str]:
    """An empty database; yields its URL (or libpq connection string) and leaves nothing behind."""
    given = environ.FileAwareEnv().str("DATABASE_URL", default="").strip()
    if given:
        yield from _on_given_server(given)
    else:
        yield from _on_own_server()


def connect(url: str) -> psycopg.Connection:
    """A connection for looking on: each statement by itself."""
    return psycopg.connect(url, autocommit=True, application_name=APPLICATION)


def row(link: psycopg.Connection, query: str, *params: object) -> tuple[Any, ...]:
    """The first row of an answer.

    Raises:
        BenchmarkError: There is none.
    """
    found = link.execute(query.encode(), params or None).fetchone()
    if found is None:
        raise BenchmarkError(f"no answer to {query}")
    return found


def true(link: psycopg.Connection, query: str, *params: object) -> bool:
    """Whether the only value of the first row is true."""
    return bool(row(link, query, *params)[0])


def _on_given_server(given: str) -> Iterator[str]:
    name = f"duekeeper_benchmark_{os.getpid()}"
    with connect(given) as link:
        link.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield make_conninfo(given, dbname=name)
    finally:
        with connect(given) as link:
            link.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _on_own_server() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="duekeeper-benchmark-"))
    homes = {folder}
    try:
        with embedded.start(folder) as server:
            homes.add(server.home)
            yield server.url
    finally:
        for home in homes:
            shutil.rmtree(home)
