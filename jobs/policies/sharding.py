"""Which shard a job belongs to, and which shards a process should own.

Owns the hash from tenant and key to shard, the job id that carries it, and the minute bucket. Shards are stored with
the job: changing a formula here changes nothing for stored jobs, but breaks `unique request key` for keys in use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from uuid import UUID

MAX_SHARDS = 4096  # the 12 rand_a bits of a version 7 id

_WORD = 1 << 64
# 2**64 times the fractional part of the golden ratio and of the roots of 2, 3 and 7. Multiples of such a number, cut to
# 64 bits, fall into the largest gap that earlier ones left (three-distance theorem), whatever the stride.
_STEPS = (0x9E3779B97F4A7C15, 0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0xA54FF53A5F1D36F1)
_LOW_DIGITS = re.compile(rb"[0-9]{1,6}(?![0-9])")


def shard_of(*, tenant_id: int, key: bytes, spread: int, shards: int) -> int:
    """Shard of a job: the tenant's first shard plus the key's place among the tenant's `spread` shards, modulo `shards`.

    Depends on the arguments only, never on the hash seed of a process. The text of the key is hashed (BLAKE2b); up to
    four of its decimal numbers, counted from the end, move the place on by irrational steps instead of being hashed.

    What is guaranteed: n keys that differ in one number counting up (k1, k2 …, order-1-receipt, order-2-receipt …),
    by any stride found in practice, give each of `spread` shards n / spread jobs, give or take about 6. A plain hash
    would not do: 1,000 random keys on 64 shards leave some shard below half its fair share in 6 of 10 cases. Keys
    without such a number (random ids) are spread like a plain hash, no better. Tenants with neighbouring ids start in
    shards far apart.

    Args:
        tenant_id: Primary key of the tenant.
        key: Request key in UTF-8, or the random bits of the job id.
        spread: How many shards the tenant uses, 1 to `shards`.
        shards: Shards of the installation, 1 to 4096.

    Raises:
        ValueError: `spread` or `shards` is out of range.

    >>> [shard_of(tenant_id=7, key=b"order-%d" % n, spread=64, shards=64) for n in (1, 2, 3, 4)]
    [57, 33, 8, 48]
    >>> {shard_of(tenant_id=7, key=b"order-%d" % n, spread=1, shards=64) for n in range(100)}
    {20}
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"shards must be from 1 to {MAX_SHARDS}, got {shards}")
    if not 1 <= spread <= shards:
        raise ValueError(f"spread must be from 1 to {shards}, got {spread}")
    first = _scale(tenant_id * _STEPS[0], shards)
    return (first + _scale(_place(key), spread)) % shards if spread > 1 else first


def new_job_id(*, shard: int, unix_ms: int, rand_b: int) -> UUID:
    """Version 7 id (RFC 9562) whose 12 rand_a bits are the shard, so that a lookup by id alone asks one shard.

    Args:
        shard: 0 to 4095.
        unix_ms: Milliseconds since 1970, 48 bits: ids sort by creation, which keeps index pages warm.
        rand_b: 62 random bits.

    Raises:
        ValueError: An argument does not fit into its bits.

    >>> new_job_id(shard=63, unix_ms=1_796_083_200_000, rand_b=1)
    UUID('01a22fd1-5c00-703f-8000-000000000001')
    """
    for name, number, bits in (
        ("shard", shard, 12),
        ("unix_ms", unix_ms, 48),
        ("rand_b", rand_b, 62),
    ):
        if not 0 <= number < 1 << bits:
            raise ValueError(f"{name} must fit into {bits} bits, got {number}")
    return UUID(int=unix_ms << 80 | 0x7 << 76 | shard << 64 | 0b10 << 62 | rand_b)


def shard_of_id(job_id: UUID) -> int:
    """Shard that a job id carries.

    Raises:
        ValueError: Not a version 7 id, so not one of ours.

    >>> shard_of_id(new_job_id(shard=5, unix_ms=0, rand_b=0))
    5
    """
    if job_id.version != 7:
        raise ValueError("a job id is a version 7 UUID")
    return job_id.int >> 64 & 0xFFF


def place_job(
    *, tenant_id: int, request_key: str | None, spread: int, shards: int, unix_ms: int, rand_b: int
) -> tuple[UUID, int]:
    """Id and shard of a new job.

    The same tenant and request key always give the same shard, which makes the key unique per tenant by a constraint
    inside one shard. Without a key the id's own random bits decide.

    Raises:
        ValueError: A number is out of range, or the key holds a lone surrogate.
    """
    key = rand_b.to_bytes(8, "big") if request_key is None else request_key.encode()
    shard = shard_of(tenant_id=tenant_id, key=key, spread=spread, shards=shards)
    return new_job_id(shard=shard, unix_ms=unix_ms, rand_b=rand_b), shard


def bucket_of(due_at: datetime) -> datetime:
    """Minute of a due time, in UTC: the row of the backlog heat map.

    Raises:
        ValueError: `due_at` is naive.
    """
    if due_at.tzinfo is None:
        raise ValueError("due_at needs a time zone")
    return due_at.astimezone(UTC).replace(second=0, microsecond=0)


def fair_quota(*, shards: int, live: Sequence[str], me: str) -> int:
    """How many shards the process `me` should own: an even part, the remainder to the first by name.

    Processes that see the same `live` list get quotas that add up to `shards`. A process that is not in the list
    (its own record has expired) should own none.

    >>> [fair_quota(shards=64, live=["c", "a", "b"], me=name) for name in "abc"]
    [22, 21, 21]
    """
    names = sorted(set(live))
    if me not in names:
        return 0
    each, left_over = divmod(shards, len(names))
    return each + (names.index(me) < left_over)


def _place(key: bytes) -> int:
    numbers = list(_LOW_DIGITS.finditer(key))[-len(_STEPS) :]
    text, end = [], 0
    place = 0
    for found, step in zip(numbers, reversed(_STEPS[: len(numbers)]), strict=True):
        text += [key[end : found.start()], b"\0"]
        end = found.end()
        place += int(found.group()) * step
    text.append(key[end:])
    return place + int.from_bytes(blake2b(b"".join(text), digest_size=8).digest(), "big")


def _scale(place: int, size: int) -> int:
    """0 to size - 1, from the upper bits of `place` modulo 2**64."""
    return (place % _WORD) * size >> 64
