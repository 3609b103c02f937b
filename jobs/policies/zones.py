"""Time zones: what the clocks of a zone do, from the pinned zone data of the `tzdata` package and from nothing else.

Owns zone key → rules and the moments at which its clocks are moved. The operating system's copy is never read: two hosts
would disagree about it. Instants are whole seconds since 1970 in UTC; local times are seconds since 1970 on the local clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata

from jobs.errors import InvalidField

ZONE_DATA = str(tzdata.IANA_VERSION)
PROBE_SECONDS = 3 * 86_400  # no clock is moved twice in so short a time (a test asks all zones)
WIDEST_SECONDS = 86_400  # the most by which a clock has been moved


class Shift(NamedTuple):
    """A clock is moved: at instant `at` its offset from UTC changes from `before` to `after`, in seconds.

    Ahead (a gap), the local times from at + before up to at + after are never shown. Back (an overlap), those from
    at + after up to at + before are shown twice.
    """

    at: int
    before: int
    after: int


@cache
def zone_keys() -> frozenset[str]:
    """All keys of the zone data."""
    return frozenset(files(tzdata).joinpath("zones").read_text("utf-8").split())


def parse_zone(value: object, pointer: str = "/timezone") -> str:
    """A zone key as it stands in the zone data.

    Raises:
        InvalidField: At `pointer`; code `unknown_timezone`.

    >>> parse_zone("Europe/Berlin")
    'Europe/Berlin'
    """
    if not isinstance(value, str) or value not in zone_keys():
        raise InvalidField(
            pointer, "unknown_timezone", "must be the name of a time zone such as Europe/Berlin"
        )
    return value


@cache
def zone(key: str) -> ZoneInfo:
    """The rules of a zone, by a key of `zone_keys`."""
    with files("tzdata.zoneinfo").joinpath(*key.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=key)


def offset(key: str, instant: int) -> int:
    """Seconds by which the zone's clocks are ahead of UTC at an instant.

    >>> offset("Asia/Kolkata", 0)
    19800
    """
    local = datetime.fromtimestamp(instant, zone(key))
    return round((local.replace(tzinfo=UTC) - local).total_seconds())


def shifts(key: str, begin: int, end: int) -> list[Shift]:
    """When the clocks of a zone are moved in (begin, end], ascending.

    >>> shifts("Europe/Berlin", 1_750_000_000, 1_780_000_000)
    [Shift(at=1761440400, before=7200, after=3600), Shift(at=1774746000, before=3600, after=7200)]
    """
    years = range(_year(begin), _year(end) + 1)
    return [one for year in years for one in _of_year(key, year) if begin < one.at <= end]


def _year(instant: int) -> int:
    return datetime.fromtimestamp(instant, UTC).year


@lru_cache(maxsize=4096)
def _of_year(key: str, year: int) -> tuple[Shift, ...]:
    first = round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) - 1
    last = round(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp()) - 1
    return tuple(_found(key, first, last))


def _found(key: str, begin: int, end: int) -> Iterator[Shift]:
    probes = [*range(begin, end, PROBE_SECONDS), end]
    for low, high in pairwise(probes):
        before, after = offset(key, low), offset(key, high)
        if before == after:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if offset(key, middle) == before:
                low = middle
            else:
                high = middle
        yield Shift(high, before, after)
