"""API tokens: how they are made, read and compared.

Owns the text form `dk_<live|test>_<8 id>_<43 secret><6 checksum>` in base 62. Storing, scopes and expiry are elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = 8, 43, 6
_FORM = re.compile(
    rf"dk_(?:live|test)_([0-9A-Za-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})"
    rf"([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A new token. `text` is shown to a person once and stored nowhere, so it stays out of repr and logs.

    Attributes:
        text: The whole token.
        id: Public part, the key of the stored row.
        secret_hash: SHA-256 of the secret, 32 bytes.
        last4: End of the text, by which people tell tokens apart; part of the checksum, so no
            character of the secret.
    """

    text: str = field(repr=False)
    id: str
    secret_hash: bytes = field(repr=False)
    last4: str


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A presented token of the right form: the row to look up and the hash to compare with it."""

    id: str
    secret_hash: bytes = field(repr=False)


def mint(
    kind: Literal["live", "test"], *, randbytes: Callable[[int], bytes] = secrets.token_bytes
) -> MintedToken:
    """A new token with a 256-bit secret.

    Args:
        kind: Shown in the text, so that a test token is never taken for a real one.
        randbytes: Gives n random bytes.

    Raises:
        ValueError: Another kind.
    """
    if kind not in ("live", "test"):
        raise ValueError("a token is of the kind live or test")
    # 128 bits folded into 8 characters: the bias is far below one in 2**80. 62**43 is just above 2**256.
    public = _base62(int.from_bytes(randbytes(16), "big"), _ID_LENGTH)
    secret = _base62(int.from_bytes(randbytes(32), "big"), _SECRET_LENGTH)
    body = f"dk_{kind}_{public}_{secret}"
    text = body + _checksum(body)
    return MintedToken(text, public, _hash(secret), text[-4:])


def parse(text: object) -> ParsedToken:
    """The parts of a presented token, once its form and checksum are right: typing errors cost no query.

    Raises:
        ValueError: Not a token, or damaged. The message never repeats the text.
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("not an API token")
    if found[3] != _checksum(found.string[: found.start(3)]):
        raise ValueError("the API token is damaged: its checksum does not match")
    return ParsedToken(found[1], _hash(found[2]))


def matches(stored: bytes, presented: bytes) -> bool:
    """True when both hashes are equal; takes the same time wherever they differ."""
    return hmac.compare_digest(stored, presented)


def _hash(secret: str) -> bytes:
    # A fast hash is enough: 256 random bits cannot be tried out, so a slow one would only slow every request down.
    return hashlib.sha256(secret.encode("ascii")).digest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    """Exactly `length` digits, first digit most significant; a larger number loses its upper digits."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
