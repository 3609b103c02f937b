"""Strict JSON: read it, measure it, write it one way.

Owns what JSON may enter the system and the form that is hashed. What Python's reader accepts and PostgreSQL or a
later reader cannot hold is refused here: NUL, lone surrogates, NaN, huge numbers, duplicate keys, deep nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from hashlib import sha256
from itertools import accumulate

from jobs.errors import InvalidField, MalformedJson, PayloadTooLarge
from jobs.policies.pointers import child_pointer
from jobs.policies.times import format_time, parse_time

MAX_DEPTH = 32
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# The closing quote is optional: an unclosed string would otherwise be searched again from each quote inside it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?(?:\s*+:)?|[\[\]{},]', re.DOTALL)
_PATH_CHARACTERS = 65_536
_STEP_OF = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in _STEP_OF)
_FAULTY_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_FAULTY_TEXT = re.compile(r"[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in the parsed tree for a value that must not enter, until its place is known."""

    detail: str
    key: str | None = None


def parse_json(body: bytes, *, max_depth: int = MAX_DEPTH) -> object:
    """The value of a JSON document in UTF-8; what it returns can be stored as jsonb and read back unchanged.

    Time is linear in the size of the body, whatever is in it; nesting is measured before any object is built.

    Args:
        body: The whole document.
        max_depth: Arrays and objects inside one another; `[]` has depth 1.

    Raises:
        MalformedJson: Syntax; UTF-16, a byte order mark or invalid UTF-8; too deep; duplicate keys; NaN, Infinity or a
            number that overflows (1e400); an integer beyond signed 64 bits; NUL or a lone surrogate in a text or key.
            `pointer` names the place where the fault is in one value, and is "" otherwise.
    """
    text = _decode(body)
    if _nested_deeper(body, max_depth):
        detail = f"nested deeper than {max_depth} levels"
        raise MalformedJson(detail, _first_below(text, max_depth))
    refused: list[_Refused] = []

    def refuse(detail: str, key: str | None = None) -> _Refused:
        refused.append(_Refused(detail, key))
        return refused[-1]

    def read_integer(digits: str) -> object:
        # Length first: int() of 5,000 digits raises, of a million it takes seconds.
        if len(digits) <= 20 and MIN_INTEGER <= (number := int(digits)) <= MAX_INTEGER:
            return number
        return refuse("integer does not fit into 64 bits")

    def read_float(digits: str) -> object:
        number = float(digits)
        return number if math.isfinite(number) else refuse("number is too large")

    def read_object(pairs: list[tuple[str, object]]) -> object:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return refuse("key is given twice", repeated)

    try:
        value = json.loads(
            text,
            parse_int=read_integer,
            parse_float=read_float,
            parse_constant=lambda name: refuse(f"{name} is not JSON"),
            object_pairs_hook=read_object,
        )
    except json.JSONDecodeError as fault:
        place = f"line {fault.lineno} column {fault.colno}"
        raise MalformedJson(f"not JSON: {fault.msg} at {place}") from None
    # The tree is walked only when there is something to find: bodies are parsed on every request.
    if refused or _FAULTY_ESCAPE.search(text):
        for detail, pointer in _faults(value, ""):
            raise MalformedJson(detail, pointer)
    return value


def check_payload(
    value: object,
    *,
    max_bytes: int = 65_536,
    max_nodes: int = 10_000,
    max_key: int = 256,
    max_depth: int = MAX_DEPTH,
    pointer: str = "/payload",
) -> None:
    """Pass when `value` can be stored as a payload; also for values that never were JSON text (calls inside Python).

    Args:
        value: Made of dict, list, str, int, float, bool and None only.
        max_bytes: Size of the value as compact JSON in UTF-8.
        max_nodes: Values of all kinds, containers and the outermost value included, keys not.
        max_key: Characters of a key.
        max_depth: Arrays and objects inside one another.
        pointer: Where the payload stands in the request.

    Raises:
        InvalidField: Names the first faulty place.
        PayloadTooLarge: More than `max_bytes`.
    """
    # A stack and not recursion, with limits checked before going down: cycles and shared parts end here too.
    waiting: list[tuple[object, str, int]] = [(value, pointer, 1)]
    nodes = 0
    while waiting:
        here, place, depth = waiting.pop()
        nodes += 1
        if not isinstance(here, dict | list):
            check_scalar(here, place)
            continue
        if depth > max_depth:
            raise InvalidField(place, "too_deep", f"is nested deeper than {max_depth} levels")
        if nodes + len(waiting) + len(here) > max_nodes:
            raise InvalidField(pointer, "too_many", f"must have at most {max_nodes} values")
        members: Iterator[tuple[object, object]] = iter(
            here.items() if isinstance(here, dict) else enumerate(here)
        )
        below = []
        for key, member in members:
            if isinstance(here, dict):
                _check_key(key, place, max_key)
            below.append((member, child_pointer(place, str(key)), depth + 1))
        waiting.extend(reversed(below))  # so that the first faulty place in reading order is named
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > max_bytes:
        detail = f"has {size} bytes of JSON, at most {max_bytes} are allowed; use payload_ref"
        raise PayloadTooLarge(detail, limit=max_bytes, pointer=pointer)


