"""policies.why: reasons from facts, on random fleets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.why import (
    Ahead,
    PoolState,
    Turn,
    fitting_pools,
    no_turn_yet,
    nowhere,
    span,
    usable_pools,
)

LABELS = st.dictionaries(st.sampled_from(["region", "gpu"]), st.sampled_from(["eu", "us"]))
SMALL = st.integers(0, 4)
HELD = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(1, 3)), SMALL)


@st.composite
def pools(draw):
    found = []
    for number in range(draw(st.integers(0, 4))):
        labels = draw(LABELS)
        alive = draw(SMALL)
        slots = draw(SMALL) if alive else 0
        found.append(
            PoolState(
                id=number,
                name=f"pool-{number}",
                labels=labels,
                exclusive=dict(list(labels.items())[: draw(st.integers(0, 1))]),
                paused=draw(st.booleans()),
                alive=alive,
                knowing=draw(st.integers(0, alive)),
                draining=draw(SMALL),
                slots=slots,
                busy=draw(st.integers(0, slots)),
                published=draw(SMALL),
                reserves=draw(st.dictionaries(st.integers(1, 3), st.integers(1, 3))),
                held=draw(HELD),
            )
        )
    return found


AHEAD = st.builds(
    lambda lane, tenant, ahead, overtaking, rest: Ahead(
        lane=lane,
        tenant=tenant,
        ahead=ahead + overtaking,
        overtaking=overtaking,
        due=ahead + overtaking + rest,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    SMALL,
    SMALL,
    SMALL,
)


@given(pools(), LABELS)
def test_a_job_goes_nowhere_exactly_if_there_is_a_reason(found, needed):
    reasons = nowhere(needed, "mail.send", found)
    assert bool(reasons) is not bool(usable_pools(fitting_pools(needed, found)))
    for reason in reasons:
        assert reason.sentence.startswith("blocked: ")


@given(pools(), st.lists(AHEAD, max_size=5), st.booleans())
def test_a_job_without_room_has_a_reason_and_with_room_none(found, ahead, capped):
    usable = usable_pools(fitting_pools({}, found))
    if not usable:
        return
    turn = Turn(
        lane=1,
        tenant=1,
        head_start_seconds=0.0,
        priority=0,
        ahead=ahead,
        capped=capped,
        weights={1: 2.0},
        lane_names={1: "low", 2: "urgent"},
    )
    reasons = no_turn_yet(usable, turn)
    if all(pool.free == 0 for pool in usable):
        assert reasons
    if any(pool.free and not pool.reserves for pool in usable):
        assert reasons == []
    codes = [reason.code for reason in reasons]
    assert ("lower_rank" in codes) <= any(one.overtaking for one in ahead)
    if "fair_share" in codes:
        (told,) = [reason for reason in reasons if reason.code == "fair_share"]
        assert told.evidence["held"] >= told.evidence["share"]


@given(st.floats(0, 1e12))
def test_a_span_has_at_most_two_units(seconds):
    assert 1 <= len(span(seconds).split()) // 2 <= 2
