"""unpark: waiting work comes back into the scan's way when its concurrency key has a slot. It stays scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jobs.clock import NOW_SQL
from jobs.database import commits, rows
from jobs.transitions.limits import everywhere

# Keys with waiting work, by a loose scan, and for each as many of its earliest entries as it has free slots.
UNPARK = f"""
with ready as (
    select entry.job_id from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
        with recursive key as (
            (select tenant_id, concurrency_key from jobs_dueentry
            where shard = mine.shard and parked order by tenant_id, concurrency_key limit 1)
            union all
            select behind.* from key as last cross join lateral (
                select tenant_id, concurrency_key from jobs_dueentry
                where shard = mine.shard and parked
                    and (tenant_id, concurrency_key) > (last.tenant_id, last.concurrency_key)
                order by tenant_id, concurrency_key limit 1) behind
        )
        select waiting.job_id from key
        left join jobs_concurrencylimit own on own.tenant_id = key.tenant_id and own.key = key.concurrency_key
        cross join lateral (
            select job_id from jobs_dueentry
            where shard = mine.shard and tenant_id = key.tenant_id and concurrency_key = key.concurrency_key and parked
                and due_at <= {NOW_SQL}
            order by due_at limit greatest(0, coalesce(own.slots, 1) - (select count(*) from jobs_lease
                where shard = any(%(everywhere)s) and tenant_id = key.tenant_id
                    and concurrency_key = key.concurrency_key))) waiting) entry
), locked as (
    select shard, job_id from jobs_dueentry
    where shard = any(%(shards)s) and job_id = any(array(select job_id from ready)) and parked for update skip locked
)
update jobs_dueentry entry set parked = false from locked
where entry.shard = locked.shard and entry.job_id = locked.job_id returning entry.job_id"""


@commits
def unpark_jobs(*, shards: Sequence[int], now: datetime | None = None) -> int:
    """scheduled stays scheduled: due entries that are parked, of each key no more than it has free slots.

    A hint that writes no event: the claim counts again under the lock of the tenant, and parks what came too late.

    Args:
        shards: Shards of this scheduler.
        now: Aware UTC; default is the database clock.

    Returns:
        How many came back.
    """
    params = {"shards": list(shards), "everywhere": everywhere(), "now": now}
    return len(rows(UNPARK, params))
