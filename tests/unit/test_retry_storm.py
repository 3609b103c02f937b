"""A receiver that is away for five minutes does not meet all retries at once, nor more than it is allowed to."""

from __future__ import annotations

import random
from collections import Counter, deque
from heapq import heappop, heappush

from jobs.policies.fairness import Group, Turns, pick
from jobs.policies.retry import DEFAULT_POLICY, delay_seconds

JOBS, AWAY_SECONDS, CAP = 50_000, 300, 500


def test_f61_retries_of_jobs_that_failed_together_are_spread_and_have_no_second_peak() -> None:
    rng = random.Random(61)
    for attempt in (1, 2, 3):
        dues = [delay_seconds(DEFAULT_POLICY, attempt, rng) for _ in range(JOBS)]
        nominal = 30.0 * 2 ** (attempt - 1)
        assert nominal * 0.5 <= min(dues) < max(dues) <= nominal * 1.5
        per_second = Counter(int(due) for due in dues)
        mean = JOBS / (max(dues) - min(dues))
        assert max(per_second.values()) <= 2 * mean


def test_f61_a_storm_of_fifty_thousand_jobs_stays_under_the_cap_and_has_no_second_peak() -> None:
    """All due at one moment, all failing while the receiver is away, starts limited to 500 a second."""
    rng = random.Random(61)
    waiting: list[tuple[float, int]] = [(0.0, 1)] * JOBS
    starts: Counter[int] = Counter()
    turns: dict[int, Turns] = {}
    due: deque[tuple[float, int]] = deque()
    for second in range(AWAY_SECONDS):
        while waiting and waiting[0][0] <= second:
            due.append(heappop(waiting))
        group = Group(3, "acme", due, walls=("handler",))
        picks = pick([group], room=JOBS, turns=turns, walls={"handler": CAP})
        starts[second] = len(picks.chosen)
        # What pick hands out is the second part of an item: here the number of the attempt.
        for attempt in [one.item for one in picks.chosen]:
            heappush(waiting, (second + delay_seconds(DEFAULT_POLICY, attempt, rng), attempt + 1))
    assert max(starts.values()) <= CAP
    mean = sum(starts.values()) / AWAY_SECONDS
    assert max(starts[second] for second in range(30, AWAY_SECONDS)) <= 2 * mean
    assert len(due) + len(waiting) == JOBS  # none was lost on the way
