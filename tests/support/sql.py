"""What the engine says to the database: statements as they are sent, and a reading of them that finds what would not
run on one node of a distributed database.

The reading is a small one for the SQL that this project writes: blocks (SELECT, INSERT, UPDATE, DELETE) by their
parentheses, the tables of each block, and the conditions on `shard` in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from django.db import connection

JOB_TABLES = frozenset(
    {"jobs_job", "jobs_dueentry", "jobs_lease", "jobs_jobevent", "jobs_deadletter"}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as it was sent: the text before binding, and its parameters."""

    sql: str
    params: Any


@contextmanager
def captured() -> Iterator[list[Statement]]:
    """Collect what the product says on this thread's connection in the block; what tests read is left out."""
    found: list[Statement] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if _sender().split(".")[0] != "tests":
            found.append(Statement(str(sql), params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        yield found


def _sender() -> str:
    """The module of this repository that is nearest to the statement."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(("jobs.", "workers.", "tests.")):
            return name
        frame = frame.f_back
    return ""


def touches_jobs(sql: str) -> bool:
    """Whether any job table occurs in the statement."""
    return not JOB_TABLES.isdisjoint(re.findall(r"\w+", normal(sql)))


def normal(sql: str) -> str:
    """Lower case, single spaces, no quotes around names, no comments, no contents of texts."""
    sql = re.sub(r"--[^\n]*|/\*.*?\*/", " ", sql, flags=re.DOTALL)
    sql = re.sub(r"'(?:[^']|'')*'", "''", sql)
    return re.sub(r"\s+", " ", sql.replace('"', "")).strip().lower()


def faults(sql: str) -> list[str]:
    """Why this statement would not run on one node of a distributed database; empty if it would.

    Each use of a job table needs `shard = any(…)`, `shard = value`, or an equality with the shard of another table in
    the same block; an INSERT sets the shard. The shards of a parameter, one by one, are values. No sequence, no advisory lock, no clock_timestamp() in a change.
    """
    text = normal(sql)
    for each in _ONE_BY_ONE.findall(text):
        text = re.sub(rf"\b{each}\.shard\b", "%(shard)s", text)
    found = [fault for block in _blocks(text) for fault in _block_faults(block)]
    if re.search(r"\b(nextval|currval|setval|lastval)\b", text):
        found.append("uses a sequence")
    if re.search(r"\bpg_(try_)?advisory", text):
        found.append("uses an advisory lock")
    changes = re.search(r"\b(update|insert into|delete from|merge into) ", text)
    if changes and "clock_timestamp" in text:
        found.append("reads the moving clock in a change")
    return found


_ARRAY = r"(?:%s|%\(\w+\)s|\$\d+)::smallint\[\]"
_ONE_BY_ONE = re.compile(
    rf"unnest\({_ARRAY}(?:, [^()]*(?:\([^()]*\)[^()]*)*)?\) as ([a-z_]+)\(shard\b"
)
_BEGINS = re.compile(r"\(\s*(select|with|insert|update|delete|merge|values)\b")


def _blocks(text: str) -> Iterator[str]:
    """Every query of the statement by itself: what stands in parentheses and is a query becomes `(query)`."""
    while begin := _BEGINS.search(text):
        depth, end = 0, begin.start()
        for end in range(begin.start(), len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                break
        yield from _blocks(text[begin.start() + 1 : end])
        text = f"{text[: begin.start()]}(query){text[end + 1 :]}"
    # A WITH list ends where its last part does; what follows is one block with its own tables.
    yield from re.split(r"\b(?:union all|union|intersect|except)\b", text)


_AFTER_TABLES = re.compile(
    r"\b(where|group by|order by|having|limit|offset|returning|for|on conflict|set|window)\b"
)
_NAME = re.compile(
    r"(?:only )?(?P<table>[a-z_][a-z0-9_.]*)(?: (?:as )?(?P<alias>[a-z_][a-z0-9_]*))?"
)
_NOT_ALIAS = re.compile(
    r"(where|set|on|using|left|right|inner|full|cross|join|natural|order|group|limit|returning|for|values|select"
    r"|default|as|overriding|window|union|having|offset|lateral|tablesample)\Z"
)
_LISTS = re.compile(r"\b(?P<word>delete from|from|using|update|join)\b (?:lateral )?")
_INSERT = re.compile(r"\binsert into (?P<table>\w+)\s*(?:\((?P<columns>[^()]*)\))?")


def _tables(block: str) -> list[tuple[str, str]]:
    """(table, alias) of every table that the block reads or changes; what it inserts into is not among them."""
    found = []
    for word in _LISTS.finditer(block):
        before = block[: word.start()].rstrip()
        if word["word"] == "update" and before.endswith(("for", "for no key", "do")):
            continue
        if word["word"] == "from" and before.endswith("distinct"):  # is distinct from
            continue
        rest = block[word.end() :]
        if stop := _AFTER_TABLES.search(rest):
            rest = rest[: stop.start()]
        for part in re.split(r",|\bjoin\b", rest):
            if name := _NAME.match(part.strip()):
                alias = name["alias"] or name["table"]
                found.append((name["table"], name["table"] if _NOT_ALIAS.match(alias) else alias))
    return list(dict.fromkeys(found))


def _block_faults(block: str) -> Iterator[str]:
    for insert in _INSERT.finditer(block):
        columns = [name.strip() for name in (insert["columns"] or "").split(",")]
        if insert["table"] in JOB_TABLES and "shard" not in columns:
            yield f"inserts into {insert['table']} without a shard"
    tables = _tables(block)
    bound = _bound(block, tables)
    for table, alias in tables:
        if table in JOB_TABLES and alias not in bound:
            yield f"touches {table} without its shard"


_VALUE = r"(?:any\s*\(\s*(?:array\[)?(?:%|'|\{|\$|\d)|%s|%\(\w+\)s|\$\d+|\d+\b)"
_OVER = re.compile(
    r"\b(where|group by|order by|having|limit|returning|for update|for no key|window|do nothing|do update"
    r"|(?:left |right |full |inner |cross )?(?:outer )?join)\b"
)


def _conditions(block: str) -> Iterator[str]:
    """The parts between AND of each ON and WHERE; a part with an OR binds nothing."""
    for begin in re.finditer(r"\b(?:on(?! conflict)|where)\b", block):
        rest = block[begin.end() :]
        if stop := _OVER.search(rest):
            rest = rest[: stop.start()]
        yield from (part for part in re.split(r"\band\b", rest) if " or " not in part)


def _bound(block: str, tables: list[tuple[str, str]]) -> set[str]:
    """Aliases whose shard is fixed: by a value or a list, or by equality with one that is.

    A part of the statement that is no job table (a WITH part, an array) was fixed where it was made.
    """
    bound = {alias for table, alias in tables if table not in JOB_TABLES}
    links = []
    for part in _conditions(block):
        for match in re.finditer(rf"(?:(\w+)\.)?\bshard\s*=\s*{_VALUE}", part):
            if match[1]:
                bound.add(match[1])
            elif len(tables) == 1:
                bound.add(tables[0][1])
        links += re.findall(r"(\w+)\.\w+\s*=\s*(\w+)\.shard\b", part)
        links += [(b, a) for a, b in re.findall(r"(\w+)\.shard\s*=\s*(\w+)\.\w+", part)]
    known = {alias for _, alias in tables}
    for _ in tables:
        bound |= {end for start, end in links if start in bound & known}
    return bound


def statements_of(sources: Sequence[Any]) -> dict[str, str]:
    """The SQL constants of these modules that are whole statements on job tables, by "module.NAME"."""
    found = {}
    for module in sources:
        for name, value in vars(module).items():
            is_statement = (
                name.isupper()
                and isinstance(value, str)
                and re.match(r"\s*(with|select|insert|update|delete)\b", value, re.IGNORECASE)
            )
            if is_statement and touches_jobs(value):
                found[f"{module.__name__}.{name}"] = value
    return found
