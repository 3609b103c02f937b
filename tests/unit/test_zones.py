"""Zones: keys, and every moment at which a clock is moved."""

from __future__ import annotations

import os
import random
import struct
from importlib.resources import files
from itertools import pairwise

import pytest
import tzdata

from jobs.errors import InvalidField
from jobs.policies.zones import (
    PROBE_SECONDS,
    WIDEST_SECONDS,
    ZONE_DATA,
    parse_zone,
    shifts,
    zone,
    zone_keys,
)

FIRST, LAST = 0, 2_145_916_800  # 1970 to the end of the explicit transitions
SOME = int(os.environ.get("ZONES") or 60)  # 600 takes all


def written(key: str) -> list[tuple[int, int, int]]:
    """(at, before, after) as they stand in the file itself (RFC 9636, version 2 block), where the offset changes."""
    data = files("tzdata.zoneinfo").joinpath(*key.split("/")).read_bytes()
    size = struct.Struct(">4s1c15x6l")
    head = size.unpack_from(data)
    utc, std, leap, times, types, chars = head[2:]
    start = size.size + times * 5 + types * 6 + chars + leap * 8 + std + utc
    utc, std, leap, times, types, chars = size.unpack_from(data, start)[2:]
    start += size.size
    at = struct.unpack_from(f">{times}q", data, start)
    kinds = struct.unpack_from(f">{times}B", data, start + times * 8)
    offsets = [
        struct.unpack_from(">lbb", data, start + times * 9 + kind * 6)[0] for kind in range(types)
    ]
    all_of = [offsets[0], *(offsets[kind] for kind in kinds)]
    moves = zip(at, all_of, all_of[1:], strict=False)
    return [
        (when, before, after)
        for when, before, after in moves
        if before != after and FIRST < when <= LAST
    ]


def test_f29_every_shift_that_the_zone_data_names_is_found() -> None:
    keys = sorted(zone_keys())
    for key in random.Random(29).sample(keys, min(SOME, len(keys))):
        named = written(key)
        last = named[-1][0] if named else 0
        assert [tuple(one) for one in shifts(key, FIRST, LAST) if one.at <= last] == named, key


def test_f29_no_clock_is_moved_twice_between_two_probes_nor_further_than_is_looked() -> None:
    for key in zone_keys():
        named = written(key)
        assert all(later[0] - one[0] > PROBE_SECONDS for one, later in pairwise(named)), key
        assert all(abs(after - before) <= WIDEST_SECONDS for _, before, after in named), key


def test_shifts_of_windows_add_up() -> None:
    whole = shifts("Africa/Casablanca", FIRST, LAST)
    cuts = [FIRST, whole[3].at - 1, whole[3].at, whole[9].at + 1, LAST]
    parts = [
        one for begin, end in pairwise(cuts) for one in shifts("Africa/Casablanca", begin, end)
    ]
    assert parts == whole


@pytest.mark.parametrize(
    "value",
    ["", "UTC+3", "Europe/Madrid ", "europe/berlin", "Mars/Base", "../UTC", "/UTC", None, 3],
)
def test_kf16_a_zone_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_zone(value)
    assert (refused.value.pointer, refused.value.field_code) == ("/timezone", "unknown_timezone")


def test_zones_come_from_the_pinned_package() -> None:
    assert ZONE_DATA == tzdata.IANA_VERSION
    assert zone("America/Vancouver").key == "America/Vancouver"
    assert {"UTC", "Europe/Berlin", "Etc/GMT+5", "Pacific/Apia"} < zone_keys()
