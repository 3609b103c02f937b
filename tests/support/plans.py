"""How PostgreSQL runs a statement: fresh, and as the generic plan that a prepared statement ends up with.

A plan is run, not only estimated: what matters is how many rows it touched for how many it was asked for.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from psycopg import sql as composed

from tests.support.sql import Statement, captured

EXPLAIN = "explain (analyze, costs off, timing off, summary off, buffers off, format json) "
_NUMBERS = itertools.count(1)
EXECUTIONS = 6  # five are planned for their values; from the sixth on the generic plan may stay


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a plan that ran. `rows` counts all rows that it looked at, over all its turns."""

    kind: str
    relation: str
    index: str
    rows: float
    condition: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of one plan, sub-plans included."""

    nodes: tuple[Node, ...]

    def indexes(self) -> set[str]:
        """Names of the indexes that it uses."""
        return {node.index for node in self.nodes if node.index}

    def scanned(self) -> set[str]:
        """Tables that it reads from end to end."""
        return {node.relation for node in self.nodes if node.kind == "Seq Scan"}

    def most_rows(self) -> float:
        """Rows of its busiest step: a nested loop that grows with the square shows here.

        A bitmap's own count is left out: entries of dead versions are in it until the next vacuum.
        """
        return max(node.rows for node in self.nodes if node.kind != "Bitmap Index Scan")

    def __str__(self) -> str:
        return "\n".join(
            f"{node.rows:>10.0f} {node.kind} {node.relation} {node.index} {node.condition}".rstrip()
            for node in self.nodes
        )


def statements_sent_by(call: Callable[[], object]) -> list[Statement]:
    """What the call sends; what it wrote is undone."""
    with transaction.atomic(), captured() as found:
        call()
        transaction.set_rollback(True)
    return [one for one in found if not one.sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK"))]


def fresh_plan(statement: Statement) -> Plan:
    """The plan made for these values now; what it wrote is undone."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(EXPLAIN + statement.sql, statement.params)
        plan = _plan(cursor.fetchone())
        transaction.set_rollback(True)
    return plan


def prepared_plan(statement: Statement, *, force_generic: bool = False) -> tuple[Plan, int]:
    """The plan of the prepared statement after `EXECUTIONS` runs, and how many of these used a generic one."""
    with _prepared(statement) as (name, execute):
        with connection.cursor() as cursor:
            mode = "force_generic_plan" if force_generic else "auto"
            cursor.execute(f"set plan_cache_mode = {mode}")
        try:
            for _ in range(EXECUTIONS):
                _run(execute)
            plan = _plan(_run(EXPLAIN + execute))
            ((generic,),) = _rows(
                f"select generic_plans from pg_prepared_statements where name = '{name}'"
            )
        finally:
            _rows("reset plan_cache_mode")
    return plan, generic


@contextmanager
def _prepared(statement: Statement) -> Iterator[tuple[str, str]]:
    """Prepare the statement; yields its name and the EXECUTE with its values."""
    name = f"tested_{next(_NUMBERS)}"  # a name stays taken when its transaction fails
    text, values = numbered(statement)
    kinds = ", ".join(_kind(name, value) for name, value in values)
    _rows(f"prepare {name}({kinds}) as {text}")
    try:
        with connection.cursor() as cursor:
            literals = [
                composed.Literal(value).as_string(cursor.connection) for _, value in values
            ]
        yield name, f"execute {name}({', '.join(literals)})"
    finally:
        _rows(f"deallocate {name}")


def numbered(statement: Statement) -> tuple[str, list[tuple[str, Any]]]:
    """The statement with $1, $2 … for its placeholders, and (name, value) of each in that order."""
    values: list[tuple[str, Any]] = []
    places: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        name = match[1] or str(len(values))
        if name not in places:
            value = statement.params[name if match[1] else len(values)]
            values.append((name, value))
            places[name] = len(values)
        return f"${places[name]}"

    return re.sub(r"%%|%\((\w+)\)s|%s", number, statement.sql), values


def _kind(name: str, value: Any) -> str:
    """The type that the driver announces; for a text it leaves the choice to the server."""
    match value:
        case list():
            if value and isinstance(value[0], UUID):
                return "uuid[]"
            if value and isinstance(value[0], str):
                return "text[]"
            return "smallint[]" if max(value, default=0) < 2**15 else "int[]"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float8"
        case UUID():
            return "uuid"
    return "timestamptz" if name == "now" else "unknown"


def _run(text: str) -> Any:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(text)
        row = cursor.fetchone()
        transaction.set_rollback(True)
    return row


def _rows(text: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return list(cursor.fetchall()) if cursor.description else []


def _plan(row: Any) -> Plan:
    (told,) = row
    found = json.loads(told) if isinstance(told, str) else told
    return Plan(tuple(_nodes(found[0]["Plan"])))


def _nodes(told: dict[str, Any]) -> Iterator[Node]:
    removed = sum(value for name, value in told.items() if name.startswith("Rows Removed by"))
    conditions = [
        f"{name}: {told[name]}"
        for name in ("Index Cond", "Hash Cond", "Merge Cond", "Join Filter", "Filter")
        if name in told
    ]
    yield Node(
        kind=told["Node Type"],
        relation=told.get("Relation Name", ""),
        index=told.get("Index Name", ""),
        rows=(told["Actual Rows"] + removed) * told["Actual Loops"],
        condition="; ".join(conditions)[:200],
    )
    for child in told.get("Plans", []):
        yield from _nodes(child)
