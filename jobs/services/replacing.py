"""What of a schedule was decided ahead, and how it is taken back: by an edit, a pause, a changed policy, newer zone data.

Inside the transaction that has locked the schedule's row. What somebody has claimed stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from jobs.database import rows
from jobs.states import Verdict
from jobs.transitions.ledger import judge_occurrences
from jobs.transitions.withdraw import withdraw_jobs

# A due entry that is still there and was never claimed has a time to miss. What gap or calendar skips has no job.
AHEAD = """
select occurrence.id, occurrence.job_id, occurrence.job_shard, occurrence.slot, occurrence.number, occurrence.fire_at,
    occurrence.due_at, occurrence.known_at
from (
    select id from jobs_occurrence where schedule_id = %(schedule)s and known_at > %(moment)s
    union
    select id from jobs_occurrence where schedule_id = %(schedule)s and verdict = 'pending'
        and (due_at > %(moment)s or %(unclaimed)s)
) found join jobs_occurrence occurrence using (id)
left join jobs_dueentry due on due.shard = occurrence.job_shard and due.job_id = occurrence.job_id
where not occurrence.caught_up
    and (occurrence.verdict = 'pending' and due.misfire_at is not null
        or occurrence.verdict = 'skipped' and occurrence.reason in ('gap', 'calendar'))
order by occurrence.job_id"""


class Ahead(NamedTuple):
    """One firing that was decided ahead of its time."""

    key: int
    job_id: UUID | None
    job_shard: int | None
    slot: str
    number: int
    fire_at: datetime | None
    due_at: datetime | None
    known_at: datetime


def decided_ahead(schedule_id: UUID, moment: datetime, *, unclaimed: bool = False) -> list[Ahead]:
    """Firings to come, and those whose job is still to come, as far as nobody has claimed it; or all that are unclaimed."""
    params = {"schedule": schedule_id, "moment": moment, "unclaimed": unclaimed}
    return [Ahead(*row) for row in rows(AHEAD, params)]


def take_back(
    ahead: Sequence[Ahead],
    why: str,
    actor: str,
    moment: datetime,
    *,
    verdict: Callable[[Ahead], Verdict] = lambda one: Verdict.SUPERSEDED,
) -> list[Ahead]:
    """Withdraw their jobs and judge them; gives those that nobody has claimed meanwhile.

    Args:
        ahead: From `decided_ahead`.
        why: Code of the reason, for ledger and history.
        actor: Who did what made it necessary.
        moment: Aware UTC.
        verdict: What the ledger says of each.
    """
    jobs = {one.job_id: one.job_shard for one in ahead if one.job_id and one.job_shard is not None}
    gone = withdraw_jobs(
        shards=list(jobs.values()), job_ids=list(jobs), reason=why, actor=actor, now=moment
    )
    old = [one for one in ahead if one.job_id is None or one.job_id in gone]
    judge_occurrences({one.key: (verdict(one), why) for one in old}, now=moment)
    return old
