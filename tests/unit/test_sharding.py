"""Shards, job ids and quotas: the same everywhere, evenly spread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policies.sharding import (
    bucket_of,
    fair_quota,
    new_job_id,
    place_job,
    shard_of,
    shard_of_id,
)

SHARDS = 64
KEY_FORMS = [
    "k{}",
    "order-{}",
    "order-{:06d}",
    "invoice-{}-charge",
    "a1/2026-12-01/{}",
    "{}",
    "クーポン{}号",
]
ROOT = Path(__file__).parents[2]

PLACE_ALL = """
import json, sys
from jobs.policies.sharding import place_job
forms, shards = json.loads(sys.argv[1])
print(json.dumps([
    place_job(tenant_id=7, request_key=form.format(n), spread=shards, shards=shards, unix_ms=1, rand_b=n)[1]
    for form in forms for n in range(1, 1001)
]))
"""


def stored_shards() -> list[int]:
    return [
        shard_of(tenant_id=7, key=form.format(n).encode(), spread=SHARDS, shards=SHARDS)
        for form in KEY_FORMS
        for n in range(1, 1001)
    ]


@pytest.mark.parametrize("seed", ["0", "1", "424242"])
def test_kf20_processes_with_other_hash_seeds_agree_with_the_stored_shard(seed: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", PLACE_ALL, json.dumps([KEY_FORMS, SHARDS])],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(told.stdout) == stored_shards()


@pytest.mark.parametrize("form", KEY_FORMS)
@pytest.mark.parametrize("tenant_id", [1, 2, 7, 2**40])
def test_kf20_a_thousand_keys_give_each_shard_at_least_half_its_fair_share(
    form: str, tenant_id: int
) -> None:
    keys = [form.format(n).encode() for n in range(1, 1001)]
    filled = Counter(
        shard_of(tenant_id=tenant_id, key=key, spread=SHARDS, shards=SHARDS) for key in keys
    )
    assert set(filled) == set(range(SHARDS))
    assert min(filled.values()) >= 1000 / SHARDS / 2


def test_kf20_the_formula_is_pinned_for_jobs_that_are_stored_already() -> None:
    pinned = {
        (1, "k1", 64): 29,
        (1, "order-1", 8): 42,
        (2, "", 64): 6,
        (3, "a-b", 16): 4,
        (3, "2026-12-01T00:00:00Z", 16): 60,
        (2**40, "クーポン12", 64): 54,
    }
    told = {
        (tenant_id, key, spread): shard_of(
            tenant_id=tenant_id, key=key.encode(), spread=spread, shards=SHARDS
        )
        for tenant_id, key, spread in pinned
    }
    assert told == pinned


@given(
    tenant_id=st.integers(1, 2**63 - 1),
    start=st.integers(0, 10**20),
    count=st.integers(1, 300),
    spread=st.integers(1, SHARDS),
    form=st.sampled_from(KEY_FORMS),
)
@settings(deadline=None)
def test_keys_that_count_up_fill_the_shards_of_the_tenant_evenly(
    tenant_id: int, start: int, count: int, spread: int, form: str
) -> None:
    start = min(start, 10**18 - 301)  # beyond it a key counts up in 18 digits and rolls over once
    filled = Counter(
        shard_of(tenant_id=tenant_id, key=form.format(n).encode(), spread=spread, shards=SHARDS)
        for n in range(start, start + count)
    )
    assert set(filled) <= set(range(SHARDS))
    assert len(filled) <= spread
    counts = [*filled.values(), *[0] * (spread - len(filled))]
    assert all(abs(jobs - count / spread) < 2 for jobs in counts)


@given(
    key=st.binary(max_size=300) | st.from_regex(rb"\A[0-9a-f-]{0,40}\Z"),
    tenant_id=st.integers(0, 2**63 - 1),
    shards=st.integers(1, 4096),
    data=st.data(),
)
@settings(deadline=None)
def test_any_key_has_one_shard_inside_the_tenants_part(
    key: bytes, tenant_id: int, shards: int, data: st.DataObject
) -> None:
    spread = data.draw(st.integers(1, shards))
    first = shard_of(tenant_id=tenant_id, key=b"", spread=1, shards=shards)
    shard = shard_of(tenant_id=tenant_id, key=key, spread=spread, shards=shards)
    assert (shard - first) % shards < spread


def test_a_key_of_a_million_digits_has_a_shard() -> None:
    assert 0 <= shard_of(tenant_id=1, key=b"9" * 10**6, spread=64, shards=64) < 64


def test_random_keys_reach_every_shard() -> None:
    filled = Counter(
        shard_of(tenant_id=3, key=str(uuid4()).encode(), spread=SHARDS, shards=SHARDS)
        for _ in range(6400)
    )
    assert len(filled) == SHARDS  # 100 expected on each: none at all has a chance below 10**-40
    assert max(filled.values()) < 200


def test_keys_in_steps_of_the_number_of_shards_do_not_meet_in_one_shard() -> None:
    filled = Counter(
        shard_of(tenant_id=3, key=b"order-%d" % (64 * n), spread=SHARDS, shards=SHARDS)
        for n in range(1000)
    )
    assert len(filled) > SHARDS // 2
    assert max(filled.values()) < 50


def test_small_tenants_share_the_shards_evenly() -> None:
    filled = Counter(
        shard_of(tenant_id=tenant_id, key=b"k", spread=1, shards=SHARDS)
        for tenant_id in range(1, 1001)
    )
    assert min(filled.values()) >= 1000 / SHARDS / 2
    assert len(filled) == SHARDS


@pytest.mark.parametrize(("spread", "shards"), [(0, 64), (65, 64), (1, 0), (1, 4097), (-1, 64)])
def test_a_spread_outside_the_shards_is_refused(spread: int, shards: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to"):
        shard_of(tenant_id=1, key=b"k", spread=spread, shards=shards)


@given(st.integers(0, 4095), st.integers(0, 2**48 - 1), st.integers(0, 2**62 - 1))
def test_a_job_id_is_a_version_7_uuid_that_carries_its_shard(
    shard: int, unix_ms: int, rand_b: int
) -> None:
    job_id = new_job_id(shard=shard, unix_ms=unix_ms, rand_b=rand_b)
    assert job_id.version == 7
    assert job_id.variant == "specified in RFC 4122"
    assert shard_of_id(job_id) == shard
    assert job_id.int >> 80 == unix_ms
    assert job_id.int & (2**62 - 1) == rand_b
    assert shard_of_id(UUID(str(job_id))) == shard


def test_job_ids_sort_by_the_time_of_their_creation() -> None:
    earlier = new_job_id(shard=4095, unix_ms=1000, rand_b=2**62 - 1)
    later = new_job_id(shard=0, unix_ms=1001, rand_b=0)
    assert earlier < later
    assert str(earlier) < str(later)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard": 4096},
        {"shard": -1},
        {"unix_ms": 2**48},
        {"unix_ms": -1},
        {"rand_b": 2**62},
        {"rand_b": -1},
    ],
    ids=str,
)
def test_a_part_that_does_not_fit_into_a_job_id_is_refused(wrong: dict[str, int]) -> None:
    parts = {"shard": 0, "unix_ms": 0, "rand_b": 0, **wrong}
    with pytest.raises(ValueError, match="must fit into"):
        new_job_id(**parts)


@pytest.mark.parametrize("version", [1, 4, 5, 6, 8])
def test_an_id_of_another_version_carries_no_shard(version: int) -> None:
    alien = UUID(int=version << 76 | 5 << 64 | 0b10 << 62)
    with pytest.raises(ValueError, match="version 7"):
        shard_of_id(alien)


def test_an_id_of_another_variant_carries_no_shard() -> None:
    with pytest.raises(ValueError, match="version 7"):
        shard_of_id(UUID(int=7 << 76 | 0b11 << 62))
    with pytest.raises(ValueError, match="version 7"):
        shard_of_id(UUID(int=0))


def place(request_key: str | None, rand_b: int, tenant_id: int = 5) -> tuple[UUID, int]:
    return place_job(
        tenant_id=tenant_id,
        request_key=request_key,
        spread=64,
        shards=64,
        unix_ms=9,
        rand_b=rand_b,
    )


def test_the_same_request_key_is_placed_in_the_same_shard_whatever_the_id() -> None:
    placed = [place("invoice-8812-charge", rand_b) for rand_b in range(100)]
    assert len({shard for _, shard in placed}) == 1
    assert len({job_id for job_id, _ in placed}) == 100
    assert all(shard_of_id(job_id) == shard for job_id, shard in placed)


def test_without_a_request_key_the_random_bits_place_the_job() -> None:
    step = 2**62 // 6400
    filled = Counter(place(None, n * step)[1] for n in range(6400))
    assert len(filled) == SHARDS
    assert all(shard_of_id(place(None, n)[0]) == place(None, n)[1] for n in range(100))


def test_an_empty_request_key_is_a_key() -> None:
    assert place("", 1)[1] == place("", 2)[1]


def test_a_bucket_is_the_minute_in_utc() -> None:
    due_at = datetime(
        2026, 12, 1, 0, 29, 59, 999_999, tzinfo=timezone(timedelta(hours=5, minutes=30))
    )
    assert bucket_of(due_at) == datetime(2026, 11, 30, 18, 59, tzinfo=UTC)
    assert bucket_of(due_at).tzinfo is UTC
    with pytest.raises(ValueError, match="time zone"):
        bucket_of(due_at.replace(tzinfo=None))


@given(st.integers(0, 4096), st.lists(st.text(max_size=5), min_size=1, max_size=80, unique=True))
def test_the_quotas_of_all_live_processes_add_up_and_differ_by_one_at_most(
    shards: int, live: list[str]
) -> None:
    quotas = {name: fair_quota(shards=shards, live=live, me=name) for name in live}
    assert sum(quotas.values()) == shards
    assert max(quotas.values()) - min(quotas.values()) <= 1
    by_name = [quotas[name] for name in sorted(live)]
    assert by_name == sorted(by_name, reverse=True)


def test_quotas_do_not_depend_on_order_or_repetition_of_the_list() -> None:
    assert fair_quota(shards=64, live=["b", "a", "c", "a"], me="a") == 22
    assert fair_quota(shards=64, live=["c", "b", "a"], me="a") == 22


def test_a_process_that_is_not_live_should_own_no_shard() -> None:
    assert fair_quota(shards=64, live=["a", "b"], me="c") == 0
    assert fair_quota(shards=64, live=[], me="a") == 0
