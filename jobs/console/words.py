"""Stored values as plain words: safe text, durations, counts. Nothing here raises on odd data or makes markup."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.queries.lists import Count

# What a terminal or a text direction could be steered by, besides newline and tab: shown as what it is.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MOST_SECONDS = 1_000 * 366 * 86_400
SHOWN_CHARACTERS = 70_000  # of one value; a payload is at most 65,536 bytes


class Word(NamedTuple):
    """A word and the tone it is printed in: quiet, wait, live, good, bad, warn."""

    text: str
    tone: str


def text(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """Any value as text that a page can show: control characters visible, at most `limit` characters."""
    if value is None:
        return ""
    plain = value if isinstance(value, str) else compact(value)
    cut = plain[:limit] + ("…" if len(plain) > limit else "")
    return _CONTROL.sub(_visible, cut)


def line(value: object, limit: int = 160) -> str:
    """As `text`, on one line."""
    return " ".join(text(value, limit * 4).split())[:limit]


def duration(seconds: float) -> str:
    """Two units at most: "3 h 12 m". Negative is zero: a skewed clock is no negative wait.

    >>> [duration(s) for s in (0.04, 0.5, 12, 75, 7500, 90000)]
    ['0 s', '0.5 s', '12 s', '1 m 15 s', '2 h 5 m', '1 d 1 h']
    """
    if not math.isfinite(seconds):
        return "no end" if seconds > 0 else "unknown"
    if seconds < 0.05:
        return "0 s"
    if seconds > MOST_SECONDS:
        return "over 1,000 years"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    for number, (name, size) in enumerate(units):
        if whole >= size:
            first, rest = divmod(whole, size)
            if number + 1 < len(units) and (second := rest // units[number + 1][1]):
                return f"{first} {name} {second} {units[number + 1][0]}"
            return f"{first} {name}"
    return "0 s"


def between(earlier: datetime, later: datetime) -> str:
    """The time from one moment to another."""
    return duration((later - earlier).total_seconds())


def count(value: Count) -> str:
    """ "12", "10,000+", or "?" where counting stopped before it found one."""
    if value.at_least and not value.number:
        return "?"
    return f"{value.number:,}{'+' if value.at_least else ''}"


def actor_name(actor: str) -> str:
    """A person by name, an API token as such, anything else as it is stored."""
    kind, _, name = actor.partition(":")
    match kind:
        case "user":
            return line(name, 150)
        case "token":
            return f"API token {line(name, 150)}"
    return line(actor, 150)


def short_id(value: UUID) -> str:
    """Beginning and end: ids made in the same minute begin alike."""
    digits = str(value)
    return f"{digits[:8]}…{digits[-6:]}"


def member(detail: Any, *path: str) -> Any:
    """A value inside stored JSON; None where the shape is another."""
    for name in path:
        detail = detail.get(name) if isinstance(detail, dict) else None
    return detail


def moment_in(value: object) -> datetime | None:
    """A stored time (PostgreSQL writes ISO 8601 with offset into JSON), if it is one."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def compact(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(type(value).__name__)


def _visible(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"
