"""What a database error means for the caller: rerun the transaction, drop the connection, or give up.

SQLSTATE classes: 40001/40P01 undo the whole transaction and ask for another try; 25006, 25P03, 57P01 to 57P03 and
class 08 say that this connection will not work again (a health check calls a read-only server healthy).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db.backends.postgresql.base import ServerBindingCursor

from jobs.failpoints import BEFORE, COMMITS, COMMITTED, failpoint

RERUN = frozenset({"40001", "40P01"})
# The first two: a prepared statement that is not there any more, or whose columns a migration has changed.
GONE = frozenset({"26000", "0A000", "25006", "25P03", "57P01", "57P02", "57P03"})
OVERLOADED = frozenset({"53100", "53300"})
TRIES = 6
PREPARE_AFTER = 2  # executions
# A process that falls silent inside a transaction (frozen, or its link cut) gives back what it has locked after this
# long. Only for the one transaction: handlers have their own, and a pooler would hand a session's setting to others.
LIMIT_IDLENESS = "set local idle_in_transaction_session_timeout = '3s'"


def sqlstate(error: BaseException) -> str:
    """The five characters the server gave, or "" for an error of the client or the network."""
    for candidate in (error.__cause__, error):
        if state := getattr(candidate, "sqlstate", None):
            return str(state)
    return ""


def is_gone(error: BaseException) -> bool:
    """True if the connection that raised this must be closed and not used again."""
    state = sqlstate(error)
    if state:
        return state in GONE or state.startswith("08")
    return isinstance(error, OperationalError | InterfaceError)


def is_unavailable(error: BaseException) -> bool:
    """True if the database, not the request, is at fault and another try later can succeed."""
    state = sqlstate(error)
    return is_gone(error) or state in OVERLOADED or state in RERUN or state == "57014"


def drop_if_gone(error: BaseException) -> None:
    """Close this thread's connection if it can no longer work; the next query opens a new one."""
    if isinstance(error, DatabaseError | InterfaceError) and is_gone(error):
        connection.close()


def commits[**P, R](function: Callable[P, R], *, tries: int = TRIES) -> Callable[P, R]:
    """Mark a function whose return means a commit, run again, with jitter, when the server undid it (40001, 40P01).

    Inside a caller's transaction the error passes through: only its owner can run all of it again.
    """
    name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
    COMMITS.add(name)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        failpoint(name, BEFORE)
        for attempt in range(1, tries + 1):
            try:
                result = function(*args, **kwargs)
                if not connection.in_atomic_block:
                    failpoint(name, COMMITTED)
                return result
            except OperationalError as error:
                if connection.in_atomic_block or sqlstate(error) not in RERUN or attempt == tries:
                    raise
            time.sleep(random.uniform(0, 0.005 * 2**attempt))  # outside any transaction
        raise AssertionError("unreachable")

    return wrapper


def commits_once[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """As `commits`, but never run again: code that is not ours runs inside."""
    return commits(function, tries=1)


def atomically[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """One transaction, rerun as a whole when the server undid it; joins the caller's if there is one.

    The server ends one of ours that is idle for 3 s: its rows are free again for another process.
    """

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        ours = not connection.in_atomic_block
        with transaction.atomic():
            if ours:
                with connection.cursor() as cursor:
                    cursor.execute(LIMIT_IDLENESS)
            return function(*args, **kwargs)

    return commits(inside)


def rows(
    sql: str, params: Mapping[str, Any] | Sequence[Any], *, hot: bool = False
) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows.

    Args:
        sql: The statement, with placeholders.
        params: By name or by position; lists of numbers and of ids go as array literals.
        hot: Sent again and again by the engine, by keys: parsed and planned once for the connection, which is half of
            what a small one costs. Not through a pooler.
    """
    bound: Any
    if isinstance(params, Mapping):
        bound = {name: array_literal(value) for name, value in params.items()}
    else:
        bound = [array_literal(value) for value in params]
    with preparing() if hot and may_prepare() else nullcontext(), connection.cursor() as cursor:
        cursor.execute(sql, bound)
        return cast("list[tuple[Any, ...]]", cursor.fetchall())


@contextmanager
def preparing() -> Iterator[None]:
    """Cursors made meanwhile prepare what they send. All others bind as Django does, those of handlers too."""
    connection.ensure_connection()
    link = connection.connection
    before = link.cursor_factory, link.prepare_threshold
    link.cursor_factory, link.prepare_threshold = ServerBindingCursor, PREPARE_AFTER
    try:
        yield
    finally:
        link.cursor_factory, link.prepare_threshold = before


def may_prepare() -> bool:
    """Whether a statement prepared on this connection is there at the next one too. Not so behind a pooler."""
    return not getattr(settings, "JOBS", {}).get("listen_url")


def forget_plans() -> None:
    """Have prepared statements planned anew: a plan made while a queue was empty reads all of it when it is full."""
    if may_prepare() and connection.connection is not None:
        with connection.cursor() as cursor:
            cursor.execute("discard plans")


def array_literal(values: Any) -> Any:
    """The text of an array, of a list of numbers or of UUIDs; anything else as it is.

    The driver looks for the type of every element: 64 shards cost it 50 times as much as this text, 1,000 ids 8 times.
    """
    kind = type(values[0]) if isinstance(values, list) and values else None
    if kind is int:
        return f"{{{','.join(map(str, values))}}}"
    if kind is float:
        return f"{{{','.join(map(repr, values))}}}"
    if kind is UUID:
        return f"{{{','.join([one.hex for one in values])}}}"
    return values


def notify(channel: str, payload: str) -> None:
    """Send a wake-up hint after the transaction commits. Losing it costs at most one poll interval."""

    def send() -> None:
        with connection.cursor() as cursor:
            cursor.execute("select pg_notify(%s, %s)", [channel, payload])

    transaction.on_commit(send, robust=True)
