"""What became of a firing, in words, from its row in the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs.models import Occurrence
from jobs.policies.recurrence import Firing
from jobs.policies.timing import jitter_delay
from jobs.policies.wording import occurrence_in_words
from jobs.policies.zones import zone, zone_keys
from jobs.services.preview import clock
from jobs.states import Resolution


def firing_words(row: Occurrence, jitter: int | None) -> str:
    """A sentence on a firing that a change of the clock or a closed day has touched; "" for any other.

    Args:
        row: Of the ledger; nothing in it has been checked.
        jitter: Seconds, of its version; None if that follows no calendar.
    """
    try:
        slot = datetime.fromisoformat(row.slot)
        resolution = Resolution(row.resolution)
    except ValueError:
        return ""
    if row.timezone not in zone_keys():
        return ""
    there = zone(row.timezone)
    fired = row.fire_at and row.fire_at.astimezone(there)
    moved_to = _moved_to(row, jitter)
    runs = moved_to and moved_to.astimezone(there)
    return occurrence_in_words(
        Firing(row.fire_at, slot, row.number, resolution, row.known_at),
        row.timezone,
        row.verdict,
        closed=runs is not None or row.reason == "calendar",
        fired=clock(fired) if fired else "",
        ran=f"{runs:%A} {runs.day} {runs:%B %Y} at {clock(runs)}" if runs else "",
    )


def _moved_to(row: Occurrence, jitter: int | None) -> datetime | None:
    """Where a closed day has moved it; None if none has."""
    if jitter is None or row.caught_up or row.due_at is None or row.fire_at is None:
        return None
    at = row.due_at - timedelta(seconds=jitter_delay(row.schedule_id, jitter))
    return at if at != row.fire_at else None
