"""What a waiting job competes with: pools and their workers, jobs that hold a limit, due work that goes first.

Hints for people. Bounded: reads the leases as a scheduler's turn does, and at most POSITION_CAP due entries twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import rows
from jobs.models import Pause, Pool
from jobs.policies.why import Ahead, PoolState, fitting_pools
from jobs.queries.catalog import Catalog
from jobs.queries.fleet import PoolLoad, held_leases, pool_loads, worker_timeout_seconds
from jobs.queries.history import stored_json
from jobs.queries.lists import ReadTimedOut, bounded_reading, plain_time

POSITION_CAP = 10_000  # due entries that are looked at to tell a job's place in line
HOLDERS = 10  # jobs in the way that are named

WORKERS = f"""
select pool_id, state, last_seen_at >= {NOW_SQL} - %(timeout)s * interval '1 second',
    extract(epoch from {NOW_SQL} - {plain_time("last_seen_at")})::float8, handlers::text
from jobs_worker order by last_seen_at desc limit 10000"""
HOLDERS_OF_TENANT = """
select job_id, count(*) over () from jobs_lease where shard = any(%(shards)s) and tenant_id = %(tenant)s
order by published_at, job_id limit %(limit)s"""
HOLDERS_OF_KEY = """
select job_id, count(*) over () from jobs_lease
where shard = any(%(shards)s) and tenant_id = %(tenant)s and concurrency_key = %(key)s
order by published_at, job_id limit %(limit)s"""
# A page of each shard by due time, for a rank has no index of its own. Head starts come from the lanes as the claim's do.
AHEAD = f"""
select shard, route_id, lane_id, tenant_id, count(*) filter (where rank < %(rank)s),
    count(*) filter (where rank < %(rank)s and due > %(due)s), count(*), max(place)
from (
    select page.*, page.due - coalesce(lane.head_start_seconds, 0) - page.priority as rank
    from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
        select entry.shard, route_id, lane_id, tenant_id, priority, extract(epoch from due_at)::float8 as due,
            row_number() over (order by due_at) as place
        from jobs_dueentry entry
        where entry.shard = mine.shard and not parked and due_at <= {NOW_SQL} and job_id <> %(job)s
        order by due_at limit %(limit)s) page
    left join jobs_lane lane on lane.id = page.lane_id) ranked
group by shard, route_id, lane_id, tenant_id"""


def holders_of_tenant(shards: Sequence[int], tenant_id: int) -> tuple[int, list[str]]:
    """How many jobs of a tenant are published or running, and the ids of the oldest of them.

    Args:
        shards: Those the tenant has jobs in.
        tenant_id: The tenant.
    """
    return _holders(HOLDERS_OF_TENANT, {"shards": list(shards), "tenant": tenant_id})


def holders_of_key(shards: Sequence[int], tenant_id: int, key: str) -> tuple[int, list[str]]:
    """As `holders_of_tenant`, of those with this concurrency key."""
    return _holders(HOLDERS_OF_KEY, {"shards": list(shards), "tenant": tenant_id, "key": key})


def _holders(sql: str, params: dict[str, Any]) -> tuple[int, list[str]]:
    found = rows(sql, {**params, "limit": HOLDERS})
    return (found[0][1] if found else 0), [str(job_id) for job_id, _ in found]


def work_ahead(
    found: Catalog,
    pools: Sequence[PoolState],
    home: PoolState,
    *,
    job_id: UUID,
    due: float,
    rank: float,
) -> tuple[list[Ahead], bool]:
    """What else is due for the home pool of a job, and whether there is more than was counted.

    An even page of every shard, then longer pages of those that are deeper; nothing counted if that takes too long.

    Args:
        found: The configuration.
        pools: All pools.
        home: The pool.
        job_id: The job, which is not counted.
        due: When the job came due, in seconds since 1970.
        rank: Of the job, in the same seconds.
    """
    params = {"job": job_id, "due": due, "rank": rank, "now": None}
    everywhere = list(range(conf().shards))
    page = max(1, POSITION_CAP // len(everywhere))
    try:
        with bounded_reading():
            seen = rows(AHEAD, {**params, "shards": everywhere, "limit": page})
            if deep := {row[0] for row in seen if row[-1] >= page}:
                page = max(page, POSITION_CAP // len(deep))
                seen = [row for row in seen if row[0] not in deep]
                seen += rows(AHEAD, {**params, "shards": sorted(deep), "limit": page})
    except ReadTimedOut:
        return [], True
    able = [pool for pool in pools if pool.alive and not pool.paused]
    to_home = set()
    for route_id in {row[1] for row in seen} & found.routes.keys():
        fits = fitting_pools(found.routes[route_id].labels, able)
        if fits and fits[0].id == home.id:
            to_home.add(route_id)
    ahead = [
        Ahead(lane=row[2], tenant=row[3], ahead=row[4], overtaking=row[5], due=row[6])
        for row in seen
        if row[1] in to_home
    ]
    return ahead, any(row[0] in deep and row[-1] >= page for row in seen)


def pool_states(found: Catalog, handler: str) -> list[PoolState]:
    """Every stored pool as it is now, seen by a job of this handler."""
    everywhere = list(range(conf().shards))
    loads = {load.pool_id: load for load in pool_loads(shards=everywhere)}
    held: dict[int, dict[tuple[int, Any], int]] = {}
    for one in held_leases(shards=everywhere, mine=everywhere):
        of_pool = held.setdefault(one.pool_id, {})
        of_pool[one.lane_id, one.tenant_id] = (
            of_pool.get((one.lane_id, one.tenant_id), 0) + one.leases
        )
    workers: dict[int, list[tuple[str, bool, float, Any]]] = {}
    params = {"timeout": worker_timeout_seconds(), "now": None}
    for pool_id, state, is_fresh, seconds, handlers in rows(WORKERS, params):
        known = stored_json(handlers)
        workers.setdefault(pool_id, []).append((state, is_fresh, seconds, known))
    return [
        _pool_state(pool, found, handler, loads, held.get(pool.pk, {}), workers.get(pool.pk, []))
        for pool in found.pools.values()
    ]


def _pool_state(
    pool: Pool,
    found: Catalog,
    handler: str,
    loads: dict[int, PoolLoad],
    held: dict[tuple[int, Any], int],
    workers: list[tuple[str, bool, float, Any]],
) -> PoolState:
    alive = [one for one in workers if one[0] == "running" and one[1]]
    load = loads.get(pool.pk)
    slots, free, published = (load.slots, load.free_slots, load.published) if load else (0, 0, 0)
    return PoolState(
        id=pool.pk,
        name=pool.name,
        labels=pool.labels,
        exclusive=pool.exclusive_labels,
        paused=found.is_paused(Pause.Kind.POOL, pool.name),
        alive=len(alive),
        knowing=sum(1 for one in alive if isinstance(one[3], list) and handler in one[3]),
        draining=sum(1 for one in workers if one[0] == "draining" and one[1]),
        slots=slots,
        busy=slots - free,
        published=published,
        last_seen_seconds=min((max(0.0, one[2]) for one in workers), default=None),
        reserves=found.reserves.get(pool.pk, {}),
        held=held,
    )
