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
    known_at: datetime
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
    caught_up: bool = False


# What an edit has superseded comes back in the same row if the new version has the same slot. An instant that the ledger
# knows by another slot (the zone was another one) is no second firing.
RECORD = f"""
insert into jobs_occurrence as known (schedule_id, shard, version, fire_at, known_at, slot, number, resolution, due_at, verdict,
    reason, timezone, on_gap, on_overlap, zone_data, caught_up, decided_at)
select schedule_id, shard, version, fire_at, known_at, slot, number, resolution, due_at, verdict, reason, timezone,
    on_gap, on_overlap, zone_data, caught_up, {NOW_SQL}
from jsonb_to_recordset(%(found)s::jsonb) as found(schedule_id uuid, shard smallint, version int, fire_at timestamptz,
    known_at timestamptz, slot text, number smallint, resolution text, due_at timestamptz, verdict text, reason text, timezone text,
    on_gap text, on_overlap text, zone_data text, caught_up boolean)
where not exists (select from jobs_occurrence other where other.schedule_id = found.schedule_id
    and other.fire_at = found.fire_at and other.verdict <> 'superseded'
    and (other.timezone, other.slot, other.number) <> (found.timezone, found.slot, found.number))
on conflict (schedule_id, timezone, slot, number) do update set version = excluded.version, fire_at = excluded.fire_at,
    known_at = excluded.known_at, resolution = excluded.resolution, due_at = excluded.due_at, verdict = excluded.verdict, reason = excluded.reason,
    timezone = excluded.timezone, on_gap = excluded.on_gap, on_overlap = excluded.on_overlap,
    zone_data = excluded.zone_data, caught_up = excluded.caught_up, decided_at = excluded.decided_at, job_id = null, job_shard = null
    where known.verdict = 'superseded'
returning schedule_id, slot, number, id"""

GIVE_JOBS = """
update jobs_occurrence occurrence set job_id = given.job_id, job_shard = given.job_shard
from jsonb_to_recordset(%(given)s::jsonb) as given(id bigint, job_id uuid, job_shard smallint)
where occurrence.id = given.id"""

JUDGE = f"""
update jobs_occurrence occurrence set verdict = judged.verdict, reason = judged.reason, decided_at = {NOW_SQL}
from jsonb_to_recordset(%(judged)s::jsonb) as judged(id bigint, verdict text, reason text)
where occurrence.id = judged.id
    and (occurrence.verdict = 'pending' or occurrence.verdict = 'skipped' and occurrence.job_id is null)
returning occurrence.id"""

REOPEN = f"""
update jobs_occurrence occurrence set verdict = 'pending', reason = '', caught_up = true, due_at = wanted.due_at,
    job_id = null, job_shard = null, decided_at = {NOW_SQL}
from jsonb_to_recordset(%(wanted)s::jsonb) as wanted(fire_at timestamptz, due_at timestamptz)
where occurrence.schedule_id = %(schedule)s and occurrence.fire_at = wanted.fire_at
    and occurrence.verdict in ('skipped', 'dropped')
returning occurrence.fire_at, occurrence.id"""

FORGET = "delete from jobs_occurrence where id = any(%(ids)s::bigint[]) and verdict = 'superseded' returning id"


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
    """pending → another verdict; also what was skipped before its time, without a job.

    Args:
        verdicts: Key of the occurrence → verdict and reason.
        now: Aware UTC; default is the database clock.

    Returns:
        Keys that were still open.
    """
    judged = [
        {"id": key, "verdict": verdict.value, "reason": reason}
        for key, (verdict, reason) in verdicts.items()
    ]
    if not judged:
        return set()
    return {key for (key,) in rows(JUDGE, {"judged": json.dumps(judged), "now": now})}


def reopen_occurrences(
    due_at: Mapping[datetime, datetime], *, schedule_id: UUID, now: datetime | None = None
) -> dict[datetime, int]:
    """skipped or dropped → pending: somebody wants it to run after all. The caller has the schedule locked.

    Args:
        due_at: Instant at which it fired → when its job is due.
        schedule_id: Of all of them.
        now: Aware UTC; default is the database clock.

    Returns:
        Instant → key of the row, of those that had not run.
    """
    wanted = [
        {"fire_at": fire_at.isoformat(), "due_at": due.isoformat()}
        for fire_at, due in due_at.items()
    ]
    if not wanted:
        return {}
    params = {"wanted": json.dumps(wanted), "schedule": schedule_id, "now": now}
    return dict(rows(REOPEN, params))


def forget_occurrences(keys: Sequence[int]) -> None:
    """Superseded → gone: the instants are open again, and what becomes of them is decided when they come."""
    if keys:
        rows(FORGET, {"ids": list(keys)})
