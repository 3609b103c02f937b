"""Order in which due work is published.

Owns the rank of a job. Lanes and their head starts are rows; the claim has the same formula in SQL.
"""

from __future__ import annotations

from datetime import datetime, timedelta


def rank(*, due_at: datetime, head_start_seconds: float, priority: int) -> datetime:
    """Moment by which due work is ordered inside a pool, smaller first: due_at - head start - 1 s per priority.

    Effective priority is base priority plus waiting time. All jobs age at one rate, so the order of two jobs never
    changes while they wait, and it can be written as a fixed moment. Nothing starves: a job is overtaken only by
    work that comes due within the difference of the head starts after it.

    Args:
        due_at: Aware.
        head_start_seconds: Of the lane, in seconds.
        priority: Seconds of head start of this one job; negative ones wait longer.

    Raises:
        ValueError: `due_at` is naive or the head start is NaN.

    >>> from datetime import UTC
    >>> noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    >>> urgent = rank(due_at=noon + timedelta(seconds=299), head_start_seconds=300, priority=0)
    >>> urgent < rank(due_at=noon, head_start_seconds=0, priority=0)  # overtakes what came due 299 s before
    True
    >>> late = rank(due_at=noon + timedelta(seconds=301), head_start_seconds=300, priority=0)
    >>> late < rank(due_at=noon, head_start_seconds=0, priority=0)
    False
    """
    if due_at.tzinfo is None:
        raise ValueError("due_at needs a time zone")
    return due_at - timedelta(seconds=head_start_seconds) - timedelta(seconds=priority)
