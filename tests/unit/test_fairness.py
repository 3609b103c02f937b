"""pick: lanes by rank, tenants by weight, reserves, limits, and no slot left empty while there is work."""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Any

import pytest

from jobs.policies.fairness import Group, Picks, Turns, pick

POLICY_CASES = int(os.environ.get("POLICY_CASES") or 2_000)  # 10,000 in a long run
WEIGHT_CASES = int(os.environ.get("WEIGHT_CASES") or 300)  # 10,000 in a long run


def group(lane: int, tenant: Hashable, ranks: list[float], **rest: object) -> Group:
    items = deque((rank, (lane, tenant, rank)) for rank in sorted(ranks))
    return Group(lane, tenant, items, **rest)  # type: ignore[arg-type]


def items(picks: Picks) -> list[object]:
    return [one.item for one in picks.chosen]


def tenants(picks: Picks) -> list[Hashable]:
    return [one.group.tenant for one in picks.chosen]


# One tenant: the order is that of the ranks, across lanes and groups.


def test_one_tenant_is_served_strictly_by_rank() -> None:
    """Random cases of lanes and ways."""
    for seed in range(POLICY_CASES):
        source = random.Random(seed)
        groups = [
            group(
                source.randint(1, 5),
                "a",
                [source.uniform(-9, 9) for _ in range(source.randint(0, 5))],
            )
            for _ in range(source.randint(0, 8))
        ]
        ranks, room = (
            sorted(rank for one in groups for rank, _ in one.items),
            source.randint(0, 25),
        )
        chosen = [item[2] for item in items(pick(groups, room=room, turns={}))]  # type: ignore[index]
        assert chosen == ranks[:room], seed
        assert sum(len(one.items) for one in groups) == len(ranks) - len(chosen), seed


def test_a_lane_is_chosen_by_its_smallest_rank_and_the_tenant_in_it_by_turn() -> None:
    groups = [
        group(1, "a", [10, 11, 12]),
        group(2, "a", [5, 20, 21]),
        group(2, "b", [6, 7, 8]),
    ]
    chosen = items(pick(groups, room=9, turns={}))
    assert chosen[:3] == [(2, "a", 5), (2, "b", 6), (2, "b", 7)]
    assert len(chosen) == 9


# Weights


def served(
    weights: Mapping[Any, float],
    *,
    slots: int,
    jobs: int,
    seconds: Mapping[Any, int],
) -> Counter[Hashable]:
    """Starts of each tenant while all of them always have work: slots that are filled again as they come free."""
    groups = [group(1, tenant, [float(n) for n in range(jobs)]) for tenant in weights]
    running: list[tuple[int, Hashable]] = []
    turns: dict[int, Turns] = {}
    starts: Counter[Hashable] = Counter()
    clock = 0
    while sum(starts.values()) < jobs:
        running = [(ends, tenant) for ends, tenant in running if ends > clock]
        held = Counter((1, tenant) for _, tenant in running)
        picks = pick(
            groups,
            room=slots - len(running),
            turns=turns,
            weights=weights,
            held=held,
        )
        for one in [chosen.group for chosen in picks.chosen]:
            starts[one.tenant] += 1
            running.append((clock + seconds[one.tenant], one.tenant))
        assert len(running) == slots  # work-conserving
        clock += 1
    return starts


def test_starts_follow_the_weights_within_five_percent() -> None:
    """Of all starts, in percent of all, in so many random cases of tenants, weights, slots and lengths of jobs."""
    for seed in range(WEIGHT_CASES):
        source = random.Random(seed)
        weights = {tenant: source.randint(1, 10) for tenant in range(source.randint(2, 6))}
        slots, seconds = source.randint(1, 32), source.randint(1, 4)
        starts = served(weights, slots=slots, jobs=400, seconds=dict.fromkeys(weights, seconds))
        whole, total = sum(weights.values()), sum(starts.values())
        for tenant, weight in weights.items():
            # The batch that is being filled at the end may be cut anywhere.
            assert abs(starts[tenant] / total - weight / whole) <= 0.05 + slots / total / 2, seed


