"""Lease: who owns a job now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.clock import at
from jobs.models.catalog import Lane, Pool, Route
from jobs.models.fields import Link, OneLink
from jobs.models.jobs import Job
from jobs.models.tenants import Tenant


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Predicates shared by engine, gauges and console."""

    def in_shards(self, shards: Sequence[int]) -> Self:
        """Leases of these shards."""
        return self.filter(shard__any=list(shards))

    def published(self) -> Self:
        """Waiting for a worker of their pool."""
        return self.filter(worker__isnull=True)

    def running(self) -> Self:
        """Taken by a worker."""
        return self.filter(worker__isnull=False)

    def expired(self, tolerance: dt.timedelta, now: dt.datetime | None = None) -> Self:
        """Past their expiry by more than the tolerated clock error."""
        return self.filter(expires_at__lt=at(now) - tolerance)


class Lease(models.Model):
    """The right to run one attempt: published first, owned once a worker takes it.

    A heartbeat writes only unindexed columns. There is no index on expires_at: the reaper pages the key.
    """

    id = models.UUIDField(primary_key=True)  # random per claim: every later write presents it
    job = OneLink(Job)
    token = models.IntegerField()  # the job's claim counter: the fencing token handed outside
    attempt = models.IntegerField()
    seq = models.IntegerField()  # last event number, while this lease exists
    shard = models.SmallIntegerField()
    route = Link(Route)
    pool = Link(Pool)
    lane = Link(Lane)
    priority = models.SmallIntegerField()
    rank = models.DateTimeField()
    due_at = models.DateTimeField()
    tenant = Link(Tenant)
    worker = models.UUIDField(
        null=True
    )  # random per process start; deleting a Worker row hides nothing
    progress = models.JSONField(null=True)
    published_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()
    cancel_requested = models.BooleanField(db_default=False)
    concurrency_key = models.CharField(max_length=255, null=True)  # noqa: DJ001 (as in Job)
    concurrency_slot = models.SmallIntegerField(null=True)  # which of the key's places it holds

    objects = LeaseQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(worker__isnull=True, started_at__isnull=True)
                | Q(worker__isnull=False, started_at__isnull=False),
                name="lease_started_with_worker",
            ),
            # The limit itself: a count could be read by two at once. Not by shard: a tenant may be spread over several.
            models.UniqueConstraint(
                fields=["tenant", "concurrency_key", "concurrency_slot"],
                condition=Q(concurrency_key__isnull=False),
                name="lease_concurrency_slot_once",
            ),
            models.CheckConstraint(
                condition=Q(concurrency_key__isnull=True, concurrency_slot__isnull=True)
                | Q(concurrency_key__isnull=False, concurrency_slot__gte=0),
                name="lease_key_holds_a_slot",
            ),
        ]
        indexes = [
            models.Index(
                fields=["pool", "rank", "published_at"],
                condition=Q(worker__isnull=True),
                name="lease_to_take",
            )
        ]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt}"
