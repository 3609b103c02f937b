"""What a version of a schedule says, for people and programs, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.models import ScheduleVersion
from jobs.policies.masking import MASK, mask_values
from jobs.policies.times import format_time
from jobs.services.schedule_requests import fields_of


def stored_fields(version: ScheduleVersion, *, reveal: bool) -> dict[str, Any]:
    """The fields of a request for it; None where it says nothing.

    Args:
        version: The version.
        reveal: Show the payload of its jobs as it is stored; otherwise secrets in it are masked.
    """
    job = dict(version.template)
    if not reveal and "payload" in job:
        job["payload"] = mask_values(job["payload"])
    if not reveal and "payload_ref" in job:
        job["payload_ref"] = MASK
    bounds = {"starts_at": version.starts_at, "ends_at": version.ends_at}
    return {
        **fields_of(version),
        **{name: moment and format_time(moment) for name, moment in bounds.items()},
        "job": job,
    }


def effective_fields(version: ScheduleVersion) -> dict[str, str]:
    """What holds, whether the version or its tenant said it."""
    return {
        "timezone": version.in_timezone,
        "on_gap": version.in_on_gap,
        "on_overlap": version.in_on_overlap,
    }


def version_fields(version: ScheduleVersion, *, reveal: bool) -> dict[str, Any]:
    """All that decides about its firings and jobs."""
    return {
        **stored_fields(version, reveal=reveal),
        "calendar_edition": version.calendar and version.calendar.number,
        "effective": effective_fields(version),
        "zone_data": version.zone_data,
    }


def version_changes(
    version: ScheduleVersion, before: ScheduleVersion | None, *, reveal: bool
) -> dict[str, list[Any]]:
    """Field → what it was and what it is, of those that differ.

    Args:
        version: The version.
        before: The one before it; None: it is the first.
        reveal: As of `stored_fields`. A change that the mask hides is told, too: with the same on both sides.
    """
    if before is None:
        return {}
    then, now = (_flat(version_fields(one, reveal=True)) for one in (before, version))
    old, new = (_flat(version_fields(one, reveal=reveal)) for one in (before, version))
    return {name: [old[name], new[name]] for name in now if now[name] != then[name]}


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """With each effective value by its own name."""
    held = {f"effective.{name}": value for name, value in fields["effective"].items()}
    return {name: value for name, value in fields.items() if name != "effective"} | held
