"""DeadLetter: exhausted or permanently failed work, kept for people."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from jobs.models.fields import Link
from jobs.models.jobs import Job
from jobs.models.tenants import Tenant


class Resolution(models.TextChoices):
    """What a person did about it."""

    OPEN = "open", "Open"
    REQUEUED = "requeued", "Requeued"
    DISCARDED = "discarded", "Discarded"


class DeadLetter(models.Model):
    """One death of one job. At most one is open per job; a requeued job that dies again gets another."""

    id = models.UUIDField(primary_key=True)
    job = Link(Job)
    shard = models.SmallIntegerField()
    tenant = Link(Tenant)
    handler = models.CharField(max_length=200)
    due_at = models.DateTimeField()
    reason = models.CharField(max_length=30)  # attempts_exhausted, permanent_error
    error_type = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=16)
    message = models.TextField()
    attempts = models.IntegerField()
    died_at = models.DateTimeField()
    resolution = models.CharField(
        max_length=10, choices=Resolution.choices, db_default=Resolution.OPEN.value
    )
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=150, db_default="")
    note = models.TextField(db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["shard", "job"],
                condition=Q(resolution="open"),
                name="dead_letter_open_once",
            ),
            models.CheckConstraint(
                condition=Q(resolution="open", resolved_at__isnull=True)
                | (~Q(resolution="open") & Q(resolved_at__isnull=False)),
                name="dead_letter_resolved_at",
            ),
        ]
        indexes = [
            models.Index(
                fields=["-died_at", "-id"], condition=Q(resolution="open"), name="dead_letter_open"
            ),
            models.Index(fields=["job"], name="dead_letter_by_job"),
        ]

    def __str__(self) -> str:
        return f"{self.handler} {self.job_id}: {self.error_type}"
