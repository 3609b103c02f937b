"""What is paused, by whom, since when and why."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from jobs.clock import NOW_SQL
from jobs.database import rows
from jobs.queries.lists import plain_time


class Paused(NamedTuple):
    """A pause. `already`: it was in force before, and has a new reason and end."""

    kind: str
    target: str
    reason: str
    paused_by: str
    paused_at: datetime
    resume_at: datetime | None
    already: bool = False


# As any statement returns them; times within bounds, for a row may have been written by hand.
COLUMNS = f"kind, target, reason, paused_by, {plain_time('paused_at')}, {plain_time('resume_at')}"
IN_FORCE = f"""
select {COLUMNS} from jobs_pause where resume_at is null or resume_at > {NOW_SQL} order by kind, target"""


def pauses_in_force(*, now: datetime | None = None) -> list[Paused]:
    """Pauses that hold something back, by kind and name.

    Args:
        now: Aware UTC; default is the database clock.
    """
    return [Paused(*row) for row in rows(IN_FORCE, {"now": now})]
