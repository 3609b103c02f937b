"""Schedules in tests: made, edited and expanded at given times, and their ledger read back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs.models import DueEntry, Job, Occurrence, Schedule
from jobs.services.expansion import expand_schedules
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import edit_schedule
from jobs.services.timings import tenant_defaults
from tests.factories import SCHEDULER, all_shards, make_schedule, make_tenant


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


NOON = utc("2027-05-03T12:00:00Z")


def create(now: datetime = NOON, **fields: Any) -> Schedule:
    """Hourly, unless the fields say otherwise; see `make_schedule`."""
    return make_schedule(now=now, **fields)


def edit(schedule: Schedule, now: datetime, **rest: Any) -> Schedule:
    tenant = make_tenant()
    return edit_schedule(
        tenant=tenant,
        schedule_id=schedule.pk,
        version=schedule.version,
        request=parse_schedule(
            {"name": "nightly", "job": {"handler": "billing.charge"}, **rest},
            defaults=tenant_defaults(tenant),
        ),
        actor="user:otto",
        now=now,
    )


def expand(now: datetime) -> Any:
    return expand_schedules(shards=all_shards(), actor=SCHEDULER, now=now)


def expand_all(now: datetime, rounds: int = 200) -> None:
    for _ in range(rounds):
        if not expand(now).more:
            return
    raise AssertionError("the expansion does not come to an end")


def ledger(schedule: Schedule) -> list[tuple[str, str, str]]:
    """(slot, verdict, reason)"""
    rows = Occurrence.objects.filter(schedule=schedule).order_by("slot", "number")
    return [(row.slot[5:16], row.verdict, row.reason) for row in rows]


def waiting(schedule: Schedule) -> list[str]:
    jobs = Job.objects.filter(schedule_id=schedule.pk, status="scheduled").order_by("due_at")
    assert DueEntry.objects.filter(job__in=[job.pk for job in jobs]).count() == len(jobs)
    return [f"{job.due_at:%m-%dT%H:%M}" for job in jobs]


def job_of(row: Occurrence) -> Job:
    assert row.job_id is not None
    assert row.job_shard is not None
    return Job.objects.get(shard=row.job_shard, pk=row.job_id)
