"""Query parameters: each operation names its own, and all others are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from rest_framework.request import Request

from jobs.api.errors import InvalidParameter, Problem
from jobs.errors import InvalidField
from jobs.policies.times import parse_time

_SHOWN = 80  # characters of a caller's text that an answer repeats
_DIGITS = frozenset("0123456789")


class Parameter(Protocol):
    """One query parameter."""

    def read(self, values: list[str]) -> Any:
        """What it says.

        Raises:
            ValueError: What it must be, in words.
        """


class Choice(NamedTuple):
    """The words it takes, and whether it takes several, separated by commas."""

    words: frozenset[str]
    several: bool = False

    def read(self, values: list[str]) -> list[str]:
        """The words given."""
        given = values[0].split(",") if self.several else values
        if len(values) > 1 or not self.words.issuperset(given):
            how = "a list of" if self.several else "one of"
            raise ValueError(f"is given once, as {how}: {', '.join(sorted(self.words))}")
        return given


class Parsed(NamedTuple):
    """A text that is given once and read by a parser of (text, pointer), which raises InvalidField."""

    parse: Callable[[str, str], Any]

    def read(self, values: list[str]) -> Any:
        """What the parser makes of it."""
        if len(values) > 1:
            raise ValueError("is given once")
        try:
            return self.parse(values[0], "")
        except InvalidField as fault:
            raise ValueError(fault.reason) from None


def whole(least: int, most: int) -> Parsed:
    """A whole number within bounds, in plain digits."""

    def parse(text: str, pointer: str) -> int:
        if not text or len(text) > 9 or not _DIGITS.issuperset(text):
            raise InvalidField(pointer, "invalid", f"must be a number from {least} to {most}")
        if not least <= int(text) <= most:
            raise InvalidField(pointer, "out_of_range", f"must be from {least} to {most}")
        return int(text)

    return Parsed(parse)


def _moment(text: str, pointer: str) -> datetime:
    try:
        return parse_time(text, pointer)
    except InvalidField as fault:
        plus = '; a "+" is written %2B in an address' if " " in text else ""
        raise InvalidField(pointer, fault.field_code, f"{fault.reason}{plus}") from None


MOMENT = Parsed(_moment)


def words(limit: int) -> Parsed:
    """A text of at most so many characters, which a database can hold."""

    def parse(text: str, pointer: str) -> str:
        if not 1 <= len(text) <= limit or not text.isprintable():
            reason = f"must have 1 to {limit} printable characters"
            raise InvalidField(pointer, "invalid", reason)
        return text

    return Parsed(parse)


def read_query(request: Request, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Name → what was given, for the parameters of an operation that were given.

    Raises:
        Problem: unknown_parameter or invalid_parameter, naming it.
    """
    given: dict[str, Any] = {}
    for name, values in request.query_params.lists():
        if name not in known:
            listed = f"known here: {', '.join(known)}" if known else "none is known here"
            shown = name[:_SHOWN]
            fault = InvalidParameter(shown, "unknown", f"is not a parameter; {listed}")
            detail = f"{shown!r} {fault.reason}."
            raise Problem("unknown_parameter", detail, errors=[fault])
        try:
            given[name] = known[name].read(values)
        except ValueError as wrong:
            raise invalid_parameter(name, str(wrong)) from None
    return given


def invalid_parameter(name: str, reason: str) -> Problem:
    """The refusal of a parameter that cannot be accepted."""
    fault = InvalidParameter(name, "invalid", reason)
    return Problem("invalid_parameter", f"{name!r} {reason}.", errors=[fault])
