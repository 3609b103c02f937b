"""From stored rows to what the policies work with: when a schedule runs, and what holds where it says nothing."""

from __future__ import annotations

import json

from jobs.conf import conf
from jobs.errors import InvalidField, ValidationFailed
from jobs.models import Tenant
from jobs.policies.holidays import Holidays, read_holidays
from jobs.policies.timing import Timing, jitter_delay
from jobs.queries.schedules import StoredSchedule
from jobs.services.preview import parse_recurrence
from jobs.states import Misfire, OnHoliday, OnRunning


def defaults() -> dict[str, str]:
    """What holds where neither a schedule nor its tenant says anything."""
    return {"timezone": conf().timezone, "on_gap": conf().on_gap, "on_overlap": conf().on_overlap}


def timing_of(stored: StoredSchedule) -> Timing:
    """When it runs.

    Raises:
        ValidationFailed: A field of the row has a value that cannot be.
    """
    recurrence = parse_recurrence(
        {
            "cron": stored.cron or None,
            "every": stored.every or None,
            "anchor": stored.anchor or None,
            "timezone": stored.timezone,
            "on_gap": stored.on_gap,
            "on_overlap": stored.on_overlap,
        }
    )
    for name, kind in (("misfire", Misfire), ("on_running", OnRunning), ("on_holiday", OnHoliday)):
        if getattr(stored, name) not in set(kind):
            raise ValidationFailed([InvalidField(f"/{name}", "bad_policy", "is no policy")])
    return Timing(
        recurrence=recurrence,
        misfire=Misfire(stored.misfire),
        grace_seconds=stored.grace_seconds,
        catch_up_most=stored.catch_up_most,
        catch_up_seconds=stored.catch_up_seconds,
        holidays=_holidays(stored),
        on_holiday=OnHoliday(stored.on_holiday),
        delay_seconds=jitter_delay(stored.id, stored.jitter_seconds),
        starts_at=stored.starts_at,
        ends_at=stored.ends_at,
        max_runs=stored.max_runs,
    )


def _holidays(stored: StoredSchedule) -> Holidays | None:
    if stored.days is None or stored.weekend is None:
        return None
    try:
        return read_holidays(json.loads(stored.days), json.loads(stored.weekend))
    except (ValueError, TypeError, RecursionError):
        fault = InvalidField("/calendar", "unreadable", "has rows that are no dates")
        raise ValidationFailed([fault]) from None


def tenant_defaults(tenant: Tenant) -> dict[str, str]:
    """What holds for a schedule of this tenant that says nothing."""
    own = {"timezone": tenant.timezone, "on_gap": tenant.on_gap, "on_overlap": tenant.on_overlap}
    return {**defaults(), **{name: value for name, value in own.items() if value}}
