"""What kinds of work and workers exist: lanes, pools, routes, handlers. Small tables, read often."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
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
        constraints = [  # PostgreSQL sorts NaN above everything
            models.CheckConstraint(
                condition=Q(head_start_seconds__range=(0, 2_592_000)),
                name="lane_head_start_in_range",
            ),
            models.CheckConstraint(
                condition=Q(target_start_seconds__gt=0, target_start_seconds__lte=31_536_000),
                name="lane_target_start_in_range",
            ),
        ]

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


class Reserve(models.Model):
    """Slots of a pool that only one lane may fill: it is never locked out, and the others never take them."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="reserves")
    lane = models.ForeignKey(Lane, on_delete=models.CASCADE, related_name="+")
    slots = models.PositiveIntegerField(validators=[MinValueValidator(1)])

    class Meta:
        ordering = ["pool", "lane"]
        constraints = [
            models.UniqueConstraint(fields=["pool", "lane"], name="reserve_once"),
            models.CheckConstraint(condition=Q(slots__gte=1), name="reserve_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.pool} {self.lane}: {self.slots}"


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
    start_rate = models.FloatField(
        null=True, blank=True, help_text="Most starts per second, of all tenants; empty: no limit."
    )
    start_burst = models.PositiveIntegerField(
        default=1, db_default=1, help_text="Starts that may come at once after a quiet time."
    )
    last_advertised_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(start_rate__isnull=True)
                | Q(start_rate__gt=0, start_rate__lte=1_000_000),
                name="handler_start_rate_in_range",
            ),
            models.CheckConstraint(
                condition=Q(start_burst__gte=1), name="handler_start_burst_positive"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Pause(models.Model):
    """Somebody stopped a tenant, lane, pool or handler. Nothing of it is claimed; what is published goes on."""

    class Kind(models.TextChoices):
        """What can be paused; `target` is its slug or name."""

        TENANT = "tenant"
        LANE = "lane"
        POOL = "pool"
        HANDLER = "handler"

    kind = models.CharField(max_length=10, choices=Kind.choices)
    target = models.CharField(max_length=200)
    reason = models.TextField()
    paused_by = models.CharField(max_length=150)
    paused_at = models.DateTimeField(db_default=Now())
    resume_at = models.DateTimeField(null=True, blank=True, help_text="Ends by itself then.")

    class Meta:
        ordering = ["kind", "target"]
        constraints = [models.UniqueConstraint(fields=["kind", "target"], name="pause_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class StartBucket(models.Model):
    """A token bucket that limits starts per second. One row per limited tenant or handler; it refills itself."""

    scope = models.CharField(primary_key=True, max_length=220)  # "tenant:7", "handler:mail.send"
    tokens = models.FloatField()
    filled_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.scope
