"""What becomes of the jobs of schedules that could not begin when they were due, and what the ledger says in the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.database import atomically, commits, rows
from jobs.errors import AlreadyFinished, TransitionRefused
from jobs.policies.misfire import judge_missed
from jobs.queries.schedules import Missed, StoredSchedule, lock_missed
from jobs.services.timings import defaults, timing_of
from jobs.states import OnRunning, Verdict
from jobs.transitions.cancel import cancel_job
from jobs.transitions.ledger import judge_occurrences
from jobs.transitions.limits import everywhere
from jobs.transitions.withdraw import let_late_jobs, withdraw_jobs

MISSED_BATCH = 500

# Due, and an earlier run of their schedule has the slot of its key: the claim has parked them.
RIVALS = f"""
select due.job_id, due.shard, due.tenant_id, due.concurrency_key, occurrence.id, version.on_running
from jobs_dueentry due
    join jobs_occurrence occurrence on occurrence.job_id = due.job_id and occurrence.verdict = 'pending'
    join jobs_scheduleversion version
        on version.schedule_id = occurrence.schedule_id and version.number = occurrence.version
where due.shard = any(%(shards)s) and due.parked and due.misfire_at is not null and due.due_at <= {NOW_SQL}
    and version.on_running in ('skip', 'cancel_running')
    and exists (select from jobs_lease lease where lease.shard = any(%(everywhere)s)
        and lease.tenant_id = due.tenant_id and lease.concurrency_key = due.concurrency_key)
order by due.job_id limit %(limit)s
for update of due skip locked"""
HOLDERS = """
select distinct lease.shard, lease.job_id
from unnest(%(tenants)s::int[], %(keys)s::text[]) as held(tenant_id, concurrency_key)
join jobs_lease lease on lease.shard = any(%(everywhere)s) and lease.tenant_id = held.tenant_id
    and lease.concurrency_key = held.concurrency_key and not lease.cancel_requested"""

# Of those whose time has come: whether, and how late, its job was claimed. The history of a job begins with its first
# claim, however often it is tried.
SETTLE = f"""
with settled as (
    select occurrence.id, occurrence.due_at, version.grace_seconds, job.status, (
        select min(event.at) from jobs_jobevent event
        where event.shard = any(%(shards)s) and event.shard = job.shard and event.job_id = job.id
            and event.kind = 'leased') as claimed_at
    from jobs_occurrence occurrence
    join jobs_scheduleversion version
        on version.schedule_id = occurrence.schedule_id and version.number = occurrence.version
    left join jobs_job job on job.shard = occurrence.job_shard and job.id = occurrence.job_id
        and job.shard = any(%(shards)s)
    where occurrence.job_shard = any(%(shards)s) and occurrence.verdict = 'pending' and occurrence.due_at <= {NOW_SQL}
        and (job.status is null or job.status <> 'scheduled' or job.attempt > 0)
    order by occurrence.due_at limit %(limit)s
)
update jobs_occurrence occurrence set decided_at = {NOW_SQL},
    verdict = case when claimed_at is null then 'skipped'
        when claimed_at > settled.due_at + grace_seconds * interval '1 second' then 'late' else 'ran' end,
    reason = case when claimed_at is null then 'cancelled' else occurrence.reason end
