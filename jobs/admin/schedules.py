"""What the admin shows of schedules: the rule in force, all versions, and the ledger of firings."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin.read_only import ReadOnlyAdmin
from jobs.models import Calendar, Occurrence, Schedule, ScheduleVersion


@admin.register(Calendar)
class CalendarAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "tenant_label", "number", "created_by", "created_at_time", "replaced_at_time",
    )  # fmt: skip
    search_fields = ("name__exact",)
    search_help_text = "Name, in full"
    ordering = ("-id",)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "tenant_label", "version", "look_at_time", "paused_at_time", "paused_by", "fault_json", "deleted_at_time",
    )  # fmt: skip
    search_fields = ("id__exact", "name__exact")
    search_help_text = "Id or name, in full"
    ordering = ("id",)


@admin.register(ScheduleVersion)
class ScheduleVersionAdmin(ReadOnlyAdmin):
    list_display = (
        "schedule_key", "number", "cron", "every", "timezone", "misfire", "created_by", "created_at_time",
    )  # fmt: skip
    search_fields = ("schedule__exact",)
    search_help_text = "Schedule id, in full"
    ordering = ("-id",)


@admin.register(Occurrence)
class OccurrenceAdmin(ReadOnlyAdmin):
    list_display = (
        "schedule_key", "slot", "fire_at_time", "resolution", "verdict", "reason", "version", "job_id",
    )  # fmt: skip
    search_fields = ("schedule__exact", "job_id__exact")
    search_help_text = "Schedule id or job id, in full"
    ordering = ("-id",)
