"""The body of a request: JSON only, of bounded size, read once, an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, BinaryIO, cast

from django.http.request import UnreadablePostError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from jobs.conf import conf
from jobs.errors import InvalidField, PayloadTooLarge, ValidationFailed
from jobs.policies.payloads import parse_json

_CHUNK = 65_536
_DISCARDED = 16 << 20  # bytes of a refused body that are read for its sender's sake


class ApiRequest(Request):
    """A request whose body is read even without Content-Length, where the base class takes it for empty."""

    def _load_stream(self) -> None:
        self._stream = _body_stream(self)


class StrictJSONParser(BaseParser):
    """Reads no more than the limit allows, and parses what can be stored and read back unchanged."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The object in the body.

        Raises:
            PayloadTooLarge: Announced or found to be over the limit. No more than the limit was kept.
            MalformedJson: Not JSON, or JSON that cannot be stored unchanged.
            ValidationFailed: JSON, but no object.
            UnreadablePostError: The body did not arrive whole.
        """
        announced = _announced_bytes((parser_context or {})["request"])
        body = _read(stream, conf().body_max_bytes, announced)
        value = parse_json(body)
        if not isinstance(value, dict):
            raise ValidationFailed([InvalidField("", "wrong_type", "must be an object")])
        return value


def fields_of(request: Request) -> dict[str, Any]:
    """The members of the body, read at the first call. Errors as of `StrictJSONParser.parse`."""
    return cast("dict[str, Any]", request.data)


def _body_stream(request: Request) -> BinaryIO:
    """Where the body comes from.

    A body in chunks has no length, and Django's stream ends at the length; then the server's own stream is read, which
    ends with the body if the server says so.
    """
    meta = request._request.META
    if not meta.get("CONTENT_LENGTH") and meta.get("wsgi.input_terminated"):
        return cast("BinaryIO", meta["wsgi.input"])
    return cast("BinaryIO", request._request)


def _announced_bytes(request: Request) -> int:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isascii() and length.isdigit() else 0


def _read(stream: IO[bytes], limit: int, announced: int) -> bytes:
    body = bytearray()
    if announced <= limit:
        while chunk := _take(stream, min(_CHUNK, limit + 1 - len(body))):
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    _discard(stream, announced)
    raise PayloadTooLarge(f"may have at most {limit} bytes", limit=limit)


def _discard(stream: IO[bytes], announced: int) -> None:
    """Take what is still coming, if it is not too much, and keep none of it.

    Most clients send all before they listen: with the rest unread, the connection breaks and they never see the 413.
    """
    left = _DISCARDED
    while announced <= _DISCARDED and left > 0 and (chunk := _take(stream, _CHUNK)):
        left -= len(chunk)


def _take(stream: IO[bytes], size: int) -> bytes:
    try:
        return stream.read(size)
    except Exception as error:  # each server has classes of its own for chunks that are none
        raise UnreadablePostError(str(error)) from error