from settled where occurrence.id = settled.id and occurrence.verdict = 'pending'
returning occurrence.id"""


@atomically
def judge_missed_jobs(*, shards: Sequence[int], actor: str, now: datetime | None = None) -> int:
    """Waiting jobs of schedules that nobody began within their grace: each runs late, or is withdrawn, by its policy.

    Args:
        shards: Of the jobs.
        actor: This scheduler.
        now: Aware UTC; default is the database clock.

    Returns:
        How many were judged.
    """
    missed = lock_missed(shards=shards, limit=MISSED_BATCH, defaults=defaults(), now=now)
    late: dict[UUID, datetime | None] = {}
    gone: dict[UUID, tuple[int, Verdict, str]] = {}
    for one in missed:
        verdict, reason = _judged(one)
        if verdict is Verdict.PENDING:
            late[one.job_id] = judge_again_at(one.schedule)
        else:
            gone[one.job_id] = one.occurrence_id, verdict, reason
    held = sorted({one.job_shard for one in missed})
    let_late_jobs(shards=held, until=late, now=now)
    withdrawn = withdraw_jobs(
        shards=held, job_ids=list(gone), reason="misfire", actor=actor, now=now
    )
    judge_occurrences(
        {key: (verdict, why) for job, (key, verdict, why) in gone.items() if job in withdrawn},
        now=now,
    )
    return len(missed)


def judge_again_at(stored: StoredSchedule) -> datetime | None:
    """When a job that is let run late is judged once more; None: never.

    One that waits for the end of an earlier run may wait for long: later ones overtake it meanwhile.
    """
    if stored.on_running == OnRunning.ALLOW:
        return None
    return stored.read_at + timedelta(seconds=stored.grace_seconds)


def _judged(one: Missed) -> tuple[Verdict, str]:
    try:
        timing = timing_of(one.schedule)
        # With its last run made nothing follows, whatever the rule says.
        over = timing.max_runs is not None and one.schedule.runs >= timing.max_runs
        followed = one.followed if over else None
        return judge_missed(
            timing, one.fire_at, one.due_at, one.schedule.read_at, followed=followed
        )
    except Exception:  # noqa: BLE001  a rule that cannot be read any more: better late than lost
        return Verdict.PENDING, ""


@atomically
def decide_running(*, shards: Sequence[int], actor: str, now: datetime | None = None) -> int:
    """Firings whose schedule still has an earlier run: skipped, or that run is asked to stop and they wait for its end.

    A run counts while it is published or running; one that waits for its next attempt does not.

    Args:
        shards: Of the jobs.
        actor: This scheduler.
        now: Aware UTC; default is the database clock.

    Returns:
        How many waited for an earlier run.
    """
    params = {
        "shards": list(shards),
        "everywhere": everywhere(),
        "limit": MISSED_BATCH,
        "now": now,
    }
    rivals = [_Rival(*row) for row in rows(RIVALS, params)]
    skipped = {one.job_id: one for one in rivals if one.on_running == OnRunning.SKIP}
    gone = withdraw_jobs(
        shards=[one.shard for one in skipped.values()],
        job_ids=list(skipped),
        reason="running",
        actor=actor,
        now=now,
    )
    judge_occurrences(
        {skipped[job].occurrence_id: (Verdict.SKIPPED, "running") for job in gone}, now=now
    )
    _stop_holders([one for one in rivals if one.on_running == OnRunning.CANCEL_RUNNING], actor)
    return len(rivals)


class _Rival(NamedTuple):
    job_id: UUID
    shard: int
    tenant_id: int
    key: str
    occurrence_id: int
    on_running: str


def _stop_holders(waiting: Sequence[_Rival], actor: str) -> None:
    if not waiting:
        return
    keys = sorted({(one.tenant_id, one.key) for one in waiting})
    params = {
        "tenants": [tenant for tenant, _ in keys],
        "keys": [key for _, key in keys],
        "everywhere": everywhere(),
    }
    for shard, job_id in rows(HOLDERS, params):
        with suppress(
            AlreadyFinished, TransitionRefused
        ):  # it has ended meanwhile, or is asked again
            cancel_job(
                shard=shard, job_id=job_id, actor=actor, reason="its schedule has fired again"
            )


@commits
def settle_occurrences(
    *, shards: Sequence[int], limit: int = 1000, now: datetime | None = None
) -> int:
    """pending → ran, late, or skipped because somebody cancelled its job first.

    Args:
        shards: Of the jobs.
        limit: Most in one statement.
        now: Aware UTC; default is the database clock.

    Returns:
        How many.
    """
    return len(rows(SETTLE, {"shards": list(shards), "limit": limit, "now": now}))