def test_weights_three_to_one_share_eight_slots_three_to_one() -> None:
    starts = served({"a": 3, "b": 1}, slots=8, jobs=400, seconds={"a": 5, "b": 5})
    assert 0.70 <= starts["a"] / sum(starts.values()) <= 0.80


def test_a_tenant_with_long_jobs_does_not_hold_more_than_its_share_while_another_waits() -> None:
    long, short = (
        group(1, "long", [float(n) for n in range(100)]),
        group(1, "short", [1000.0] * 100),
    )
    turns: dict[int, Turns] = {}
    held: Counter[tuple[int, Hashable]] = Counter()
    for _ in range(8):  # a slot at a time; nothing ends
        picks = pick([long, short], room=1, turns=turns, held=held)
        held[1, tenants(picks)[0]] += 1
    assert held == {(1, "long"): 4, (1, "short"): 4}


def test_kf41_one_job_of_a_second_tenant_is_next_however_much_the_first_has() -> None:
    crowd, single = (
        group(1, "crowd", [float(n) for n in range(POLICY_CASES)]),
        group(1, "single", [9e9]),
    )
    turns: dict[int, Turns] = {}
    pick([crowd], room=500, turns=turns)
    assert "single" in tenants(pick([crowd, single], room=2, turns=turns))


def test_who_was_away_has_saved_nothing_up() -> None:
    one, other = group(1, "one", [float(n) for n in range(500)]), group(1, "other", [1e6] * 500)
    turns: dict[int, Turns] = {}
    pick([one, other], room=2, turns=turns)
    pick([one], room=200, turns=turns)
    chosen = Counter(tenants(pick([one, other], room=100, turns=turns)))
    assert abs(chosen["one"] - chosen["other"]) <= 2


def test_who_was_held_back_by_its_share_has_saved_two_turns_at_most() -> None:
    one, other = group(1, "one", [float(n) for n in range(500)]), group(1, "other", [1e6] * 500)
    turns: dict[int, Turns] = {}
    for _ in range(100):  # the other holds more than its share in jobs that do not end
        picks = pick([one, other], room=1, turns=turns, held={(1, "other"): 50})
        assert tenants(picks) == ["one"]
    chosen: Counter[Hashable] = Counter()
    for _ in range(100):  # all of it has ended, and nothing holds a slot: turns alone decide
        chosen.update(tenants(pick([one, other], room=1, turns=turns)))
    assert 0 <= chosen["other"] - chosen["one"] <= 4


def random_groups(source: random.Random) -> list[Group]:
    return [
        group(
            source.randint(1, 4),
            source.randint(1, 5),
            [source.uniform(0, 1000) for _ in range(source.randint(0, 6))],
            walls=tuple(source.sample(["w1", "w2", "w3"], source.randint(0, 2))),
        )
        for _ in range(source.randint(0, 12))
    ]


def random_held(source: random.Random) -> dict[tuple[int, Hashable], int]:
    pairs = [(lane, tenant) for lane in range(1, 5) for tenant in range(1, 6)]
    return {pair: source.randint(0, 4) for pair in source.sample(pairs, source.randint(0, 10))}


def test_no_slot_stays_empty_while_anything_may_go_and_no_limit_is_passed() -> None:
    """Random cases of groups, limits and slots held, without reserves."""
    for seed in range(POLICY_CASES):
        source = random.Random(seed)
        groups = random_groups(source)
        walls: dict[Hashable, float] = {name: source.randint(0, 4) for name in ("w1", "w2")}
        before, room = dict(walls), source.randint(0, 20)
        weights: dict[Hashable, float] = {t: source.randint(1, 9) for t in range(1, 6)}
        picks = pick(
            groups,
            room=room,
            turns={},
            weights=weights,
            held=random_held(source),
            walls=walls,
        )
        used = Counter(wall for one in picks.chosen for wall in one.group.walls)
        for wall, left in before.items():
            assert used[wall] <= left, seed
            assert walls[wall] == left - used[wall], seed
        assert len(picks.chosen) <= room
        could_go = [
            one
            for one in groups
            if one.items and all(walls.get(wall, 1) > 0 for wall in one.walls)
        ]
        assert len(picks.chosen) == room or not could_go, seed
        assert picks.full == (len(picks.chosen) == room and bool(could_go)) or room == 0, seed


