"""What a scheduler may claim now, in claim order, and when to look again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import rows

SHORTEST_SECONDS = 0.0001

# Rank order inside and across lanes: due time less the lane's head start and a second per priority point. This is
# the SQL twin of policies.priority.rank. A job whose lane was deleted still gets its turn.
CANDIDATES = f"""
select entry.job_id
from jobs_dueentry entry left join jobs_lane lane on lane.id = entry.lane_id
where entry.shard = any(%(shards)s) and entry.due_at <= {NOW_SQL} and entry.route_id = any(%(routes)s)
order by entry.due_at - (coalesce(lane.head_start_seconds, 0) + entry.priority) * interval '1 second', entry.job_id
limit %(limit)s"""

# One probe of (shard, due_at) per shard: a plain min() over the list would read every waiting row. The list once more, as
# a condition of the probe, would make ten probes of one in the planner's eyes, and a scan of the table cheaper.
NEXT_DUE = f"""
select extract(epoch from min(head.due_at) - {NOW_SQL})::float8
from unnest(%(shards)s::smallint[]) as mine(shard) cross join lateral (
    select due_at from jobs_dueentry entry
    where entry.shard = mine.shard order by due_at limit 1) head"""


def due_candidates(
    *, shards: Sequence[int], route_ids: Sequence[int], limit: int, now: datetime | None = None
) -> list[UUID]:
    """Due jobs in rank order, smallest first.

    A hint and no claim: rows locked by another scheduler are in it, for lateness must show what is locked too.

    Args:
        shards: Shards of this scheduler.
        route_ids: Routes that the pool with room may run.
        limit: Most ids to return.
        now: Aware UTC; default is the database clock.
    """
    params = {"shards": list(shards), "routes": list(route_ids), "limit": limit, "now": now}
    return [job_id for (job_id,) in rows(CANDIDATES, params, hot=True)]


def seconds_to_next_due(*, shards: Sequence[int], now: datetime | None = None) -> float | None:
    """Seconds until the earliest due entry of these shards (negative: already due), None when nothing waits."""
    asked = time.monotonic()
    value: float | None
    ((value,),) = rows(NEXT_DUE, {"shards": list(shards), "now": now}, hot=True)
    if value is None or now is not None or value <= 0:
        return value
    # Counted from the statement's beginning; what was not due then is not called due now.
    return max(value - (time.monotonic() - asked), SHORTEST_SECONDS)
