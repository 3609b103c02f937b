"""Tenants and their credentials."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.states import OnGap, OnOverlap

NAME = RegexValidator(r"\A[a-z0-9._-]{1,63}\Z", "Use 1 to 63 of: a-z 0-9 . _ -")


class Tenant(models.Model):
    """Isolation boundary: every job belongs to exactly one."""

    id = models.AutoField(primary_key=True)
    slug = models.CharField(max_length=63, unique=True, validators=[NAME])
    name = models.CharField(max_length=200)
    timezone = models.CharField(max_length=63, default="UTC", db_default="UTC")
    # What becomes of schedules where a clock is moved; empty: the default.
    on_gap = models.CharField(
        max_length=16, blank=True, default="", db_default="", choices=[(one, one) for one in OnGap]
    )
    on_overlap = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        choices=[(one, one) for one in OnOverlap],
    )
    shard_spread = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text="How many shards this tenant's jobs are spread over. Fixed once it has a job.",
    )
    weight = models.PositiveIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of a lane's slots while others want them too: 3 gets three times what 1 gets.",
    )
    max_running = models.PositiveIntegerField(
        null=True, blank=True, help_text="Most jobs published or running at once; empty: no limit."
    )
    max_backlog = models.PositiveIntegerField(
        null=True, blank=True, help_text="Most waiting jobs; more are refused. Empty: no limit."
    )
    start_rate = models.FloatField(
        null=True, blank=True, help_text="Most starts per second; empty: no limit."
    )
    start_burst = models.PositiveIntegerField(
        default=1, db_default=1, help_text="Starts that may come at once after a quiet time."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(slug__regex=r"^[a-z0-9._-]{1,63}$"), name="tenant_slug_is_plain"
            ),
            models.CheckConstraint(
                condition=Q(shard_spread__gte=1), name="tenant_spread_positive"
            ),
            models.CheckConstraint(
                condition=Q(weight__range=(1, 1000)), name="tenant_weight_in_range"
            ),
            models.CheckConstraint(
                condition=Q(start_rate__isnull=True)
                | Q(start_rate__gt=0, start_rate__lte=1_000_000),
                name="tenant_start_rate_in_range",
            ),
            models.CheckConstraint(
                condition=Q(start_burst__gte=1), name="tenant_start_burst_positive"
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class ConcurrencyLimit(models.Model):
    """How many jobs with one concurrency key a tenant runs at once. A key without a row: one."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    slots = models.PositiveSmallIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )

    class Meta:
        ordering = ["tenant", "key"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "key"], name="concurrency_limit_once"),
            models.CheckConstraint(
                condition=Q(slots__range=(1, 1000)), name="concurrency_limit_in_range"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.key}: {self.slots}"


class ApiToken(models.Model):
    """A bearer credential of one tenant. Only the hash of its secret is stored; it is shown once."""

    id = models.CharField(primary_key=True, max_length=8)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    secret_hash = models.BinaryField(max_length=32)
    last4 = models.CharField(max_length=4)
    scopes = models.JSONField(default=list, help_text="List of scope names such as jobs:write.")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["tenant", "name"]
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} …{self.last4}"
