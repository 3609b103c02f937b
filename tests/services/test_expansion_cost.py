"""What an expansion costs does not grow with what it has no use for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.queries.catalog import forget
from jobs.services.expansion import expand_schedules
from tests.factories import SCHEDULER, all_shards, make_schedule, make_tenant

NOON = datetime(2027, 5, 3, 12, tzinfo=UTC)


@pytest.mark.usefixtures(
    "committed"
)  # a reading inside a transaction that has written is not kept
def test_the_catalogue_is_read_once_for_the_jobs_of_all_tenants() -> None:
    for n in range(5):
        make_schedule(make_tenant(f"tenant-{n}"), now=NOON)
    before = Job.objects.count()
    forget()
    with CaptureQueriesContext(connection) as sent:
        expand_schedules(shards=all_shards(), actor=SCHEDULER, now=NOON + timedelta(hours=1))
    assert Job.objects.count() == before + 5
    assert sum('from "jobs_lane"' in one["sql"].lower() for one in sent) == 1
