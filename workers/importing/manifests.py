"""YAML documents, read with PyYAML's safe loader and without what makes a small file large. Knows no Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MOST_DOCUMENTS = 2_000
DEEPEST = 64
_DIVIDER = re.compile(r"^---[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its value, or why there is none; `line` is where it begins."""

    line: int
    value: Any = None
    fault: str = ""


class _Loader(yaml.SafeLoader):
    """Plain data only: no aliases, with which few lines can stand for gigabytes, no name twice, no endless depth."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="found an alias; put a schedule into quotes, and write out what anchors stand for",
                problem_mark=event.start_mark,
            )
        if self.depth >= DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is there twice", problem_mark=key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def documents(text: str) -> Iterator[Document]:
    """Every document that is not empty. Each is read on its own, so that a bad one ends itself only."""
    line = 1
    for number, (begin, piece) in enumerate(_pieces(text, line)):
        if number >= MOST_DOCUMENTS:
            yield Document(
                begin, fault=f"more than {MOST_DOCUMENTS} documents; the rest is not read"
            )
            return
        try:
            value = yaml.load(piece, Loader=_Loader)  # noqa: S506  a safe loader, with less
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = begin + (mark.line if mark else 0)
            problem = error.problem or "cannot be read"
            if error.context == "while scanning an alias":  # schedule: */5 * * * *
                problem = "a text that begins with * must stand in quotes"
            yield Document(where, fault=f"line {where}: {problem}")
            continue
        except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
            yield Document(
                begin, fault=str(error).splitlines()[0] if str(error) else "cannot be read"
            )
            continue
        if value is not None:
            yield Document(begin, value)


def _pieces(text: str, line: int) -> Iterator[tuple[int, str]]:
    """(line, text) between the lines of three dashes."""
    place = 0
    for found in _DIVIDER.finditer(text):
        yield from _piece(line, text[place : found.start()])
        line += text.count("\n", place, found.end())
        place = found.end()
    yield from _piece(line, text[place:])


def _piece(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Without what comes before its first word, so that the line is a place where something stands."""
    for skipped, one in enumerate(text.split("\n")):
        if one.strip() and not one.lstrip().startswith("#"):
            yield line + skipped, "\n".join(text.split("\n")[skipped:])
            return
