"""How much waits: counts of due entries that stop at a limit."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.database import rows

# No index begins with the tenant, and a shard holds the work of many: a loose scan jumps from one kind of work (route,
# lane, priority) to the next and asks each for this tenant's entries. What is parked has an index by tenant.
WAITING_OF_TENANT = """
select count(*) from (
    select from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
        with recursive kind as (
            (select route_id, lane_id, priority from jobs_dueentry entry
            where entry.shard = mine.shard and not parked order by route_id, lane_id, priority limit 1)
            union all
            select behind.* from kind as last cross join lateral (
                select route_id, lane_id, priority from jobs_dueentry entry
                where entry.shard = mine.shard and not parked
                    and (entry.route_id, entry.lane_id, entry.priority) > (last.route_id, last.lane_id, last.priority)
                order by route_id, lane_id, priority limit 1) behind
        )
        select from kind cross join lateral (
            select from jobs_dueentry entry
            where entry.shard = mine.shard and not parked and entry.route_id = kind.route_id
                and entry.lane_id = kind.lane_id and entry.priority = kind.priority and entry.tenant_id = %(tenant)s
            limit %(limit)s) own
        union all
        (select from jobs_dueentry entry
        where entry.shard = mine.shard and parked and entry.tenant_id = %(tenant)s limit %(limit)s)) found
    limit %(limit)s) counted"""


def count_waiting(*, tenant_id: int, shards: Sequence[int], limit: int) -> int:
    """Waiting jobs of a tenant, due or not; at most `limit` are counted.

    Args:
        tenant_id: The tenant.
        shards: Those it has jobs in.
        limit: Where counting stops.
    """
    params = {"tenant": tenant_id, "shards": list(shards), "limit": limit}
    ((count,),) = rows(WAITING_OF_TENANT, params)
    return int(count)
