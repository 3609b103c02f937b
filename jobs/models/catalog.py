"""What kinds of work and workers exist: lanes, pools, routes, handlers. Small tables, read often."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from jobs.models.tenants import NAME


class Lane(models.Model):
    """A priority class. Its head start says how much later-due work of other lanes it may overtake."""

    id = models.SmallIntegerField(primary_key=True)
    name = models.CharField(max_length=63, unique=True, validators=[NAME])
    priority_floor = models.SmallIntegerField(
        help_text="Lowest job priority (-100…100) that belongs here when no lane is named."
    )
    head_start_seconds = models.FloatField(default=0)
    target_start_seconds = models.FloatField(default=60)

    class Meta:
        ordering = ["-priority_floor"]

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Workers with the same labels. A job runs here only if the labels allow it."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=63, unique=True, validators=[NAME])
    labels = models.JSONField(default=dict, blank=True)
    exclusive_labels = models.JSONField(
        default=dict, blank=True, help_text="Labels a job must ask for to run here."
    )
    executor = models.CharField(max_length=16, default="threads", db_default="threads")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Route(models.Model):
    """A distinct pair of handler and required labels: everything that decides where a job may run."""

    id = models.AutoField(primary_key=True)
    handler = models.CharField(max_length=200)
    labels = models.JSONField(default=dict, blank=True)
    labels_text = models.TextField(help_text="Canonical spelling k=v,k=v of the labels.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["handler", "labels_text"], name="route_once"),
        ]

    def __str__(self) -> str:
        return f"{self.handler} [{self.labels_text}]"


class Handler(models.Model):
    """What the fleet can do: written by workers when they start, never deleted by itself."""

    name = models.CharField(primary_key=True, max_length=200)
    max_attempts = models.PositiveSmallIntegerField()
    timeout_seconds = models.FloatField()
    retry = models.JSONField()
    transactional = models.BooleanField(default=False)
    last_advertised_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
