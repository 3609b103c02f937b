"""Event columns and the one place that inserts history rows. Hot statements insert their own from these pieces."""

from __future__ import annotations

from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.states import EventKind, JobStatus

COLUMNS = "id, shard, job_id, seq, tenant_id, at, kind, from_status, to_status, attempt, actor, lease, token, due_at, detail"


def insert_event(
    *,
    source: str,
    kind: EventKind,
    start: JobStatus | None,
    end: JobStatus,
    lease: str = "null::uuid",
    token: str = "null::int",
    due_at: str = "null::timestamptz",
    detail: str = "null::jsonb",
) -> str:
    """SQL that inserts one event per row of the CTE `source`, in the transaction of the move itself.

    Args:
        source: Name of a CTE with columns shard, job_id, seq (already counted), tenant_id and attempt.
        kind: What happened.
        start: Status before, or None for a new job.
        end: Status after.
        lease: SQL expression over `source` for the claim it happened under.
        token: SQL expression for the fencing token.
        due_at: SQL expression for the due time in force.
        detail: SQL expression giving jsonb.

    Returns:
        An INSERT that reads the parameters `actor` and `now`. The event id is a hash of job and seq: a random
        one costs up to 4 µs each where the server reads the system's random device per call.
    """
    begin = "null" if start is None else f"'{start}'"
    return f"""insert into jobs_jobevent ({COLUMNS})
    select uuid_hash_extended(job_id, seq), shard, job_id, seq, tenant_id, {NOW_SQL}, '{kind}', {begin}, '{end}',
        attempt, %(actor)s, {lease}, {token}, {due_at}, {detail}
    from {source}"""


def worker_actor(worker_id: UUID) -> str:
    """How a worker process is named in history."""
    return f"worker:{worker_id}"


def scheduler_actor(scheduler_id: UUID) -> str:
    """How a scheduler process is named in history."""
    return f"scheduler:{scheduler_id}"
