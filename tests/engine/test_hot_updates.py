"""HOT updates: a transition rewrites a job, and a heartbeat a lease, in place and without touching an index."""

from __future__ import annotations

import pytest
from django.db import connection

from jobs.database import rows
from jobs.models import Job, Lease
from jobs.states import Place
from jobs.transitions.finish import complete_jobs, retry_jobs
from jobs.transitions.lease import extend_leases
from tests.factories import BOOM, WORKER, all_shards, lease_of, make_job
from tests.support.crowd import make_crowd, publish_all, take_all

pytestmark = pytest.mark.usefixtures("committed")

JOBS, BATCH = 4000, 500
ITEM = {"delay": 0.0, "cause": "error", "error": BOOM}
RESULT = {"paid": True, "receipt": "r-8812"}
COUNTS = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = %(table)s"

# Key columns, and those that an index's condition or expression names.
INDEXED = r"""
select distinct attname from pg_index join pg_attribute on attrelid = indrelid
where indrelid = 'jobs_lease'::regclass and attnum > 0
    and pg_get_indexdef(indexrelid) ~ ('[( "]' || attname || '[) ",]')"""


def updates(table: str) -> tuple[int, int]:
    """All updates of the table so far, and those that were HOT."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute("select pg_stat_clear_snapshot()")
    ((total, hot),) = rows(COUNTS, {"table": table})
    return total, hot


def hot_share(before: tuple[int, int], after: tuple[int, int], *, least: int) -> float:
    total, hot = after[0] - before[0], after[1] - before[1]
    assert total >= least, f"only {total} updates were counted"
    return hot / total


def in_batches(items):
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def test_transitions_of_jobs_are_hot_over_a_drain():
    """Claim, take and complete in batches as at full load; every tenth job fails once on its way."""
    crowd = make_crowd(JOBS)
    before = updates("jobs_job")
    waiting = [member.job_id for member in crowd]
    for fails in (10, 0):
        again = []
        for batch in in_batches(waiting):
            assert publish_all(batch) == len(batch)
            taken = take_all(worker_id=WORKER)
            failed = taken[::fails] if fails else []
            failures = {one.lease_id: ITEM for one in failed}
            results = {one.lease_id: RESULT for one in taken if one.lease_id not in failures}
            retry_jobs(shards=all_shards(), worker_id=WORKER, failures=failures)
            complete_jobs(shards=all_shards(), worker_id=WORKER, results=results)
            again += [one.job_id for one in failed]
        waiting = again
    assert Job.objects.filter(status="succeeded").count() == JOBS
    assert Job.objects.filter(attempt=2).count() == JOBS / 10
    assert hot_share(before, updates("jobs_job"), least=2 * JOBS) >= 0.95


def test_kf59_heartbeats_of_leases_are_hot():
    make_crowd(JOBS)
    publish_all(list(Job.objects.values_list("pk", flat=True)))
    leases = [taken.lease_id for taken in take_all(worker_id=WORKER)]
    before = updates("jobs_lease")
    beats = 10
    for beat in range(beats):
        for batch in in_batches(leases):
            note = {"fraction": beat / beats, "note": "half way through the invoices"}
            kept = extend_leases(
                shards=all_shards(),
                worker_id=WORKER,
                lease_ids=batch,
                progress=dict.fromkeys(batch[::10], note),
            )
            assert len(kept) == len(batch)
    assert hot_share(before, updates("jobs_lease"), least=beats * JOBS) >= 0.90


def test_kf59_a_heartbeat_changes_no_indexed_column():
    job = make_job(place=Place.RUNNING)
    lease, row = lease_of(job), Lease.objects.filter(job=job).values()
    before: dict[str, object] = {**row.get()}
    note = {"fraction": 0.5, "note": "half way"}
    extend_leases(
        shards=all_shards(), worker_id=WORKER, lease_ids=[lease.pk], progress={lease.pk: note}
    )
    after: dict[str, object] = {**row.get()}
    changed = {name for name in before if before[name] != after[name]}
    indexed = {name for (name,) in rows(INDEXED, {})}
    assert changed == {"heartbeat_at", "expires_at", "progress"}
    assert indexed >= {"id", "job_id", "pool_id", "rank", "worker"}
    assert not changed & indexed
