"""Finding jobs by what a person has in hand: an id, the beginning of one, or a request key. Always by an index."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from jobs.conf import conf
from jobs.database import rows
from jobs.models import Tenant
from jobs.policies.sharding import shard_of
from jobs.queries.lists import bounded_reading

MIN_PREFIX = (
    8  # hex digits; ids begin with their time of creation, so fewer would name hours of jobs
)

_HEX = re.compile(r"[0-9a-f]+")

BY_ID = "select id from jobs_job where id = %(id)s"
BY_PREFIX = "select id from jobs_job where id between %(low)s and %(high)s order by id desc limit %(limit)s"
# The shard follows from tenant and key: one probe of the unique key per tenant, where the key alone has no index.
BY_KEY = """
select job.id from unnest(%(tenants)s::int[], %(shards)s::smallint[]) as place(tenant, shard)
cross join lateral (select id from jobs_job
    where shard = place.shard and tenant_id = place.tenant and request_key = %(key)s limit 1) job
limit %(limit)s"""


class Found(NamedTuple):
    """Ids of the jobs, at most as many as asked for, and in which ways they were sought."""

    job_ids: list[UUID]
    tried: list[str]  # "id", "prefix", "request_key"


def find_jobs(text: str, *, tenants: Iterable[Tenant], limit: int = 50) -> Found:
    """Jobs that `text` names: as an id, as its first 8 or more hex digits, and always as a request key.

    Args:
        text: As typed; storable text without NUL.
        tenants: In whose jobs a request key is looked up.
        limit: Most ids to return.
    """
    ids: list[UUID] = []
    tried = []
    digits = _digits(text)
    if len(digits) == 32:
        tried.append("id")
        ids = [row[0] for row in rows(BY_ID, {"id": UUID(digits)})]
    elif MIN_PREFIX <= len(digits) < 32:
        tried.append("prefix")
        span = {"low": UUID(digits.ljust(32, "0")), "high": UUID(digits.ljust(32, "f"))}
        ids = [row[0] for row in rows(BY_PREFIX, {**span, "limit": limit})]
    tried.append("request_key")
    places = {tenant.pk: _shard(tenant, text) for tenant in tenants}
    key = {"tenants": list(places), "shards": list(places.values()), "key": text, "limit": limit}
    by_key = [row[0] for row in rows(BY_KEY, key)] if places else []
    return Found([*ids, *(found for found in by_key if found not in ids)][:limit], tried)


def _digits(text: str) -> str:
    """The hex digits of `text` if it is written like an id or the beginning of one, else ""."""
    plain = text.strip().lower().removeprefix("urn:uuid:").strip("{}").replace("-", "")
    return plain if _HEX.fullmatch(plain) else ""


def _shard(tenant: Tenant, key: str) -> int:
    shards = conf().shards
    spread = min(max(tenant.shard_spread, 1), shards)
    return shard_of(tenant_id=tenant.pk, key=key.encode(), spread=spread, shards=shards)


# Waiting and owned jobs first: they are few, or one is found at once.
LANE_USED = """
select exists (select from jobs_lease where shard = any(%(shards)s) and lane_id = %(lane)s)
    or exists (select from jobs_dueentry where shard = any(%(shards)s) and lane_id = %(lane)s)
    or exists (select from jobs_job where shard = any(%(shards)s) and lane_id = %(lane)s)"""


def is_lane_used(lane_id: int) -> bool:
    """Whether any job, finished ones too, names this lane. Without an index: for the rare question of a person.

    Raises:
        ReadTimedOut: There are so many jobs that no answer was found in time.
    """
    with bounded_reading():
        return bool(rows(LANE_USED, {"shards": list(range(conf().shards)), "lane": lane_id})[0][0])
