"""Rank: one fixed moment per job, so that waiting work is never starved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.priority import rank

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def test_rank_is_due_time_less_head_start_less_a_second_per_priority() -> None:
    moment = rank(due_at=NOON, head_start_seconds=1.5, priority=3)
    assert moment == NOON - timedelta(seconds=4.5)
    assert rank(due_at=NOON, head_start_seconds=0, priority=-10) == NOON + timedelta(seconds=10)


offsets = st.floats(0, 10**6)
starts = st.floats(0, 10**5)


@given(offsets, starts, offsets, starts, st.floats(0, 10**6))
def test_the_order_of_two_jobs_is_that_of_priority_plus_waiting_at_any_moment(
    due_a: float, start_a: float, due_b: float, start_b: float, later: float
) -> None:
    def effective(due: float, start: float) -> float:
        return start + (max(due_a, due_b) + later - due)

    gap = effective(due_a, start_a) - effective(due_b, start_b)
    if abs(gap) < 0.001:  # closer than floats can tell
        return
    rank_a = rank(due_at=NOON + timedelta(seconds=due_a), head_start_seconds=start_a, priority=0)
    rank_b = rank(due_at=NOON + timedelta(seconds=due_b), head_start_seconds=start_b, priority=0)
    assert (rank_a < rank_b) == (gap > 0)


def test_work_is_overtaken_only_by_work_due_within_the_head_start() -> None:
    plain = rank(due_at=NOON, head_start_seconds=0, priority=0)
    for seconds, overtakes in ((299, True), (301, False), (10**8, False)):
        due_at = NOON + timedelta(seconds=seconds)
        assert (rank(due_at=due_at, head_start_seconds=300, priority=0) < plain) is overtakes


def test_rank_does_not_depend_on_the_zone_of_the_due_time() -> None:
    due_at = NOON.astimezone(timezone(timedelta(hours=-11)))
    assert rank(due_at=due_at, head_start_seconds=5, priority=1) == NOON - timedelta(seconds=6)


def test_a_naive_due_time_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        rank(due_at=NOON.replace(tzinfo=None), head_start_seconds=0, priority=0)
    with pytest.raises(ValueError, match="NaN"):
        rank(due_at=NOON, head_start_seconds=float("nan"), priority=0)
