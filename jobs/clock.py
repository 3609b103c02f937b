"""Database time: the only clock that decides what is due and what has expired."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from django.db import connection
from django.db.models import Expression, Value
from django.db.models.functions import Now

# The one SQL spelling of "now, unless a test or a rerun says otherwise": the statement's time, so that
# every row of a batch agrees. A process clock never reaches a comparison.
NOW_SQL = "coalesce(%(now)s::timestamptz, statement_timestamp())"


def at(now: datetime | None) -> Expression:
    """The given aware time as a query value, or the database's own clock."""
    return Now() if now is None else Value(now)


class Skew(NamedTuple):
    """How far this host's clock is ahead of the database's, and how wrong that reading can be (seconds)."""

    seconds: float
    uncertainty: float


def measure_skew() -> Skew:
    """Compare the wall clocks of host and database over one round trip.

    The database read its clock at some moment inside the round trip, so the error is at most half of it.
    """
    began, wall = time.monotonic(), time.time()
    with connection.cursor() as cursor:
        cursor.execute("select extract(epoch from clock_timestamp())::float8")
        (database,) = cursor.fetchone() or (wall,)
    half = (time.monotonic() - began) / 2
    return Skew(wall + half - float(database), half)


def database_now() -> datetime:
    """The database's clock, for messages and tests; never for a decision made in Python."""
    with connection.cursor() as cursor:
        cursor.execute("select statement_timestamp()")
        return cast("tuple[datetime]", cursor.fetchone())[0]


def seconds(value: timedelta | float) -> float:
    """A duration as plain seconds for SQL parameters."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
