"""What a scheduler may claim now, by groups of equal treatment, and when to look again. Hints; the claim is the guard.

A group is (shard, route, lane, priority, tenant). Entries that are parked (every slot of their concurrency key is taken)
are not read: they come back when a slot is free.

A floor is a due time of one shard below which a reader has found nothing. While somebody's old snapshot lasts, entries that
are long gone stay in the indexes, in front of all others, and whoever begins at the beginning reads every one of them. But
rows commit late and with old due times: who reads from floors must read from the beginning now and then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from string import Template
from typing import NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import rows

SHORTEST_SECONDS = 0.0001
BEGINNING = -math.inf

type Floors = Mapping[int, float]  # shard → due time, seconds since 1970 by the database


class GroupKey(NamedTuple):
    """What decides where and when a due entry goes, besides its due time."""

    shard: int
    route: int
    lane: int
    priority: int
    tenant: int


class DueRow(NamedTuple):
    """One due entry; `due` in seconds since 1970 by the database."""

    key: GroupKey
    job_id: UUID
    due: float
    concurrency_key: str | None


_KEY = "shard, route_id, lane_id, priority, tenant_id"
_KEPT = f"{_KEY}, job_id, due_at, concurrency_key"
_TOLD = """head.shard, head.route_id, head.lane_id, head.priority, head.tenant_id, head.job_id,
    extract(epoch from head.due_at)::float8, head.concurrency_key"""

# One probe of (shard, due_at) per shard; a shard that fills its page is deep, and is read by groups.
_DUE = Template(f"""
select {_TOLD} from $mine cross join lateral (
    select {_KEPT} from jobs_dueentry entry
    where entry.shard = mine.shard and not parked$above and due_at <= {NOW_SQL} order by due_at limit %(limit)s) head""")

# A loose index scan: from each group the next probe jumps behind it, so the cost is by groups and not by rows. It visits
# groups that have only future work, too.
_GROUPS = Template(f"""
select {_TOLD} from $mine cross join lateral (
    with recursive group_head as (
        (select {_KEPT} from jobs_dueentry entry
        where entry.shard = mine.shard and not parked$above order by {_KEY}, due_at limit 1)
        union all
        select behind.* from group_head as last cross join lateral (
            select {_KEPT} from jobs_dueentry entry
            where entry.shard = mine.shard and not parked$above
                and (entry.route_id, entry.lane_id, entry.priority, entry.tenant_id)
                > (last.route_id, last.lane_id, last.priority, last.tenant_id)
            order by {_KEY}, due_at limit 1) behind
    )
    select * from group_head where due_at <= {NOW_SQL}) head""")

_HEADS = Template(f"""
select {_TOLD} from unnest(%(shards)s::smallint[], %(routes)s::int[], %(lanes)s::smallint[], %(priorities)s::smallint[],
    %(tenants)s::int[], %(limits)s::int[]$floors)
    as mine(shard, route, lane, of_priority, tenant, up_to$floor) cross join lateral (
    select {_KEPT} from jobs_dueentry entry
    where entry.shard = mine.shard and route_id = route and lane_id = lane and priority = of_priority
        and tenant_id = tenant and not parked$above and due_at <= {NOW_SQL}
    order by due_at limit up_to) head""")

# One probe of (shard, due_at) per shard: a plain min() over the list would read every waiting row. The list once more, as
# a condition of the probe, would make ten probes of one in the planner's eyes, and a scan of the table cheaper.
_NEXT_DUE = Template(f"""
select extract(epoch from min(head.due_at) - {NOW_SQL})::float8
from $mine cross join lateral (
    select due_at from jobs_dueentry entry
    where entry.shard = mine.shard and not parked$above order by due_at limit 1) head""")


def _plain(sql: Template) -> str:
    """From the beginning: what stands in front is read, too."""
    mine = "unnest(%(shards)s::smallint[]) as mine(shard)"
    return sql.substitute(mine=mine, above="", floors="", floor="")


def _floored(sql: Template) -> str:
    """From a floor in each shard.

    Apart from the plain form: the range makes planners prefer the index by time, which reads a whole shard for its groups
    where statistics say that there is little in it.
    """
    mine = "unnest(%(shards)s::smallint[], %(floors)s::float8[]) as mine(shard, floor)"
    return sql.substitute(
        mine=mine,
        above=" and due_at >= to_timestamp(floor)",
        floors=", %(floors)s::float8[]",
        floor=", floor",
    )


DUE, DUE_FLOORED = _plain(_DUE), _floored(_DUE)
GROUPS, GROUPS_FLOORED = _plain(_GROUPS), _floored(_GROUPS)
HEADS, HEADS_FLOORED = _plain(_HEADS), _floored(_HEADS)
NEXT_DUE, NEXT_DUE_FLOORED = _plain(_NEXT_DUE), _floored(_NEXT_DUE)


def due_rows(
    *,
    shards: Sequence[int],
    limit: int,
    floors: Floors | None = None,
    now: datetime | None = None,
) -> list[DueRow]:
    """The earliest due entries of each shard, at most `limit` a shard: all of them, unless a shard has so many.

    Args:
        shards: Shards of this scheduler.
        limit: Most rows of one shard.
        floors: Where to begin; default is at the beginning.
        now: Aware UTC; default is the database clock.
    """
    sql = DUE_FLOORED if floors else DUE
    return _read(sql, {**_mine(shards, floors), "limit": limit, "now": now})


def due_groups(
    *, shards: Sequence[int], floors: Floors | None = None, now: datetime | None = None
) -> list[DueRow]:
    """The earliest due entry of every group in these shards.

    Args:
        shards: Shards that are too deep to be read as a whole.
        floors: Where to begin; default is at the beginning.
        now: Aware UTC; default is the database clock.
    """
    return _read(GROUPS_FLOORED if floors else GROUPS, {**_mine(shards, floors), "now": now})


def group_rows(
    *,
    limits: Mapping[GroupKey, int],
    floors: Floors | None = None,
    now: datetime | None = None,
) -> list[DueRow]:
    """The earliest due entries of each of these groups, at most so many, in order of their due time within a group.

    Args:
        limits: Group → most rows.
        floors: Where to begin; default is at the beginning.
        now: Aware UTC; default is the database clock.
    """
    if not limits:
        return []
    names = ("shards", "routes", "lanes", "priorities", "tenants")
    params: dict[str, object] = {
        name: list(part) for name, part in zip(names, zip(*limits, strict=True), strict=True)
    }
    params |= _mine([key.shard for key in limits], floors)
    return _read(
        HEADS_FLOORED if floors else HEADS, {**params, "limits": list(limits.values()), "now": now}
    )


def _mine(shards: Sequence[int], floors: Floors | None) -> dict[str, object]:
    if not floors:
        return {"shards": list(shards)}
    return {"shards": list(shards), "floors": [floors.get(shard, BEGINNING) for shard in shards]}


def _read(sql: str, params: dict[str, object]) -> list[DueRow]:
    return [DueRow(GroupKey(*row[:5]), *row[5:]) for row in rows(sql, params, hot=True)]


def seconds_to_next_due(
    *, shards: Sequence[int], floors: Floors | None = None, now: datetime | None = None
) -> float | None:
    """Seconds until the earliest due entry of these shards (negative: already due), None when nothing waits."""
    asked = time.monotonic()
    value: float | None
    ((value,),) = rows(
        NEXT_DUE_FLOORED if floors else NEXT_DUE, {**_mine(shards, floors), "now": now}, hot=True
    )
    if value is None or now is not None or value <= 0:
        return value
    # Counted from the statement's beginning; what was not due then is not called due now.
    return max(value - (time.monotonic() - asked), SHORTEST_SECONDS)
