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

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 times the fractional part of the golden ratio
_LAST_NUMBER = re.compile(rb"(.*[^0-9]|)([0-9]+)([^0-9]*)", re.DOTALL)
_NUMBER_DIGITS = 18


def shard_of(*, tenant_id: int, key: bytes, spread: int, shards: int) -> int:
    """Shard of a job: the tenant's first shard plus the place of the key in the tenant's `spread` shards, mod `shards`.

    Depends on the arguments only, never on the hash seed of a process.

    Guaranteed: keys that differ in their last number only, and count it up (k1, k2 …; order-1-paid, order-2-paid …),
    fill the `spread` shards evenly: any run of n of them puts n / spread jobs on each, give or take 2. A plain hash
    would not do: 1,000 hashed keys leave one of 64 shards below half its fair share more often than not. So the last
    number of a key is cut into blocks of `spread`; the block is hashed (BLAKE2b) with the rest of the key, the place
    inside the block is added. Keys in one block never share a shard. All other keys (random ids, numbers in large
    steps, a date at the end) are spread like a plain hash, no better and no worse.

    Args:
        tenant_id: Primary key of the tenant; neighbouring ids start in shards far apart.
        key: Request key in UTF-8, or the random bits of the job id.
        spread: How many shards the tenant uses, 1 to `shards`.
        shards: Shards of the installation, 1 to 4096.

    Raises:
        ValueError: `spread` or `shards` is out of range.

    >>> [shard_of(tenant_id=7, key=b"order-%d" % n, spread=64, shards=64) for n in (1, 2, 3, 64)]
    [55, 56, 57, 21]
    >>> {shard_of(tenant_id=7, key=b"order-%d" % n, spread=1, shards=64) for n in range(100)}
    {20}
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"shards must be from 1 to {MAX_SHARDS}, got {shards}")
    if not 1 <= spread <= shards:
        raise ValueError(f"spread must be from 1 to {shards}, got {spread}")
    return (_first_shard(tenant_id, shards) + _place_of(key, spread)) % shards


def shards_of(*, tenant_id: int, spread: int, shards: int) -> list[int]:
    """All shards that `shard_of` can give for this tenant, sorted.

    Args:
        tenant_id: Primary key of the tenant.
        spread: How many shards the tenant uses; more than there are means all.
        shards: Shards of the installation.

    >>> shards_of(tenant_id=7, spread=3, shards=64)
    [20, 21, 22]
    """
    first = _first_shard(tenant_id, shards)
    return sorted((first + place) % shards for place in range(min(spread, shards)))


def new_job_id(*, shard: int, unix_ms: int, rand_b: int) -> UUID:
    """Version 7 id (RFC 9562) whose 12 rand_a bits are the shard, so that a lookup by id alone asks one shard.

    Args:
        shard: 0 to 4095.
        unix_ms: Milliseconds since 1970, 48 bits: ids sort by creation, which keeps index pages warm.
        rand_b: 62 random bits.

    Raises:
        ValueError: An argument does not fit into its bits.

    >>> new_job_id(shard=63, unix_ms=1_796_083_200_000, rand_b=1)
    UUID('01a22ee6-b000-703f-8000-000000000001')
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


def _first_shard(tenant_id: int, shards: int) -> int:
    # Fibonacci hashing: even for tenant ids that count up.
    return (tenant_id * _GOLDEN) % 2**64 * shards >> 64


def _place_of(key: bytes, spread: int) -> int:
    """0 to `spread` - 1."""
    if spread == 1:
        return 0
    block = place = 0
    if found := _LAST_NUMBER.fullmatch(key):
        digits = found[2][-_NUMBER_DIGITS:]
        block, place = divmod(int(digits), spread)
        key = b"%b#%b" % (key[: found.end(2) - len(digits)], found[3])
    hashed = blake2b(b"%d:%b" % (block, key), digest_size=8).digest()
    return (int.from_bytes(hashed, "big") + place) % spread
