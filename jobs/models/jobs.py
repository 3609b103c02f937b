"""The ledger (Job) and the calendar (DueEntry).

No index here, and no index predicate, mentions a column that a transition changes: status, attempt, token, seq,
times of change, result and error. So each transition is a HOT update and costs no index write.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.clock import at
from jobs.models.catalog import Lane, Route
from jobs.models.fields import Link, OneLink, bucket_field, is_a_date
from jobs.models.tenants import Tenant
from jobs.states import FINISHED, JobStatus


class Job(models.Model):
    """One unit of intent: run one handler, once, at a due time. What we believe about it."""

    id = models.UUIDField(primary_key=True)  # version 7; its rand_a bits are the shard
    shard = models.SmallIntegerField()
    tenant = Link(Tenant)
    handler = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    payload_ref = models.TextField(null=True)  # noqa: DJ001 (null and "" differ: no reference)
    due_at = models.DateTimeField()  # the intent; retries move only the due entry
    bucket = bucket_field()
    lane = Link(Lane)
    priority = models.SmallIntegerField(db_default=0)
    route = Link(Route)
    status = models.CharField(
        max_length=10,
        choices=[(status.value, status.name.title()) for status in JobStatus],
        db_default=JobStatus.SCHEDULED.value,
    )
    attempt = models.IntegerField(db_default=0)  # counted at each claim; only grows
    max_attempts = models.SmallIntegerField()  # as asked
    attempt_limit = models.IntegerField()  # the budget in force: refunds and requeues raise it
    retry = models.JSONField()
    timeout_seconds = models.FloatField()
    seq = models.IntegerField(db_default=1)  # last event number, while no lease counts it
    lease_token = models.IntegerField(db_default=0)  # +1 at each claim: the fencing token
    request_key = models.CharField(max_length=255, null=True)  # noqa: DJ001 (null: not unique)
    request_hash = models.BinaryField(max_length=32, null=True)
    reference = models.CharField(max_length=128, db_default="")
    tags = models.JSONField(db_default=models.Value([], models.JSONField()))
    concurrency_key = models.CharField(max_length=255, null=True)  # noqa: DJ001 (null: no limit)
    schedule_id = models.UUIDField(null=True)  # which schedule made it
    fire_at = models.DateTimeField(
        null=True
    )  # the firing it stands for, before calendar and jitter
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=150, db_default="")
    cancel_reason = models.TextField(db_default="")
    result = models.JSONField(null=True)
    last_error = models.JSONField(null=True)  # {"type", "message", "where", "cause", "attempt"}
    created_by = models.CharField(max_length=150, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["shard", "tenant", "request_key"],
                condition=Q(request_key__isnull=False),
                name="job_request_key_once",
            ),
            models.CheckConstraint(
                condition=Q(
                    status__in=sorted(status.value for status in FINISHED),
                    finished_at__isnull=False,
                )
                | Q(
                    status__in=[JobStatus.SCHEDULED.value, JobStatus.LEASED.value],
                    finished_at__isnull=True,
                ),
                name="job_status_known_and_finished_at_agrees",
            ),
            is_a_date("job", "fire_at"),
            models.CheckConstraint(
                condition=Q(attempt__gte=0, max_attempts__gte=1), name="job_attempts_positive"
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "due_at", "id"], name="job_by_tenant"),
            models.Index(fields=["due_at", "id"], name="job_by_due"),
            models.Index(
                fields=["schedule_id", "due_at"],
                condition=Q(schedule_id__isnull=False),
                name="job_by_schedule",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.handler} {self.id}"


class DueEntryQuerySet(models.QuerySet["DueEntry"]):
    """Predicates shared by the claim and the gauges, so that both count the same rows."""

    def in_shards(self, shards: Sequence[int]) -> Self:
        """Entries of these shards."""
        return self.filter(shard__any=list(shards))

    def claimable(self, now: dt.datetime | None = None) -> Self:
        """Due entries that nothing else has to be decided about first; see `misfire_at`."""
        return self.due(now).exclude(misfire_at__lte=at(now))

    def due(self, now: dt.datetime | None = None) -> Self:
        """Entries whose time has come by the database's clock."""
        return self.filter(due_at__lte=at(now))


class DueEntry(models.Model):
    """The calendar: exists exactly while the job waits. Narrow, because every claim reads and deletes here."""

    job = OneLink(Job, primary_key=True)
    due_at = models.DateTimeField()  # in force: retries, snoozes and requeues write it here
    bucket = bucket_field()
    shard = models.SmallIntegerField()
    route = Link(Route)
    lane = Link(Lane)
    priority = models.SmallIntegerField()
    tenant = Link(Tenant)
    concurrency_key = models.CharField(max_length=255, null=True)  # noqa: DJ001 (as in Job)
    # Its key's slots are all taken: out of the scan's way until one is free. A hint; the lease's key is the guard.
    parked = models.BooleanField(db_default=False)
    misfire_at = models.DateTimeField(
        null=True
    )  # from then on its schedule decides whether it runs

    objects = DueEntryQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["shard", "due_at"], condition=Q(parked=False), name="due_by_shard"
            ),
            models.Index(
                fields=["shard", "route", "lane", "priority", "tenant", "due_at"],
                condition=Q(parked=False),
                name="due_by_group",
            ),
            models.Index(
                fields=["shard", "due_at"], condition=Q(parked=True), name="due_parked_by_shard"
            ),
            models.Index(
                fields=["shard", "tenant", "concurrency_key", "due_at"],
                condition=Q(parked=True),
                name="due_parked_by_key",
            ),
            models.Index(
                fields=["shard", "misfire_at"],
                condition=Q(misfire_at__isnull=False),
                name="due_by_misfire",
            ),
            models.Index(
                fields=["shard", "due_at"],
                condition=Q(parked=True, misfire_at__isnull=False),
                name="due_parked_of_schedules",
            ),
        ]
        verbose_name_plural = "due entries"

    def __str__(self) -> str:
        return f"{self.job_id} due {self.due_at.isoformat()}"
