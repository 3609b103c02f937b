"""Text of files as far as it may be trusted: bounded, UTF-8, and shown without secrets."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jobs.policies.masking import MASK, mask_text
from workers.importing.entries import Unreadable

MOST_BYTES = 1_048_576
SHOWN_CHARACTERS = 160

MASKED_CHARACTERS = 2_000  # of a longer text nothing more is shown anyway
_NAMED = re.compile(
    r"""(?ix) (?P<name>[a-z0-9_.-]*(?:passw(?:or)?d|passwd|secret|token|api[_-]?key|credential)[a-z0-9_.-]*)
    (?P<link>["']?\s*[=:]\s*|\s+) (?P<value>"[^"]*"|'[^']*'|[^\s"'&;|]+)"""
)
_OTHERS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]+@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"(?<!\S)(-u\s*[^\s:]+):\S+"), rf"\1:{MASK}"),  # curl
    (re.compile(r"(\b(?:mysql\w*|mariadb\S*)\b.*?\s-p)[^\s-]\S*"), rf"\1{MASK}"),
)


def read_text(path: str) -> str:
    """The text of a file, or of standard input for `-`.

    Raises:
        Unreadable: It is not there, too long, not UTF-8, or not text.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise Unreadable(f"has more than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Unreadable(f"line {line} is not UTF-8") from None
    if "\0" in text:
        raise Unreadable("is not a text file")
    return text


def masked(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """The text for people: what looks like a secret is hidden, what is long is cut.

    >>> masked("backup --password=hunter2 postgres://me:pw@db/x")
    'backup --password=*** postgres://me:***@db/x'
    """
    text = mask_text(text[:MASKED_CHARACTERS])
    text = _NAMED.sub(lambda found: f"{found['name']}{found['link']}{MASK}", text)
    for pattern, instead in _OTHERS:
        text = pattern.sub(instead, text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
