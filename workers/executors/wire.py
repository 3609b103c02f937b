"""The talk between a worker and the process of a handler: JSON objects, each after its length. Nothing is unpickled."""

from __future__ import annotations

import json
import socket
import struct
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.services.outcomes import AttemptOutcome, Ending
from jobs.transitions.take import Taken

HEADER = struct.Struct("!I")
MOST_BYTES = 256 << 20
IDS = ("lease_id", "job_id")


class Gone(Exception):
    """The other end is closed, or talks nonsense."""


def frame(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(text)) + text


def receive(link: socket.socket) -> dict[str, Any]:
    """Wait for the next message.

    Raises:
        Gone: There will be none.
    """
    (size,) = HEADER.unpack(_exactly(link, HEADER.size))
    if size > MOST_BYTES:
        raise Gone(f"a message of {size} bytes")
    try:
        message = json.loads(_exactly(link, size))
    except ValueError as error:
        raise Gone("no JSON") from error
    if not isinstance(message, dict):
        raise Gone("no object")
    return message


def pack_taken(taken: Taken) -> dict[str, Any]:
    """An attempt as JSON."""
    told = {**taken._asdict(), **{name: str(getattr(taken, name)) for name in IDS}}
    return {**told, "fire_at": taken.fire_at and taken.fire_at.isoformat()}


def unpack_taken(told: dict[str, Any]) -> Taken:
    """The attempt again."""
    ids = {name: UUID(told[name]) for name in IDS}
    fire_at = told["fire_at"] and datetime.fromisoformat(told["fire_at"])
    return Taken(**{**told, **ids, "fire_at": fire_at})


def pack_outcome(outcome: AttemptOutcome) -> dict[str, Any]:
    """An end as JSON; everything in it was cleaned when it was made."""
    return {
        "ending": outcome.ending.value,
        "result": outcome.result,
        "error": outcome.error,
        "cause": outcome.cause,
        "permanent": outcome.permanent,
        "delay_seconds": outcome.delay_seconds,
        "reason": outcome.reason,
        "by_handler": outcome.by_handler,
    }


def unpack_outcome(taken: Taken, told: dict[str, Any]) -> AttemptOutcome:
    """The end again.

    Raises:
        Gone: It is none.
    """
    try:
        return AttemptOutcome(taken=taken, **{**told, "ending": Ending(told["ending"])})
    except (KeyError, TypeError, ValueError) as error:
        raise Gone("no outcome") from error


def _exactly(link: socket.socket, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        try:
            piece = link.recv(min(size - len(read), 1 << 20))
        except OSError as error:
            raise Gone(str(error)) from error
        if not piece:
            raise Gone("closed")
        read += piece
    return bytes(read)
