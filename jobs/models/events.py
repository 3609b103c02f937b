"""JobEvent: append-only audit history, range-partitioned by day."""

from __future__ import annotations

from django.db import models

from jobs.models.fields import Link
from jobs.models.jobs import Job
from jobs.models.tenants import Tenant
from jobs.states import EventKind, JobStatus

_STATUSES = [(status.value, status.name.title()) for status in JobStatus]


class JobEvent(models.Model):
    """Who moved which job, from where to where, when and why. Never changed, never deleted by a transition.

    Django's key is `id`; the table's is (at, id), for a partitioned table's keys contain the partition column.
    """

    id = models.BigIntegerField(
        primary_key=True
    )  # hash of (job, seq): the same event always has the same
    shard = models.SmallIntegerField()
    job = Link(Job)
    seq = models.IntegerField()  # 1, 2, 3 … per job; a gap is a violation
    tenant = Link(Tenant)
    at = models.DateTimeField()
    kind = models.CharField(
        max_length=20, choices=[(kind.value, kind.value) for kind in EventKind]
    )
    from_status = models.CharField(max_length=10, choices=_STATUSES, null=True)  # noqa: DJ001 (created)
    to_status = models.CharField(max_length=10, choices=_STATUSES)
    attempt = models.IntegerField()
    actor = models.CharField(
        max_length=150
    )  # "worker:<id>", "scheduler:<id>", "token:<id>", "user:<name>"
    lease = models.UUIDField(null=True)  # the claim this happened under
    token = models.IntegerField(null=True)  # its fencing token
    due_at = models.DateTimeField(
        null=True
    )  # in force: what a claim found, or what this event set
    detail = models.JSONField(null=True)

    class Meta:
        managed = False  # partitioned: its migration writes the DDL
        db_table = "jobs_jobevent"
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.seq} {self.kind}"
