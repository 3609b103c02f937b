"""One attempt: whatever the handler does, there is an outcome, and it can be recorded."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from jobs.conf import conf
from jobs.policies.cleaning import CUT_MARK, MESSAGE_BYTES
from jobs.services.outcomes import AttemptOutcome, Ending
from tests.support.odd_errors import ODD, TEXTS, InterruptingResult
from tests.workers.attempts import execution
from workers.execution import MAX_DELAY_SECONDS, Execution
from workers.handlers import Cancelled, PermanentFailure, RetryAfter, Snooze


def raising(error: BaseException) -> Any:
    def function(ctx):
        raise error

    return function


def outcome_of(error: BaseException, **fields: Any) -> AttemptOutcome:
    outcome = execution(raising(error), **fields).run()
    assert outcome is not None
    return outcome


def stopping(reason: str, error: BaseException | None = None, result: object = None) -> Execution:
    """An attempt that is asked to stop while its handler runs, which then raises or returns."""

    def function(ctx):
        one.stop.ask(reason)
        if error is not None:
            raise error
        return result

    one = execution(function)
    return one


def test_a_return_value_is_the_result():
    outcome = execution(lambda ctx: {"charge": ctx.payload["amount"]}).run()
    assert outcome is not None
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, {"charge": 1299})


def test_a_handler_that_returns_nothing_has_succeeded_without_a_result():
    outcome = execution().run()
    assert outcome is not None
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, None)


@pytest.mark.parametrize(
    "result",
    [
        *(object(), {"x": math.nan}, "a\x00b", "\ud800", {1: {2: (3,)}}, "x" * 100_000),
        InterruptingResult(),
    ],
)
def test_kf33_any_result_is_made_storable(result):
    outcome = execution(lambda ctx: result).run()
    assert outcome is not None
    assert outcome.ending is Ending.SUCCEEDED
    compact = (",", ":")
    text = json.dumps(outcome.result, ensure_ascii=False, allow_nan=False, separators=compact)
    assert len(text.encode()) <= conf().result_max_bytes
    assert "\x00" not in text


@pytest.mark.parametrize("false", [0, "", [], {}, False])
def test_a_false_result_is_a_result(false):
    outcome = execution(lambda ctx: false).run()
    assert outcome is not None
    assert outcome.result == false
    assert outcome.result is not None


def test_retry_after_is_a_failed_attempt_with_its_own_delay():
    outcome = outcome_of(RetryAfter(12.5, "the bank asks for patience"))
    assert (outcome.ending, outcome.delay_seconds) == (Ending.FAILED, 12.5)
    assert (outcome.permanent, outcome.cause) == (False, "error")
    assert outcome.error is not None
    assert outcome.error["message"] == "the bank asks for patience"


def test_snooze_is_no_failure():
    outcome = outcome_of(Snooze(60, "the warehouse is closed"))
    assert (outcome.ending, outcome.delay_seconds) == (Ending.SNOOZED, 60)
    assert (outcome.reason, outcome.error) == ("the warehouse is closed", None)


def test_a_permanent_failure_says_so():
    outcome = outcome_of(PermanentFailure("no such card"))
    assert (outcome.ending, outcome.permanent) == (Ending.FAILED, True)
    assert outcome.error is not None
    assert (outcome.error["type"], outcome.error["message"]) == (
        "PermanentFailure",
        "no such card",
    )


def test_a_handler_can_declare_its_job_void():
    outcome = outcome_of(Cancelled("the order is gone"))
    assert (outcome.ending, outcome.by_handler) == (Ending.CANCELLED, True)
    assert outcome.reason == "the order is gone"


@pytest.mark.parametrize("kind", [RetryAfter, Snooze, PermanentFailure, Cancelled])
def test_a_subclass_steers_like_its_class(kind):
    mine = type("Mine", (kind,), {})
    steering = (RetryAfter, Snooze)
    ours, theirs = (
        outcome_of(one(7.0, "because") if kind in steering else one("because"))
        for one in (mine, kind)
    )
    assert (ours.ending, ours.permanent, ours.delay_seconds, ours.reason) == (
        theirs.ending,
        theirs.permanent,
        theirs.delay_seconds,
        theirs.reason,
    )


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (0, 0.0),
        (-5, 0.0),
        (math.nan, 0.0),
        (-math.inf, 0.0),
        (math.inf, MAX_DELAY_SECONDS),
        (1e300, MAX_DELAY_SECONDS),
        (10**400, 0.0),
        ("soon", 0.0),
        (None, 0.0),
        ("7", 7.0),
    ],
)
@pytest.mark.parametrize("kind", [RetryAfter, Snooze])
def test_kf35_an_odd_delay_never_overflows_nor_lies_in_the_past(kind, given, stored):
    error = kind(1.0, "because")
    error.seconds = given
    assert outcome_of(error).delay_seconds == stored


def deep(ctx):
    return deep(ctx)


@pytest.mark.parametrize("case", ODD)
def test_f10_kf34_odd_exceptions_are_failures_named_by_their_class(case):
    error, name = ODD[case]
    outcome = outcome_of(error)
    assert outcome.ending is Ending.FAILED
    assert not outcome.permanent
    assert outcome.error is not None
    kind = outcome.error["type"]
    assert name.startswith(kind.removesuffix(CUT_MARK))
    assert 0 < len(kind.encode()) <= 255
    assert outcome.error["message"].encode().count(b"\x00") == 0
    assert len(outcome.error["message"].encode()) <= MESSAGE_BYTES


def test_f10_kf34_endless_recursion_is_a_failure():
    outcome = execution(deep).run()
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error["type"] == "RecursionError"
    assert outcome.error["where"].startswith("tests.workers.test_execution:deep")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", [ValueError, PermanentFailure, Cancelled])
def test_f10_kf33_error_texts_are_cleaned_and_cut(kind, text):
    outcome = outcome_of(kind(text))
    told = outcome.reason if kind is Cancelled else (outcome.error or {})["message"]
    encoded = told.encode()  # fails on a lone surrogate
    assert b"\x00" not in encoded
    assert 0 < len(encoded) <= MESSAGE_BYTES
    if text == TEXTS["emoji"]:
        assert told == text


def test_the_place_of_an_error_is_told():
    outcome = outcome_of(ValueError("boom"))
    assert outcome.error is not None
    assert outcome.error["where"].startswith("tests.workers.test_execution:raising.")


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("cancel", Ending.CANCELLED),
        ("lease_lost", Ending.RELEASED),
        ("shutdown", Ending.RELEASED),
    ],
)
def test_kf30_an_attempt_that_was_stopped_before_it_began_never_enters_the_handler(reason, ending):
    one = execution(lambda ctx: pytest.fail("it ran"))
    one.stop.ask(reason)
    outcome = one.run()
    assert outcome is not None
    assert outcome.ending is ending
    assert not outcome.by_handler
    assert not one.begun


@pytest.mark.parametrize(
    ("reason", "ending", "cause"),
    [
        ("cancel", Ending.CANCELLED, "error"),
        ("timeout", Ending.FAILED, "timeout"),
        ("shutdown", Ending.RELEASED, "error"),
        ("lease_lost", Ending.RELEASED, "error"),
    ],
)
def test_what_a_handler_that_obeys_has_come_to_depends_on_who_asked(reason, ending, cause):
    outcome = stopping(reason, Cancelled("stopped")).run()
    assert outcome is not None
    assert (outcome.ending, outcome.cause) == (ending, cause)
    assert not outcome.by_handler


def test_a_handler_that_fails_after_its_time_was_over_failed_by_timeout():
    outcome = stopping("timeout", ValueError("half done")).run()
    assert outcome is not None
    assert (outcome.ending, outcome.cause) == (Ending.FAILED, "timeout")
    assert outcome.error is not None
    assert outcome.error["type"] == "ValueError"


@pytest.mark.parametrize("reason", ["cancel", "timeout", "shutdown"])
def test_a_handler_that_finishes_in_spite_of_the_wish_has_succeeded(reason):
    outcome = stopping(reason, result={"paid": True}).run()
    assert outcome is not None
    assert (outcome.ending, outcome.result) == (Ending.SUCCEEDED, {"paid": True})


def test_an_attempt_out_of_time_is_a_timeout_whoever_reports_it():
    outcome = execution(timeout_seconds=2.5).timed_out()
    assert (outcome.ending, outcome.cause) == (Ending.FAILED, "timeout")
    assert outcome.error == {
        "type": "JobTimeout",
        "message": "no end within 2.5 s",
        "where": "",
    }


def test_exactly_one_of_many_may_report_an_attempt():
    for _ in range(50):
        one, right = execution(), list[bool]()
        barrier = threading.Barrier(4)

        def settle(one=one, right=right, barrier=barrier):
            barrier.wait(10)
            right.append(one.settle())

        threads = [threading.Thread(target=settle) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(right) == [False, False, False, True]


def test_kf33_an_outcome_that_cannot_be_stored_keeps_its_meaning_without_its_contents():
    outcome = outcome_of(ValueError("secret"), attempt=2)
    outcome.reason, outcome.result = "because", {"x": 1}
    bare = outcome.stripped()
    assert (bare.ending, bare.taken, bare.result, bare.reason) == (
        Ending.FAILED,
        outcome.taken,
        None,
        "",
    )
    assert bare.error is not None
    assert "secret" not in str(bare.error)
    assert outcome_of(Snooze(5)).stripped().error is None
