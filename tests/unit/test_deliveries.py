"""What a receiver's log proves: the receivers that keep their promise pass, the naive one is caught."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from jobs.errors import InvalidField
from jobs.policies.deliveries import Delivery, Receiver, check_deliveries, read_deliveries
from tests.support.receivers import ApplyOnce, Fencing, Naive
from tests.unit.test_history import lost_then_succeeded

JOB, TOKEN = UUID(int=1), "acme/order-8812"
FIRST, SECOND = Delivery(TOKEN, 1, applied=True), Delivery(TOKEN, 2, applied=False)
LINE = {"token": TOKEN, "job": str(JOB), "lease_token": 1, "applied": True}


def broken(deliveries, *, receiver=Receiver.APPLY_ONCE, status="succeeded"):
    """Of a job with two claims."""
    found = check_deliveries(deliveries, lost_then_succeeded(), status, receiver=receiver)
    return {one.invariant for one in found}


def logged(kind, log, *tokens):
    """What a receiver of this kind logs when attempts with these fencing tokens come in this order."""
    log /= f"{tokens}.ndjson"
    receiver = kind(log)
    for token in tokens:
        receiver.deliver(TOKEN, JOB, token)
    return read_deliveries(log.read_text().splitlines())[JOB]


def test_i16_a_receiver_that_collapses_has_one_effect_of_two_attempts(tmp_path):
    assert broken(logged(ApplyOnce, tmp_path, 1, 2)) == set()


def test_i16_a_naive_receiver_is_caught_when_an_attempt_is_repeated(tmp_path):
    assert broken(logged(Naive, tmp_path, 1, 2)) == {"I16"}


def test_i17_a_receiver_that_fences_refuses_the_worker_that_was_replaced(tmp_path):
    assert broken(logged(Fencing, tmp_path, 2, 1), receiver=Receiver.FENCING) == set()


def test_i17_a_naive_receiver_is_caught_when_a_stale_worker_comes_late(tmp_path):
    assert broken(logged(Naive, tmp_path, 2, 1), receiver=Receiver.FENCING) == {"I17"}
    assert broken(logged(Naive, tmp_path, 1, 2), receiver=Receiver.FENCING) == set()


@pytest.mark.parametrize(
    ("deliveries", "status"),
    [
        ([], "succeeded"),
        ([SECOND], "succeeded"),
        ([FIRST, FIRST], "succeeded"),
        ([FIRST, FIRST], "dead"),
        ([FIRST, SECOND, SECOND], "succeeded"),
        ([FIRST, replace(SECOND, lease_token=3)], "succeeded"),
        ([FIRST, replace(SECOND, token="acme/other")], "succeeded"),
    ],
    ids=[
        "success without effect",
        "effect refused",
        "two effects",
        "two effects of a dead job",
        "more deliveries than claims",
        "a token of no claim",
        "two idempotency tokens",
    ],
)
def test_i16_what_no_order_of_attempts_explains_is_named(deliveries, status):
    assert broken(deliveries, status=status) == {"I16"}


@pytest.mark.parametrize(
    ("deliveries", "status"),
    [([FIRST], "succeeded"), ([], "dead"), ([FIRST], "dead"), ([], "scheduled")],
)
def test_i16_an_unfinished_job_may_have_had_its_effect_or_not(deliveries, status):
    assert broken(deliveries, status=status) == set()


def test_i17_a_token_of_no_claim_is_named():
    strange = [replace(FIRST, lease_token=9)]
    assert broken(strange, receiver=Receiver.FENCING) == {"I17"}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        "[" * 100_000,
        json.dumps({**LINE, "job": "no id"}),
        json.dumps({**LINE, "job": 7}),
        json.dumps({**LINE, "lease_token": "1"}),
        json.dumps({**LINE, "lease_token": True}),
        json.dumps({**LINE, "lease_token": None}),
        json.dumps({**LINE, "applied": 1}),
        json.dumps({**LINE, "token": None}),
        json.dumps({name: LINE[name] for name in ("job", "token", "applied")}),
    ],
    ids=range(12),
)
def test_f65_a_line_that_is_no_delivery_is_refused_by_its_number(line):
    with pytest.raises(InvalidField) as refused:
        read_deliveries([json.dumps(LINE), "", line])
    assert refused.value.pointer == "/3"
