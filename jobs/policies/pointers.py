"""JSON pointers (RFC 6901) that name the faulty place in a request.

Owns how a pointer is written. Knows nothing of what is at the place.
"""

from __future__ import annotations

import re

_TOKEN_CHARACTERS = 80
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def child_pointer(parent: str, token: str | int) -> str:
    """The pointer of member `token` of the value at `parent`.

    Pointers travel in error bodies and logs, so what cannot be encoded there (control characters, lone
    surrogates) is shown as an escape like in JSON, and a token ends with an ellipsis after 80 characters.

    Args:
        parent: Pointer of the container, "" for the whole document.
        token: Key of an object or index of an array.

    >>> child_pointer("/payload", "a/b")
    '/payload/a~1b'
    """
    text = str(token)
    if len(text) > _TOKEN_CHARACTERS:
        text = text[:_TOKEN_CHARACTERS] + "…"
    text = _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    return f"{parent}/{text.replace('~', '~0').replace('/', '~1')}"
