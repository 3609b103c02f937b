"""The tag of a version, and the version that a caller has seen."""

from __future__ import annotations

import re

from rest_framework.request import Request

from jobs.api.errors import Problem

_ETAG = re.compile(r'"v([1-9][0-9]{0,8})"')


def etag(number: int) -> str:
    """The tag of a version."""
    return f'"v{number}"'


def wanted_number(request: Request, current: int, what: str) -> int:
    """The version that the caller has seen.

    Args:
        request: With If-Match.
        current: The version in force.
        what: Whose versions they are.

    Raises:
        Problem: version_required or version_mismatch.
    """
    given = request.META.get("HTTP_IF_MATCH")
    if given is None:
        raise Problem(
            "version_required", f"Send If-Match with the ETag that you saw ({etag(current)})."
        )
    tag = _ETAG.fullmatch(given.strip())
    if tag is None or int(tag[1]) != current:
        raise mismatch(current, what)
    return int(tag[1])


def mismatch(current: int, what: str) -> Problem:
    """The refusal of a version that is not in force any more."""
    tag = etag(current)
    return Problem(
        "version_mismatch", f"The {what} is at {tag} now.", headers={"ETag": tag}, current=tag
    )
