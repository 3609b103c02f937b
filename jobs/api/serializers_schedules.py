"""How schedules, their versions and firings, and calendars look from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from jobs.api.serializers import time_out
from jobs.models import Calendar, Occurrence, Schedule, ScheduleVersion
from jobs.policies.masking import mask_texts
from jobs.queries.schedule_lists import state_of
from jobs.services.ledger_words import firing_words
from jobs.services.upcoming import Upcoming
from jobs.services.version_fields import (
    effective_fields,
    stored_fields,
    version_changes,
    version_fields,
)


def schedule_url(schedule_id: UUID) -> str:
    """Address of a schedule on this server."""
    return reverse("api:schedule", args=[str(schedule_id)])


def calendar_url(name: str) -> str:
    """Address of a calendar on this server."""
    return reverse("api:calendar", args=[name])


def schedule_out(
    schedule: Schedule,
    version: ScheduleVersion,
    coming: Upcoming,
    *,
    now: datetime,
    reveal: bool,
) -> dict[str, Any]:
    """A schedule as the API shows it.

    Args:
        schedule: What is true of all its versions.
        version: The one in force.
        coming: Its rule in words and its next runs.
        now: Of the database.
        reveal: Show the payload of its jobs as it is stored; otherwise secrets in it are masked.
    """
    paused = schedule.paused_at is not None and (
        schedule.resume_at is None or schedule.resume_at > now
    )
    return {
        "id": str(schedule.pk),
        "name": schedule.name,
        "state": state_of(schedule, now).value,
        "version": schedule.version,
        **stored_fields(version, reveal=reveal),
        "effective": effective_fields(version),
        "paused": {
            "at": time_out(schedule.paused_at),
            "by": schedule.paused_by,
            "reason": schedule.pause_reason,
            "resume_at": time_out(schedule.resume_at),
        }
        if paused
        else None,
        "fault": mask_texts(schedule.fault),
        "words": coming.words,
        "next_runs": coming.runs,
        "created_by": schedule.created_by,
        "created_at": time_out(schedule.created_at),
    }


def version_out(
    version: ScheduleVersion, before: ScheduleVersion | None, *, reveal: bool
) -> dict[str, Any]:
    """What a schedule said from one change to the next.

    Args:
        version: The version.
        before: The one before it; None: it is the first.
        reveal: As of `schedule_out`.
    """
    return {
        "number": version.number,
        "why": version.why,
        "since": time_out(version.since),
        "created_by": version.created_by,
        "created_at": time_out(version.created_at),
        **version_fields(version, reveal=reveal),
        "changes": version_changes(version, before, reveal=reveal),
    }


def occurrence_out(row: Occurrence, jitter: int | None) -> dict[str, Any]:
    """One firing and what became of it.

    Args:
        row: Of the ledger.
        jitter: Seconds, of its version; None if that follows no calendar.
    """
    return {
        "fire_at": time_out(row.fire_at),
        "known_at": time_out(row.known_at),
        "slot": row.slot,
        "pass": row.number,
        "resolution": row.resolution,
        "due_at": time_out(row.due_at),
        "verdict": row.verdict,
        "reason": row.reason,
        "words": firing_words(row, jitter),
        "caught_up": row.caught_up,
        "job": row.job_id and str(row.job_id),
        "version": row.version,
        "timezone": row.timezone,
        "on_gap": row.on_gap,
        "on_overlap": row.on_overlap,
        "zone_data": row.zone_data,
        "decided_at": time_out(row.decided_at),
    }


def calendar_out(calendar: Calendar, *, days: bool = True) -> dict[str, Any]:
    """An edition of a calendar; in a list without its days, of which there can be thousands."""
    listed = calendar.days if isinstance(calendar.days, dict) else {}
    return {
        "name": calendar.name,
        "number": calendar.number,
        **({"days": listed} if days else {"day_count": len(listed)}),
        "weekend": calendar.weekend,
        "created_by": calendar.created_by,
        "created_at": time_out(calendar.created_at),
    }
