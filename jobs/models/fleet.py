"""Live processes and which of them scans which shard."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Self

from django.db import models
from django.db.models.functions import Now

from jobs.clock import at
from jobs.models.catalog import Pool
from jobs.models.fields import Link


class Worker(models.Model):
    """One worker process. The id is random per start, so a reused host name never inherits leases."""

    id = models.UUIDField(primary_key=True)
    pool = Link(Pool)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    slots = models.PositiveIntegerField()
    running = models.PositiveIntegerField(db_default=0)
    handlers = models.JSONField(default=list)  # names it knows
    state = models.CharField(max_length=10, db_default="running")  # running, draining, stopped
    version = models.CharField(max_length=50, db_default="")
    started_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())
    clock_skew_seconds = models.FloatField(db_default=0.0)

    class Meta:
        ordering = ["host", "pid"]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class SchedulerNode(models.Model):
    """One scheduler process."""

    id = models.UUIDField(primary_key=True)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    version = models.CharField(max_length=50, db_default="")
    started_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    shares = models.BooleanField(db_default=True)  # False: an operator gave it its part
    demand = models.JSONField(
        null=True
    )  # what waits in its shards, for the others to leave it its part
    clock_skew_seconds = models.FloatField(db_default=0.0)

    class Meta:
        ordering = ["host", "pid"]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class ShardQuerySet(models.QuerySet["Shard"]):
    """Predicates of shard rows."""

    def unowned(self, now: dt.datetime | None = None) -> Self:
        """Shards that no live scheduler scans."""
        return self.filter(models.Q(owner__isnull=True) | models.Q(expires_at__lt=at(now)))

    def owned_by(self, owners: Sequence[object]) -> Self:
        """Shards of these schedulers."""
        return self.filter(owner__any=list(owners))


class Shard(models.Model):
    """A hash class of jobs and the scheduler that scans it. Ownership saves work; the claim is the guard."""

    number = models.SmallIntegerField(primary_key=True)
    owner = models.UUIDField(null=True)
    epoch = models.BigIntegerField(db_default=0)  # +1 at each change of owner
    expires_at = models.DateTimeField(null=True)

    objects = ShardQuerySet.as_manager()

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return str(self.number)
