"""simulate: waits stay within the bound that ageing promises, and every arrival begins once."""

from __future__ import annotations

import os
import random

from jobs.policies.simulation import Arrival, Settings, simulate

POLICY_CASES = int(os.environ.get("POLICY_CASES") or 2_000)  # 10,000 in a long run
HEAD_STARTS = {1: 600.0, 2: 300.0, 3: 120.0, 4: 60.0, 5: 0.0}


def rank(one: Arrival, settings: Settings) -> float:
    return one.at - settings.head_starts[one.lane] - one.priority


def test_i15_nobody_waits_longer_than_the_work_ranked_before_it_takes() -> None:
    """Random cases of one tenant: (work that ranks earlier) ÷ slots, and the longest job that was in the way."""
    for seed in range(POLICY_CASES):
        source = random.Random(seed)
        settings = Settings(HEAD_STARTS, slots={0: source.randint(1, 3)})
        arrivals = [
            Arrival(
                at=source.uniform(0, 50),
                lane=source.randint(1, 5),
                tenant="a",
                seconds=source.uniform(0.1, 9),
                priority=source.choice([0, 0, -100, 100, 7]),
            )
            for _ in range(source.randint(1, 25))
        ]
        starts = simulate(arrivals, settings)
        assert len(starts) == len(arrivals)
        for start in starts:
            mine = rank(start.arrival, settings)
            before = [one for one in arrivals if rank(one, settings) < mine]
            work = sum(one.seconds for one in before) / settings.slots[0]
            longest = max((one.seconds for one in arrivals), default=0.0)
            assert start.wait <= work + longest + 1e-6, seed
            # Nobody ranked behind it, and there in time, began while it waited.
            overtakers = [
                other
                for other in starts
                if rank(other.arrival, settings) > mine and start.arrival.at < other.at < start.at
            ]
            assert overtakers == [], seed


def test_kf40_an_endless_urgent_stream_holds_background_work_back_for_the_gap_only() -> None:
    settings = Settings({1: 100.0, 5: 0.0}, slots={0: 1})
    urgent = [Arrival(at=float(second), lane=1, tenant="a", seconds=1.0) for second in range(600)]
    starts = simulate([*urgent, Arrival(at=0.5, lane=5, tenant="a", seconds=1.0)], settings)
    (background,) = [start for start in starts if start.arrival.lane == 5]
    assert 99 <= background.wait <= 110


def test_f59_reserved_slots_keep_background_work_going_under_too_much_urgent_work() -> None:
    """Urgent work of 120 % of the capacity for 10 minutes; a reserve of one slot of four."""
    settings = Settings({1: 1e6, 5: 0.0}, slots={0: 4}, reserves={0: {5: 1}})
    urgent = [Arrival(at=n / 4.8, lane=1, tenant="a", seconds=1.0) for n in range(2880)]
    background = [Arrival(at=float(n), lane=5, tenant="a", seconds=1.0) for n in range(600)]
    starts = simulate([*urgent, *background], settings)
    waits = [start.wait for start in starts if start.arrival.lane == 5]
    assert len(waits) == 600
    assert max(waits) <= 2.0


def test_work_goes_to_its_home_and_is_lent_slots_only_when_home_is_full() -> None:
    settings = Settings(HEAD_STARTS, slots={1: 1, 2: 1})
    jobs = [Arrival(at=0.0, lane=3, tenant="a", seconds=5.0, pools=(1, 2)) for _ in range(3)]
    own = Arrival(at=1.0, lane=3, tenant="a", seconds=5.0, pools=(2,))
    starts = simulate([*jobs, own], settings)
    assert [(start.pool, start.at) for start in starts] == [(1, 0.0), (2, 0.0), (1, 5.0), (2, 5.0)]


def test_a_tenants_most_running_jobs_hold_and_homeless_work_is_left_out() -> None:
    settings = Settings(HEAD_STARTS, slots={0: 4}, max_running={"a": 1})
    arrivals = [Arrival(at=0.0, lane=3, tenant="a", seconds=1.0) for _ in range(3)]
    starts = simulate([*arrivals, Arrival(0.0, 3, "b", 1.0, pools=())], settings)
    assert [start.at for start in starts] == [0.0, 1.0, 2.0]
