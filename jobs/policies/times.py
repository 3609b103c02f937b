"""Times as text: strict RFC 3339 in, UTC with Z out.

Owns the only reader of times from outside. Knows nothing of schedules or of local time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

from jobs.errors import InvalidField

MIN_YEAR, MAX_YEAR = 1970, 2100

# [0-9], never \d, which takes digits of every script. datetime.fromisoformat takes week dates, 20260101, a comma
# and times without offset; strptime takes one-digit fields. So the form is fixed here.
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)


def parse_time(text: object, pointer: str) -> datetime:
    """The moment that an RFC 3339 text with offset names, as aware UTC.

    Digits beyond microseconds are cut. A second of 60 is refused: no clock here can show one.

    Raises:
        InvalidField: At `pointer`; code `wrong_type`, `invalid_time`, `offset_missing` (the server's zone is never
            guessed) or `out_of_range` (the moment in UTC must lie in the years 1970 to 2100).

    >>> parse_time("2026-12-01T00:00:00+01:00", "/due_at")
    datetime.datetime(2026, 11, 30, 23, 0, tzinfo=datetime.timezone.utc)
    >>> parse_time("2026-12-01T00:00:00", "/due_at")
    Traceback (most recent call last):
    ...
    jobs.errors.InvalidField: /due_at: needs an offset such as Z or +01:00
    """
    if not isinstance(text, str):
        raise InvalidField(pointer, "wrong_type", "must be a text such as 2026-12-01T09:30:00Z")
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise InvalidField(
            pointer, "invalid_time", "must be an RFC 3339 time such as 2026-12-01T09:30:00Z"
        )
    fraction, offset = found[7] or "", found[8]
    if offset is None:
        raise InvalidField(pointer, "offset_missing", "needs an offset such as Z or +01:00")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    microsecond = int(fraction[:6].ljust(6, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=_zone(offset))
        moment = local.astimezone(UTC)
    except ValueError as fault:
        raise InvalidField(pointer, "invalid_time", f"is not a time: {fault}") from None
    except OverflowError:  # year 1 or 9999 moved over the edge by its offset
        moment = datetime.max.replace(tzinfo=UTC)
    if not MIN_YEAR <= moment.year <= MAX_YEAR:
        raise InvalidField(
            pointer, "out_of_range", f"must lie in the years {MIN_YEAR} to {MAX_YEAR}"
        )
    return moment


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with Z; microseconds only when there are any.

    Raises:
        ValueError: `moment` is naive.

    >>> format_time(datetime(2026, 12, 1, 9, 30, tzinfo=UTC))
    '2026-12-01T09:30:00Z'
    """
    if moment.tzinfo is None:
        raise ValueError("a time without zone cannot be written as UTC")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _zone(offset: str) -> timezone:
    if offset in ("Z", "z"):
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError("offset must be from -23:59 to +23:59")
    size = timedelta(hours=hours, minutes=minutes)
    return timezone(-size if offset[0] == "-" else size)