def test_the_reserves_of_others_are_never_given_away_and_the_own_one_is_filled() -> None:
    """Random cases."""
    for seed in range(POLICY_CASES):
        source = random.Random(seed)
        groups = random_groups(source)
        for one in groups:
            one.walls = ()
        held, room = random_held(source), source.randint(0, 20)
        reserves = {lane: source.randint(1, 6) for lane in source.sample(range(1, 5), 2)}
        demand = Counter(one.lane for one in groups for _ in one.items)
        filled = Counter(dict.fromkeys(reserves, 0))
        for (lane, _), count in held.items():
            filled[lane] += count
        below = {lane: max(0, slots - filled[lane]) for lane, slots in reserves.items()}
        picks = pick(groups, room=room, turns={}, held=held, reserves=reserves)
        given = Counter(one.group.lane for one in picks.chosen)
        still = {lane: max(0, short - given[lane]) for lane, short in below.items()}
        if any(count > below.get(lane, 0) for lane, count in given.items()):
            assert room - len(picks.chosen) >= sum(still.values()), seed
        first = sum(min(short, demand[lane]) for lane, short in below.items())
        assert sum(min(below[lane], given[lane]) for lane in below) == min(room, first), seed
        common = max(0, room - sum(below.values()))  # nobody's reserve: whoever wants it gets it
        wanted = sum(demand.values()) - first
        assert len(picks.chosen) >= min(room, first + min(common, wanted)), seed


def test_a_reserve_is_idle_rather_than_given_to_another_lane() -> None:
    background = group(5, "a", [1.0, 2.0, 3.0])
    picks = pick([background], room=2, turns={}, reserves={1: 2})
    assert (picks.chosen, picks.kept) == ([], {5})
    picks = pick([background], room=2, turns={}, reserves={1: 2}, held={(1, "a"): 1})
    assert items(picks) == [(5, "a", 1.0)]


def test_a_lane_below_its_reserve_goes_before_every_rank() -> None:
    urgent, background = group(1, "a", [1.0, 2.0]), group(5, "a", [1e9, 1e9])
    picks = pick([urgent, background], room=2, turns={}, reserves={5: 1})
    assert [(one.item, one.reserved) for one in picks.chosen] == [
        ((5, "a", 1e9), True),
        ((1, "a", 1.0), False),
    ]


def test_the_choice_ends_before_a_group_whose_next_item_is_not_known() -> None:
    deep = group(1, "a", [1.0], more=True)
    picks = pick([deep, group(1, "a", [5.0])], room=3, turns={})
    assert (items(picks), picks.wanting) == ([(1, "a", 1.0)], deep)


def test_walls_of_another_lane_are_seen_by_all() -> None:
    walls: dict[Hashable, float] = {"w": 1}
    one, other = group(1, "a", [1.0], walls=("w",)), group(2, "b", [2.0], walls=("w",))
    picks = pick([one, other], room=5, turns={}, walls=walls)
    assert (items(picks), picks.walled, walls) == ([(1, "a", 1.0)], {"w"}, {"w": 0})


@pytest.mark.parametrize("room", [0, -3])
def test_without_room_nothing_is_chosen(room: int) -> None:
    assert items(pick([group(1, "a", [1.0])], room=room, turns={})) == []


def test_what_is_chosen_before_older_work_of_its_lane_is_also_taken_before_it() -> None:
    old, fresh = group(1, "old", [1.0, 2.0, 3.0]), group(1, "fresh", [100.0])
    picks = pick([old, fresh], room=3, turns={})
    taken_by = {one.item[1:]: one.item[2] - one.ahead for one in picks.chosen}
    assert taken_by["fresh", 100.0] <= 2.0 < 3.0
    assert taken_by["old", 1.0] == 1.0
