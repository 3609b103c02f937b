"""Retry policies: strict reading, bounded delays, spread."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import InvalidField
from jobs.policies.retry import (
    DEFAULT_POLICY,
    Exhausted,
    RetryIn,
    RetryPolicy,
    decide,
    delay_seconds,
    nominal_seconds,
)

DAY = 86_400.0
seconds = st.floats(min_value=0.001, max_value=DAY)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    kind = draw(st.sampled_from(["fixed", "linear", "exponential", "list"]))
    fields: dict[str, object] = {
        "kind": kind,
        "max_seconds": draw(seconds),
        "jitter": draw(st.floats(0, 1)),
    }
    if kind == "list":
        fields["delays"] = draw(st.lists(seconds, min_size=1, max_size=100))
    else:
        fields["base_seconds"] = draw(seconds)
    if kind == "exponential":
        fields["factor"] = draw(st.floats(1, 100))
    return RetryPolicy.parse(fields)


attempts = st.integers(1, 100) | st.integers(1, 10**6) | st.just(10**400)


@given(policies(), attempts, st.integers())
@settings(deadline=None)
def test_kf35_every_delay_is_positive_and_at_most_its_cap_and_a_day(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    nominal = nominal_seconds(policy, attempt)
    assert 0 < nominal <= policy.max_seconds <= DAY
    delay = delay_seconds(policy, attempt, random.Random(seed))
    assert 0 < delay <= policy.max_seconds
    assert delay >= nominal * (1 - policy.jitter) * (1 - 1e-9)
    assert delay <= max(nominal * (1 + policy.jitter) * (1 + 1e-9), 0.001)


@given(policies(), attempts)
@settings(deadline=None)
def test_nominal_delays_never_shrink_unless_they_are_listed(
    policy: RetryPolicy, attempt: int
) -> None:
    if policy.kind != "list":
        assert nominal_seconds(policy, attempt) <= nominal_seconds(policy, attempt + 1)


@given(policies())
@settings(deadline=None)
def test_parse_reads_back_what_to_dict_wrote(policy: RetryPolicy) -> None:
    assert RetryPolicy.parse(policy.to_dict()) == policy
    assert RetryPolicy.from_stored(policy.to_dict()) == policy


def test_kf35_a_thousand_failures_in_one_second_come_back_spread_out() -> None:
    policy = RetryPolicy("exponential", base_seconds=30, factor=2)
    rng = random.Random(35)
    offsets = [delay_seconds(policy, 1, rng) for _ in range(1000)]
    assert min(offsets) >= 15
    assert max(offsets) <= 45
    assert len(set(offsets)) >= 100
    failed_at = [index / 1000 for index in range(1000)]
    bins = Counter(int(at + offset) for at, offset in zip(failed_at, offsets, strict=True))
    assert max(bins.values()) <= 100


def test_kf35_attempt_forty_waits_a_day_at_most_and_is_still_spread() -> None:
    assert nominal_seconds(DEFAULT_POLICY, 40) == DAY
    rng = random.Random(40)
    delays = [delay_seconds(DEFAULT_POLICY, 40, rng) for _ in range(1000)]
    assert min(delays) >= DAY / 2
    assert max(delays) <= DAY
    assert len(set(delays)) >= 100


def test_kf35_an_attempt_number_of_a_million_does_not_overflow() -> None:
    for policy in (
        RetryPolicy("fixed", base_seconds=0.001),
        RetryPolicy("linear", base_seconds=0.001),
        RetryPolicy("exponential", base_seconds=0.001, factor=100),
        RetryPolicy("exponential", base_seconds=0.001, factor=1),
        RetryPolicy("exponential", base_seconds=0.001, factor=math.nextafter(1, 2)),
        RetryPolicy("list", delays=(0.001,)),
    ):
        assert 0 < nominal_seconds(policy, 10**6) <= DAY
        assert 0 < nominal_seconds(policy, 10**400) <= DAY


def test_each_kind_has_its_own_delays() -> None:
    def first(policy: RetryPolicy) -> list[float]:
        return [nominal_seconds(policy, attempt) for attempt in (1, 2, 3, 4)]

    assert first(RetryPolicy("fixed", base_seconds=5)) == [5, 5, 5, 5]
    assert first(RetryPolicy("linear", base_seconds=5)) == [5, 10, 15, 20]
    assert first(RetryPolicy("exponential", base_seconds=5, factor=3)) == [5, 15, 45, 135]
    assert first(RetryPolicy("list", delays=(1, 60, 3600))) == [1, 60, 3600, 3600]
    assert first(RetryPolicy("exponential", base_seconds=5, max_seconds=12)) == [5, 10, 12, 12]
    assert first(RetryPolicy("exponential", base_seconds=5, factor=1)) == [5, 5, 5, 5]


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        nominal_seconds(DEFAULT_POLICY, 0)


REFUSED = {
    "not an object": (["fixed"], "/retry", "wrong_type"),
    "no value": (None, "/retry", "wrong_type"),
    "kind missing": ({}, "/retry/kind", "required"),
    "kind unknown": ({"kind": "fibonacci"}, "/retry/kind", "unknown"),
    "kind in capitals": ({"kind": "Fixed"}, "/retry/kind", "unknown"),
    "kind not a text": ({"kind": ["fixed"]}, "/retry/kind", "unknown"),
    "unknown field": ({"kind": "fixed", "base": 1}, "/retry/base", "unknown"),
    "field of another kind": ({"kind": "fixed", "factor": 2}, "/retry/factor", "unknown"),
    "delays of another kind": ({"kind": "fixed", "delays": [1]}, "/retry/delays", "unknown"),
    "base of a list": (
        {"kind": "list", "delays": [1], "base_seconds": 1},
        "/retry/base_seconds",
        "unknown",
    ),
    "odd field name": (
        {"kind": "fixed", "a/b~\x00\ud800": 1},
        "/retry/a~1b~0\\u0000\\ud800",
        "unknown",
    ),
    "true as a number": (
        {"kind": "fixed", "base_seconds": True},
        "/retry/base_seconds",
        "wrong_type",
    ),
    "number as a text": (
        {"kind": "fixed", "base_seconds": "5"},
        "/retry/base_seconds",
        "wrong_type",
    ),
    "null": ({"kind": "fixed", "jitter": None}, "/retry/jitter", "wrong_type"),
    "zero": ({"kind": "fixed", "base_seconds": 0}, "/retry/base_seconds", "out_of_range"),
    "negative": ({"kind": "linear", "base_seconds": -1}, "/retry/base_seconds", "out_of_range"),
    "NaN": (
        {"kind": "fixed", "base_seconds": float("nan")},
        "/retry/base_seconds",
        "out_of_range",
    ),
    "infinity": (
        {"kind": "fixed", "max_seconds": float("inf")},
        "/retry/max_seconds",
        "out_of_range",
    ),
    "over a day": ({"kind": "fixed", "max_seconds": 86_401}, "/retry/max_seconds", "out_of_range"),
    "huge integer": (
        {"kind": "fixed", "base_seconds": 10**400},
        "/retry/base_seconds",
        "out_of_range",
    ),
    "factor below 1": ({"kind": "exponential", "factor": 0.5}, "/retry/factor", "out_of_range"),
    "factor over 100": ({"kind": "exponential", "factor": 101}, "/retry/factor", "out_of_range"),
    "jitter over 1": ({"kind": "fixed", "jitter": 1.5}, "/retry/jitter", "out_of_range"),
    "list without delays": ({"kind": "list"}, "/retry/delays", "out_of_range"),
    "empty list": ({"kind": "list", "delays": []}, "/retry/delays", "out_of_range"),
    "long list": ({"kind": "list", "delays": [1] * 101}, "/retry/delays", "out_of_range"),
    "list as a text": ({"kind": "list", "delays": "123"}, "/retry/delays", "wrong_type"),
    "bad delay": ({"kind": "list", "delays": [1, -1]}, "/retry/delays/1", "out_of_range"),
    "true as a delay": ({"kind": "list", "delays": [1, 2, True]}, "/retry/delays/2", "wrong_type"),
}


@pytest.mark.parametrize(("value", "pointer", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_policy_is_refused_by_the_name_of_its_field(
    value: object, pointer: str, code: str
) -> None:
    with pytest.raises(InvalidField) as refusal:
        RetryPolicy.parse(value)
    assert (refusal.value.pointer, refusal.value.field_code) == (pointer, code)


def test_a_policy_built_in_python_meets_the_same_rules() -> None:
    with pytest.raises(InvalidField):
        RetryPolicy("exponential", base_seconds=float("nan"))
    with pytest.raises(InvalidField):
        RetryPolicy("list")
    with pytest.raises(InvalidField):
        RetryPolicy("fixed", delays=(1.0,))


@pytest.mark.parametrize(("value", "_pointer", "_code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_stored_policy_that_cannot_be_read_becomes_the_default(
    value: object, _pointer: str, _code: str
) -> None:
    assert RetryPolicy.from_stored(value) == DEFAULT_POLICY


def test_the_pointer_starts_where_the_caller_says() -> None:
    with pytest.raises(InvalidField) as refusal:
        RetryPolicy.parse({"kind": "fixed", "jitter": 2}, pointer="/items/3/retry")
    assert refusal.value.pointer == "/items/3/retry/jitter"


def choose(**changes: object) -> RetryIn | Exhausted:
    given_: dict[str, object] = {
        "attempt": 1,
        "attempt_limit": 5,
        "policy": RetryPolicy("fixed", base_seconds=10, jitter=0),
        "rng": random.Random(1),
    }
    return decide(**{**given_, **changes})  # type: ignore[arg-type]


def test_the_last_attempt_has_no_successor() -> None:
    assert choose(attempt=4, attempt_limit=5) == RetryIn(10)
    assert choose(attempt=5, attempt_limit=5) == Exhausted("attempts_exhausted")
    assert choose(attempt=6, attempt_limit=5) == Exhausted("attempts_exhausted")
    assert choose(attempt=5, attempt_limit=5, retry_after_seconds=1) == Exhausted(
        "attempts_exhausted"
    )


def test_a_permanent_error_ends_the_job_with_budget_left() -> None:
    assert choose(permanent=True) == Exhausted("permanent_error")
    assert choose(permanent=True, retry_after_seconds=3) == Exhausted("permanent_error")


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (0, 0),
        (90, 90),
        (-5, 0),
        (DAY, DAY),
        (10 * DAY, DAY),
        (float("inf"), DAY),
        (float("-inf"), 0),
    ],
)
def test_a_delay_asked_by_the_handler_replaces_the_policys(asked: float, waited: float) -> None:
    assert choose(retry_after_seconds=asked) == RetryIn(waited)


def test_a_delay_that_is_not_a_number_counts_as_not_given() -> None:
    assert choose(retry_after_seconds=float("nan")) == RetryIn(10)


@given(st.floats(0, DAY), policies(), st.integers())
@settings(deadline=None)
def test_an_asked_delay_is_never_shortened_and_spread_by_a_fifth_of_the_jitter(
    asked: float, policy: RetryPolicy, seed: int
) -> None:
    answer = choose(retry_after_seconds=asked, policy=policy, rng=random.Random(seed))
    assert isinstance(answer, RetryIn)
    assert asked <= answer.seconds <= min(asked * (1 + policy.jitter / 5) * (1 + 1e-9), DAY)


def test_kf35_a_thousand_jobs_told_the_same_delay_come_back_spread_out() -> None:
    rng = random.Random(7)
    waits = {choose(retry_after_seconds=60, policy=DEFAULT_POLICY, rng=rng) for _ in range(1000)}
    assert len(waits) >= 100
