"""The ledger of schedules: what was expected to fire and what became of it, written in sets, in the caller's commit.

No job moves here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import rows
from jobs.states import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOccurrence:
    """A firing with its verdict. `slot` is local time without zone, as text."""

    schedule_id: UUID
    shard: int
    version: int
    fire_at: datetime | None
    slot: str
    number: int
    resolution: str
    due_at: datetime | None
    verdict: Verdict
    reason: str
    timezone: str
    on_gap: str
    on_overlap: str
    zone_data: str


# What an edit has superseded comes back in the same row if the new version has the same slot.
RECORD = f"""
insert into jobs_occurrence as known (schedule_id, shard, version, fire_at, slot, number, resolution, due_at, verdict,
    reason, timezone, on_gap, on_overlap, zone_data, decided_at)
select schedule_id, shard, version, fire_at, slot, number, resolution, due_at, verdict, reason, timezone, on_gap,
    on_overlap, zone_data, {NOW_SQL}
from jsonb_to_recordset(%(found)s::jsonb) as found(schedule_id uuid, shard smallint, version int, fire_at timestamptz,
    slot text, number smallint, resolution text, due_at timestamptz, verdict text, reason text, timezone text,
    on_gap text, on_overlap text, zone_data text)
on conflict (schedule_id, slot, number) do update set version = excluded.version, fire_at = excluded.fire_at,
    resolution = excluded.resolution, due_at = excluded.due_at, verdict = excluded.verdict, reason = excluded.reason,
    timezone = excluded.timezone, on_gap = excluded.on_gap, on_overlap = excluded.on_overlap,
    zone_data = excluded.zone_data, decided_at = excluded.decided_at, job_id = null, job_shard = null
    where known.verdict = 'superseded'
returning schedule_id, slot, number, id"""

GIVE_JOBS = """
update jobs_occurrence occurrence set job_id = given.job_id, job_shard = given.job_shard
from jsonb_to_recordset(%(given)s::jsonb) as given(id bigint, job_id uuid, job_shard smallint)
where occurrence.id = given.id"""

JUDGE = f"""
update jobs_occurrence occurrence set verdict = judged.verdict, reason = judged.reason, decided_at = {NOW_SQL}
from jsonb_to_recordset(%(judged)s::jsonb) as judged(id bigint, verdict text, reason text)
where occurrence.id = judged.id and occurrence.verdict = 'pending'
returning occurrence.id"""


def record_occurrences(
    found: Sequence[NewOccurrence], *, now: datetime | None = None
) -> dict[tuple[UUID, str, int], int]:
    """Write verdicts of firings that have none. The caller has the schedules locked.

    Args:
        found: The firings.
        now: Aware UTC; default is the database clock.

    Returns:
        (schedule, slot, number) → key of the row, of those that were new. For the others nothing was written.
    """
    if not found:
        return {}
    told = [{name: getattr(one, name) for name in NewOccurrence.__slots__} for one in found]
    made = rows(RECORD, {"found": json.dumps(told, default=str), "now": now})
    return {(schedule_id, slot, number): key for schedule_id, slot, number, key in made}


def give_jobs(*, jobs: Mapping[int, tuple[UUID, int]]) -> None:
    """Name the job of each occurrence.

    Args:
        jobs: Key of the occurrence → id and shard of its job.
    """
    given: list[dict[str, Any]] = [
        {"id": key, "job_id": str(job_id), "job_shard": shard}
        for key, (job_id, shard) in jobs.items()
    ]
    if given:
        rows(GIVE_JOBS + " returning occurrence.id", {"given": json.dumps(given)})


def judge_occurrences(
    verdicts: Mapping[int, tuple[Verdict, str]], *, now: datetime | None = None
) -> set[int]:
    """pending → another verdict.

    Args:
        verdicts: Key of the occurrence → verdict and reason.
        now: Aware UTC; default is the database clock.

    Returns:
        Keys that were still pending.
    """
    judged = [
        {"id": key, "verdict": verdict.value, "reason": reason}
        for key, (verdict, reason) in verdicts.items()
    ]
    if not judged:
        return set()
    return {key for (key,) in rows(JUDGE, {"judged": json.dumps(judged), "now": now})}
