"""What people without the right to payloads see instead of secrets.

Owns which keys are secret and how their values are hidden, in JSON and in error texts. Who may see what is decided
elsewhere.
"""

from __future__ import annotations

import re

MASK = "***"
MASK_KEYS = ("password", "secret", "token", "authorization", "card", "iban", "ssn")

_SECRET = re.compile("|".join(MASK_KEYS), re.IGNORECASE)
# A word with a secret key in it, then ":" or "=", then a value: `password=x`, `"token": "x y"`, `Authorization: Bearer
# x`. It begins at the start of a word and its parts are possessive, or each letter of a long word would begin a search.
_NAMED_SECRET = re.compile(
    rf"""((?<![\w.-])(?=[\w.-]*?(?:{_SECRET.pattern}))[\w.-]++["']?+\s*+[:=]\s*+)"""
    r"""(?:"[^"\n]*+"|'[^'\n]*+'|(?:Bearer|Basic)\s++[^\s,;]++|[^\s,;&"'}\])]++)""",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """True when values under this key are masked: it holds one of `MASK_KEYS`, in upper or lower case.

    >>> is_secret("cardNumber"), is_secret("amount")
    (True, False)
    """
    return _SECRET.search(key) is not None


def mask_values(value: object) -> object:
    """A copy of a JSON value in which everything under a secret key, at any depth, is replaced by `MASK`.

    Args:
        value: Of bounded depth, as `check_payload` and `stored_json` pass it.

    >>> mask_values({"card": {"number": "4111"}, "items": [{"apiToken": None, "sku": 7}]})
    {'card': '***', 'items': [{'apiToken': '***', 'sku': 7}]}
    """
    match value:
        case dict():
            return {
                key: MASK if is_secret(str(key)) else mask_values(member)
                for key, member in value.items()
            }
        case list():
            return [mask_values(member) for member in value]
    return value


def unmask(value: object, stored: object) -> object:
    """A copy in which what is masked has again what is stored at its place: somebody edited what `mask_values` gave.

    Where nothing is stored at that place, or a list has another length, the mask stays.

    >>> unmask({"card": "***", "amount": 8}, {"card": "4111", "amount": 7})
    {'card': '4111', 'amount': 8}
    """
    match value, stored:
        case dict(), dict():
            return {
                key: stored[key]
                if member == MASK and key in stored and is_secret(str(key))
                else unmask(member, stored.get(key))
                for key, member in value.items()
            }
        case list(), list() if len(value) == len(stored):
            return [unmask(one, other) for one, other in zip(value, stored, strict=True)]
    return value


def is_masked(value: object) -> bool:
    """True when the mask stands anywhere under a secret key.

    >>> is_masked({"rows": [{"pin": 1, "token": "***"}]})
    True
    """
    match value:
        case dict():
            return any(
                (member == MASK and is_secret(str(key))) or is_masked(member)
                for key, member in value.items()
            )
        case list():
            return any(is_masked(member) for member in value)
    return False


def mask_text(text: str) -> str:
    """An error text in which values that follow a secret name and ":" or "=" are replaced by `MASK`.

    A help and no promise: a secret without its name in front of it stays. Time is linear in the length.

    >>> mask_text("login failed: user=ann password=hunter2, Authorization: Bearer abc.def")
    'login failed: user=ann password=***, Authorization: ***'
    """
    return _NAMED_SECRET.sub(rf"\1{MASK}", text)


def mask_texts(value: object) -> object:
    """A copy of a JSON value in which every text is masked as an error text, at any depth.

    Args:
        value: Of bounded depth.
    """
    match value:
        case str():
            return mask_text(value)
        case dict():
            return {key: mask_texts(member) for key, member in value.items()}
        case list():
            return [mask_texts(member) for member in value]
    return value
