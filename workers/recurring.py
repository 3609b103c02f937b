"""The part of a scheduler that looks after recurring schedules: jobs of what fires soon, verdicts of what has fired."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from jobs import telemetry
from jobs.services.expansion import expand_schedules
from jobs.services.missed import decide_running, judge_missed_jobs, settle_occurrences
from jobs.services.revision import mark_stale_schedules

log = logging.getLogger(__name__)

STALE_SECONDS = (
    10.0  # so long may an unclaimed firing stay as an old policy, calendar or zone data had it
)


class Recurring:
    """Schedules of one scheduler's shards."""

    def __init__(self, *, actor: str) -> None:
        """`actor` is the scheduler, for history."""
        self._actor = actor
        self._stale_at = 0.0

    def turn(self, shards: Sequence[int]) -> bool:
        """One round of everything; True when more of it waits."""
        now = time.monotonic()
        if now >= self._stale_at:
            self._stale_at = now + STALE_SECONDS
            mark_stale_schedules(shards=shards)
        expanded = expand_schedules(shards=shards, actor=self._actor)
        judge_missed_jobs(shards=shards, actor=self._actor)
        decide_running(shards=shards, actor=self._actor)
        settle_occurrences(shards=shards)
        if expanded.made or expanded.skipped or expanded.faults:
            log.info(
                telemetry.SCHEDULES_EXPANDED,
                extra={
                    "made": expanded.made,
                    "skipped": expanded.skipped,
                    "faults": expanded.faults,
                },
            )
        return expanded.more
