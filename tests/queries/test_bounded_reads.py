"""Counting a backlog and telling a place in line read a bounded number of rows, whatever the planner knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from jobs.models import DueEntry, Job
from jobs.queries.backlog import count_waiting
from jobs.queries.competition import POSITION_CAP
from jobs.queries.why import why
from jobs.states import Place
from tests.console.rows import analyze, clone
from tests.factories import WORKER, make_job, make_scheduler, make_tenant, make_worker
from tests.support.plans import fresh_plan, statements_sent_by

pytestmark = pytest.mark.django_db
ROWS = 30_000


def most_rows(call: Callable[[], object]) -> float:
    """Of due entries and jobs that the busiest step of any statement looks at."""
    sent = statements_sent_by(call)
    reads = [one for one in sent if "jobs_dueentry" in one.sql or "jobs_job " in one.sql]
    assert reads
    bounded = any("enable_seqscan" in one.sql for one in sent)
    with connection.cursor() as cursor:  # as they are sent
        for name in ("enable_seqscan", "enable_bitmapscan"):
            cursor.execute("select set_config(%s, %s, true)", [name, "off" if bounded else "on"])
    return max(fresh_plan(one).most_rows() for one in reads)


@pytest.fixture(params=["never", "while it was empty", "full"])
def job(request: pytest.FixtureRequest) -> Job:
    """Of tenant acme, last in a deep shard that is full of another tenant's work; the pool has no room."""
    if request.param == "while it was empty":
        analyze()
    make_scheduler()
    make_worker(id=WORKER, slots=1)
    make_job(place=Place.RUNNING)
    job = make_job()
    crowd = clone(job, ROWS, step_seconds=1, waiting=True)
    DueEntry.objects.filter(pk__in=crowd).update(tenant=make_tenant("globex"))
    if request.param == "full":
        analyze()
    return job


def test_kf50_a_tenants_backlog_is_counted_without_reading_that_of_others(request, job):
    def count() -> int:
        return count_waiting(tenant_id=job.tenant_id, shards=[job.shard], limit=100)

    assert count() == 1
    # A planner that knows nothing, or has only seen the calendar empty, may read it once through, until autovacuum looks:
    # 20,000 new rows.
    known = request.node.callspec.params["job"] not in ("never", "while it was empty")
    assert most_rows(count) < (500 if known else 2 * ROWS)


def test_kf50_a_place_in_line_is_told_from_a_bounded_number_of_rows(job):
    (full,) = [one for one in why(job.pk, job.shard) if one.code == "pool_saturated"]
    assert full.evidence["position_is_at_least"]
    assert full.evidence["position"] == POSITION_CAP + 1
    assert most_rows(lambda: why(job.pk, job.shard)) < 3 * POSITION_CAP
