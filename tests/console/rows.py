"""Many jobs at once, cloned in SQL from one that was made the proper way."""

from __future__ import annotations

import secrets
import time
from uuid import UUID

from django.db import connection

from jobs.models import DueEntry, Job
from jobs.policies.sharding import new_job_id

COPIED = [
    str(field.column)
    for field in Job._meta.concrete_fields
    if not field.generated and field.name not in ("id", "due_at", "request_key", "request_hash")
]
CLONE = f"""
insert into jobs_job (id, due_at, {", ".join(COPIED)})
select copy.id, job.due_at - copy.number * %(step)s * interval '1 second', {", ".join(f"job.{name}" for name in COPIED)}
from jobs_job job, unnest(%(ids)s::uuid[]) with ordinality copy(id, number) where job.id = %(job)s"""
CLONE_ENTRIES = """
insert into jobs_dueentry (job_id, due_at, shard, route_id, lane_id, priority, tenant_id)
select id, due_at, shard, route_id, lane_id, priority, tenant_id from jobs_job where id = any(%(ids)s::uuid[])"""


def clone(
    job: Job, number: int, *, step_seconds: float = 0.0, waiting: bool = False
) -> list[UUID]:
    """`number` copies of `job`, each due `step_seconds` before the one before it; `waiting` with due entries."""
    now = time.time_ns() // 1_000_000
    ids = [
        new_job_id(shard=job.shard, unix_ms=now, rand_b=secrets.randbits(62))
        for _ in range(number)
    ]
    with connection.cursor() as cursor:
        cursor.execute(CLONE, {"ids": ids, "job": job.pk, "step": step_seconds})
        if waiting:
            cursor.execute(CLONE_ENTRIES, {"ids": ids})
    return ids


def analyze() -> None:
    with connection.cursor() as cursor:
        for model in (Job, DueEntry):
            cursor.execute(f"analyze {model._meta.db_table}")
