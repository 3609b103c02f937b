"""Schedules, their versions, and one row for every instant at which one was expected to fire."""

from __future__ import annotations

import uuid
from enum import StrEnum

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.fields import is_a_date
from jobs.models.tenants import Tenant
from jobs.states import Misfire, OnGap, OnHoliday, OnOverlap, OnRunning, Resolution, Verdict


def _choices(kind: type[StrEnum]) -> list[tuple[str, str]]:
    return [(one.value, one.value.replace("_", " ")) for one in kind]


_SCHEDULE_TIMES = ("expanded_until", "look_at", "paused_at", "resume_at", "skip_until")


class Calendar(models.Model):
    """Days on which a tenant does no business. Never changed: an edit replaces the row by its next edition."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="calendars")
    name = models.CharField(max_length=100)
    number = models.PositiveIntegerField(db_default=1)
    days = models.JSONField(default=dict)  # {"2027-12-25": "Christmas"}
    weekend = models.JSONField(default=list)  # ["sat", "sun"]
    created_by = models.CharField(max_length=150, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    replaced_at = models.DateTimeField(null=True)  # by the next edition, or deleted
    replaced_by = models.CharField(max_length=150, db_default="")

    class Meta:
        ordering = ["tenant", "name", "-number"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(replaced_at__isnull=True),
                name="calendar_name_once",
            ),
            models.UniqueConstraint(
                fields=["tenant", "name", "number"], name="calendar_edition_once"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """A recurring rule of one tenant: what is true of all its versions, and how far it has been expanded."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    shard = models.SmallIntegerField()  # whose scheduler expands it; its jobs may lie elsewhere
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="schedules")
    name = models.CharField(max_length=200)
    version = models.PositiveIntegerField(db_default=1)
    expanded_until = models.DateTimeField()  # up to here, included, every instant has its verdict
    look_at = models.DateTimeField(
        null=True
    )  # of the next expansion; null: nothing comes any more
    runs = models.PositiveIntegerField(db_default=0)  # jobs made, by all versions
    zone_data = models.CharField(max_length=10, db_default="")  # the newest that expanded it
    fault = models.JSONField(
        null=True, blank=True
    )  # {"pointer", "code", "detail"}: skipped till edited
    paused_at = models.DateTimeField(null=True)
    paused_by = models.CharField(max_length=150, db_default="")
    pause_reason = models.TextField(db_default="")
    resume_at = models.DateTimeField(null=True)  # ends the pause by itself
    skip_until = models.DateTimeField(
        null=True
    )  # what fired up to here never runs: see skip_reason
    skip_reason = models.CharField(max_length=20, db_default="paused")
    request_key = models.CharField(max_length=255, null=True)  # noqa: DJ001 (null: not unique)
    request_hash = models.BinaryField(max_length=32, null=True)
    created_by = models.CharField(max_length=150, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["tenant", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(deleted_at__isnull=True),
                name="schedule_name_once",
            ),
            models.UniqueConstraint(
                fields=["tenant", "request_key"],
                condition=Q(request_key__isnull=False),
                name="schedule_request_key_once",
            ),
            *(is_a_date("schedule", name) for name in _SCHEDULE_TIMES),
        ]
        indexes = [
            models.Index(
                fields=["shard", "look_at"],
                condition=Q(deleted_at__isnull=True, fault__isnull=True, look_at__isnull=False),
                name="schedule_to_look_at",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ScheduleVersion(models.Model):
    """What a schedule said from one edit to the next. Never changed: an edit writes a new one."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    cron = models.CharField(max_length=255, db_default="")
    every = models.CharField(
        max_length=12, db_default=""
    )  # 90m, 36h, 3d, 2w, 1mo; instead of cron
    anchor = models.CharField(max_length=32, db_default="")
    # Empty: the tenant's, else the default.
    timezone = models.CharField(max_length=63, db_default="")
    on_gap = models.CharField(max_length=16, db_default="", choices=_choices(OnGap))
    on_overlap = models.CharField(max_length=16, db_default="", choices=_choices(OnOverlap))
    misfire = models.CharField(
        max_length=8, db_default=Misfire.LATEST.value, choices=_choices(Misfire)
    )
    grace_seconds = models.FloatField(db_default=60)
    catch_up_most = models.PositiveSmallIntegerField(db_default=10)
    catch_up_seconds = models.FloatField(db_default=86_400)
    jitter_seconds = models.PositiveIntegerField(db_default=0)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    max_runs = models.PositiveIntegerField(null=True)
    on_running = models.CharField(
        max_length=16, db_default=OnRunning.ALLOW.value, choices=_choices(OnRunning)
    )
    calendar = models.ForeignKey(Calendar, null=True, on_delete=models.PROTECT, related_name="+")
    on_holiday = models.CharField(
        max_length=24, db_default=OnHoliday.SKIP.value, choices=_choices(OnHoliday)
    )
    # What held where the version itself says nothing. When that changes there is a new version.
    in_timezone = models.CharField(max_length=63)
    in_on_gap = models.CharField(max_length=16)
    in_on_overlap = models.CharField(max_length=16)
    zone_data = models.CharField(max_length=10)
    why = models.CharField(max_length=20, db_default="edited")  # it was made
    since = models.DateTimeField()  # its firings are those after this, up to the next one's
    template = models.JSONField()  # the job request, without time and key
    created_by = models.CharField(max_length=150, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["schedule", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["schedule", "number"], name="schedule_version_once"),
            *(is_a_date("version", name) for name in ("starts_at", "ends_at", "since")),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} version {self.number}"


class Occurrence(models.Model):
    """One expected firing and what became of it. Two expanders cannot both write it."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="occurrences")
    shard = models.SmallIntegerField()  # the schedule's
    version = models.PositiveIntegerField()
    fire_at = models.DateTimeField(null=True)  # null: a gap has skipped it
    known_at = models.DateTimeField()  # fire_at, or the end of that gap
    slot = models.CharField(
        max_length=19
    )  # local time, 2026-03-29T02:30:00: no zone can be read into a text
    number = (
        models.PositiveSmallIntegerField()
    )  # first or second time the clock shows it; 0: never ran
    resolution = models.CharField(max_length=12, choices=_choices(Resolution))
    due_at = models.DateTimeField(null=True)  # after calendar and jitter; null: it got no job
    verdict = models.CharField(max_length=10, choices=_choices(Verdict))
    reason = models.CharField(max_length=20, db_default="")
    caught_up = models.BooleanField(db_default=False)  # somebody asked for it afterwards
    job_id = models.UUIDField(null=True, unique=True)
    job_shard = models.SmallIntegerField(null=True)
    timezone = models.CharField(max_length=63)
    on_gap = models.CharField(max_length=16)
    on_overlap = models.CharField(max_length=16)
    zone_data = models.CharField(max_length=10)
    decided_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["schedule", "-slot"]
        constraints = [
            # With the zone: a schedule that moves to another one meets times of day again that it has had.
            models.UniqueConstraint(
                fields=["schedule", "timezone", "slot", "number"], name="occurrence_slot_once"
            ),
            models.UniqueConstraint(
                fields=["schedule", "fire_at"],
                condition=Q(fire_at__isnull=False) & ~Q(verdict=Verdict.SUPERSEDED.value),
                name="occurrence_instant_once",
            ),
            *(is_a_date("occurrence", name) for name in ("fire_at", "known_at", "due_at")),
        ]
        indexes = [
            models.Index(
                fields=["job_shard", "due_at"],
                condition=Q(verdict=Verdict.PENDING.value),
                name="occurrence_pending",
            ),
            models.Index(
                fields=["schedule", "due_at"],
                condition=Q(verdict=Verdict.PENDING.value),
                name="occurrence_pending_of_schedule",
            ),
            models.Index(fields=["schedule", "-known_at", "-id"], name="occurrence_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.slot} {self.verdict}"