def check_scalar(value: object, pointer: str) -> None:
    """Pass when a single value (no object, no array) can be stored as JSON and read back unchanged.

    Raises:
        InvalidField: NUL, a lone surrogate, an integer beyond 64 bits, NaN, an infinity, or no JSON at all.
    """
    match value:
        case None | bool():
            return
        case str():
            if found := _FAULTY_TEXT.search(value):
                raise InvalidField(pointer, "invalid_text", f"contains {_name(found)}")
        case int():
            if not MIN_INTEGER <= value <= MAX_INTEGER:
                raise InvalidField(pointer, "out_of_range", "does not fit into 64 bits")
        case float():
            if not math.isfinite(value):
                raise InvalidField(pointer, "out_of_range", "is not a finite number")
        case _:
            raise InvalidField(pointer, "wrong_type", f"{type(value).__name__} is not JSON")


def canonical_json(value: object) -> bytes:
    """One text for equal JSON values: sorted keys, no spaces, UTF-8, 1.0 and 1e0 written as 1.

    The text is the same for a value that went through a jsonb column.

    Args:
        value: As `parse_json` returns it or `check_payload` passes it.

    >>> canonical_json({"b": 1.0, "a": "é"}) == canonical_json({"a": "é", "b": 1})
    True
    """
    plain = _normalised(value)
    text = json.dumps(
        plain, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return text.encode()


def request_hash(fields: dict[str, object]) -> bytes:
    """SHA-256, 32 bytes, by which "the same request" is recognised under a request key.

    Over the fields as sent, so that a changed server default never turns a retry into a conflict. `due_at` is
    compared as a moment: the same time in another zone is the same request. Inside the payload nothing is read as time.

    Args:
        fields: Top-level fields of the request; `due_at` as text or aware datetime.
    """
    same = dict(fields)
    due_at = same.get("due_at")
    if isinstance(due_at, datetime):
        same["due_at"] = format_time(due_at)
    elif isinstance(due_at, str):
        try:
            same["due_at"] = format_time(parse_time(due_at, "/due_at"))
        except InvalidField:
            same["due_at"] = due_at  # refused elsewhere; as a hash the text itself is good enough
    return sha256(canonical_json(same)).digest()


def _decode(body: bytes) -> str:
    if body.startswith(_BYTE_ORDER_MARKS):
        raise MalformedJson("starts with a byte order mark; send plain UTF-8")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise MalformedJson(f"not UTF-8 at byte {fault.start}") from None
    if (position := body.find(b"\0")) >= 0:
        raise MalformedJson(f"NUL at byte {position}; send plain UTF-8")
    return text


def _nested_deeper(body: bytes, max_depth: int) -> bool:
    """True when brackets outside strings are nested deeper than `max_depth`; builds nothing and stops there."""
    brackets = _STRING.sub(b"", body).translate(None, delete=_OTHER_BYTES)
    # Every step runs in C: a loop in Python takes four times as long on a body made of brackets.
    depths = accumulate(map(_STEP_OF.__getitem__, brackets))
    return any(map(max_depth.__lt__, depths))


def _first_below(text: str, max_depth: int) -> str:
    """Pointer of the first array or object that is nested too deep.

    "" when it begins after the first 64 KiB: no payload may be that long, and a longer search would only help attackers.
    """
    path: list[int | str] = []  # for each open container the index or key that is being read
    for found in _TOKEN.finditer(text[:_PATH_CHARACTERS]):
        mark = found.group()
        match mark[0]:
            case "[" | "{" if len(path) == max_depth:
                return reduce(child_pointer, path, "")
            case "[" | "{":
                path.append(0 if mark == "[" else "")
            case "]" | "}" if path:
                path.pop()
            case "," if path and isinstance(path[-1], int):
                path[-1] += 1
            case '"' if path and mark[-1] == ":":
                path[-1] = _unquoted(mark[:-1].rstrip())
    return ""


def _unquoted(string: str) -> str:
    try:
        return str(json.loads(string))
    except json.JSONDecodeError:
        return string


def _faults(value: object, pointer: str) -> Iterator[tuple[str, str]]:
    """(detail, pointer) of each value that must not enter, in reading order. Depth is known to be small."""
    match value:
        case _Refused():
            yield value.detail, pointer if value.key is None else child_pointer(pointer, value.key)
        case str() if found := _FAULTY_TEXT.search(value):
            yield f"text contains {_name(found)}", pointer
        case dict():
            for key, member in value.items():
                place = child_pointer(pointer, key)
                if found := _FAULTY_TEXT.search(key):
                    yield f"key contains {_name(found)}", place
                yield from _faults(member, place)
        case list():
            for index, member in enumerate(value):
                yield from _faults(member, child_pointer(pointer, index))


def _name(found: re.Match[str]) -> str:
    return "NUL" if found.group() == "\0" else "a lone surrogate"


def _check_key(key: object, pointer: str, max_key: int) -> None:
    if not isinstance(key, str):
        raise InvalidField(pointer, "wrong_type", "has a key that is not a text")
    place = child_pointer(pointer, key)
    if len(key) > max_key:
        raise InvalidField(place, "too_long", f"key is longer than {max_key} characters")
    if found := _FAULTY_TEXT.search(key):
        raise InvalidField(place, "invalid_text", f"key contains {_name(found)}")


def _normalised(value: object) -> object:
    match value:
        case float() if value.is_integer():
            # By its shortest decimal, not by int(): jsonb keeps decimals and gives 1e23 back as 1 with 23 zeros.
            return int(Decimal(repr(value)))
        case dict():
            return {key: _normalised(member) for key, member in value.items()}
        case list() | tuple():
            return [_normalised(member) for member in value]
    return value
