"""Known fault 50 in spirit: no page of the console reads the whole ledger, whatever the planner knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job
from jobs.states import Place
from tests.console.rows import analyze, clone
from tests.factories import make_job

JOBS = reverse("console:jobs")
ROWS = 20_000
READS_ALL = re.compile(r"(?:Seq|Bitmap Heap) Scan on jobs_job\b")

PAGES: dict[str, Callable[[Job], str]] = {
    "first page": lambda job: JOBS,
    "second page": lambda job: (
        f"{JOBS}?cursor=older.{int(job.due_at.timestamp() - 9_000)}000000.{job.pk.hex}"
    ),
    "page back": lambda job: (
        f"{JOBS}?cursor=newer.{int(job.due_at.timestamp() - 9_000)}000000.{job.pk.hex}"
    ),
    "any time": lambda job: f"{JOBS}?window=any&sort=due_at",
    "waiting": lambda job: f"{JOBS}?status=scheduled",
    "running": lambda job: f"{JOBS}?phase=running",
    "dead": lambda job: f"{JOBS}?status=dead",
    "succeeded": lambda job: f"{JOBS}?status=succeeded",
    "cancelled": lambda job: f"{JOBS}?status=cancelled",
    "tenant": lambda job: f"{JOBS}?tenant=acme",
    "tenant and handler": lambda job: f"{JOBS}?tenant=acme&handler=billing.charge",
    "find by id": lambda job: f"{JOBS}?q={job.pk}",
    "find by prefix": lambda job: f"{JOBS}?q={str(job.pk)[:8]}",
    "find by key": lambda job: f"{JOBS}?q=some-key",
    "job page": lambda job: reverse("console:job", args=[job.pk]),
    "dead letters": lambda job: reverse("console:dead_letters"),
}


@pytest.mark.parametrize("analyzed", ["never", "while it was empty", "full"])
def test_kf50_no_page_scans_the_ledger(staff: Client, analyzed: str) -> None:
    if analyzed == "while it was empty":
        with connection.cursor() as cursor:  # without pages too: other tests leave some behind
            cursor.execute("truncate jobs_job cascade")
        analyze()
    dead, running = make_job(place=Place.DEAD_LETTER), make_job(place=Place.RUNNING)
    job = make_job(request_key="some-key")
    clone(job, ROWS // 2, step_seconds=1, waiting=True)
    done = clone(job, ROWS // 2, step_seconds=1)
    Job.objects.filter(pk__in=done).update(status="succeeded", finished_at=timezone.now())
    assert dead.pk != running.pk
    if analyzed == "full":
        analyze()
    set_planner("on")
    for name, address in PAGES.items():
        with CaptureQueriesContext(connection) as queries:
            assert staff.get(address(job)).status_code in (200, 302), name
        for sql in explainable([query["sql"] for query in queries]):
            with connection.cursor() as cursor:
                cursor.execute("explain " + sql)
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert not READS_ALL.search(plan), f"{name}:\n{sql}\n{plan}"


def explainable(statements: list[str]) -> Iterator[str]:
    """Those that read the ledger, each to be explained under the planner settings it ran with."""
    for sql in statements:
        if "enable_seqscan" in sql:
            set_planner("off")
        elif sql.startswith("RELEASE"):
            set_planner("on")
        elif "jobs_job" in sql:
            yield sql


def set_planner(switch: str) -> None:
    with connection.cursor() as cursor:
        for setting in ("enable_seqscan", "enable_bitmapscan"):
            cursor.execute("select set_config(%s, %s, true)", [setting, switch])
