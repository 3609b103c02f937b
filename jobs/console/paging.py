"""Places in keyset lists as text in an address, and the addresses of the pages beside this one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from jobs.errors import InvalidField
from jobs.queries.lists import Cursor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = re.compile(r"(older|newer)\.(-?[0-9]{1,18})\.([0-9a-f]{32})", re.ASCII)


class Position(NamedTuple):
    """Where a page begins and which way it is read. Directions are those of the list: "older" goes down the page."""

    cursor: Cursor
    backward: bool


def write_position(cursor: Cursor, *, backward: bool) -> str:
    """Text form: direction, microseconds since 1970, key. It is checked when read, and reveals nothing new."""
    micros = (cursor.moment - _EPOCH) // timedelta(microseconds=1)
    return f"{'newer' if backward else 'older'}.{micros}.{cursor.key.hex}"


def read_position(text: str) -> Position:
    """The position that `write_position` wrote.

    Raises:
        InvalidField: Anything else.
    """
    found = _FORM.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = _EPOCH + timedelta(microseconds=int(found[2]))
    except (ValueError, OverflowError):
        raise InvalidField(
            "/cursor", "invalid_cursor", "is not a place in this list; start from its first page"
        ) from None
    return Position(Cursor(moment, UUID(found[3])), found[1] == "newer")


def address(path: str, params: Mapping[str, object], **changes: object) -> str:
    """`path` with the parameters that have a value; `changes` replace or, as None, remove some."""
    chosen = {
        name: value for name, value in {**params, **changes}.items() if value not in ("", None)
    }
    return f"{path}?{urlencode(chosen)}" if chosen else path
