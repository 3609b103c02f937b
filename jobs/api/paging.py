"""Pages of a list: where the next one begins, as text that only this server can have written.

The text holds the place of the last row, not a number of rows: what is added or removed meanwhile shifts nothing. It is of
one list with one set of filters, and is refused with any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.core import signing
from rest_framework.request import Request

from jobs.api.errors import InvalidParameter, Problem
from jobs.api.parameters import Parameter, Parsed, whole

LIMIT, MOST = 50, 200
_SALT = "duekeeper.page"
_LONGEST = 2_000  # characters of a cursor that are looked at
PAGED: dict[str, Parameter] = {"limit": whole(1, MOST), "cursor": Parsed(lambda text, _: text)}


class Page:
    """The page that a request asks for.

    Attributes:
        limit: Rows of it.
        place: Where the page before it ended, as `answer` was told; None for the first page.
    """

    def __init__(self, request: Request, query: Mapping[str, Any], *, limit: int = LIMIT) -> None:
        self.limit: int = query.get("limit", limit)
        self._path = request.path
        self._given = {
            name: value for name, value in request.query_params.items() if name != "cursor"
        }
        filters = {name: value for name, value in self._given.items() if name != "limit"}
        told = json.dumps([self._path, sorted(filters.items())]).encode()
        self._list = hashlib.blake2b(told, digest_size=8).hexdigest()
        self.place: list[Any] | None = None
        if "cursor" in query:
            self.place = self._read(query["cursor"])

    def answer[T](
        self, found: Sequence[T], shown: Callable[[T], Any], place: Callable[[T], list[Any]]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The members of the answer, and its headers.

        Args:
            found: Rows of the page, and one more if there is any.
            shown: How a row looks from outside.
            place: Its place in the list, of numbers and texts.
        """
        rows = found[: self.limit]
        more = place(rows[-1]) if len(found) > self.limit else None
        return self.around([shown(row) for row in rows], more)

    def around(
        self, items: list[Any], more: list[Any] | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """As `answer`, for items that are ready; `more` is the place of the last row if there are others behind it."""
        if more is None:
            return {"items": items, "next_cursor": None, "has_more": False}, {}
        cursor = signing.dumps([self._list, more], salt=_SALT)
        address = f"{self._path}?{urlencode({**self._given, 'cursor': cursor})}"
        link = {"Link": f'<{address}>; rel="next"'}
        return {"items": items, "next_cursor": cursor, "has_more": True}, link

    def _read(self, text: str) -> list[Any]:
        try:
            if len(text) > _LONGEST:
                raise signing.BadSignature
            of_list, place = signing.loads(text, salt=_SALT)
        except signing.BadSignature:
            raise _refused("is none of this server; start from the first page") from None
        if of_list != self._list:
            raise _refused("is of a list with other filters; start from the first page")
        return list(place)


def _refused(reason: str) -> Problem:
    fault = InvalidParameter("cursor", "invalid_cursor", reason)
    return Problem("invalid_cursor", f"'cursor' {reason}.", errors=[fault])
