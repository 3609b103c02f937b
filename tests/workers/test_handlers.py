"""The registry of handlers, and what a handler is told about its attempt."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from types import ModuleType
from uuid import UUID

import pytest
from django.apps import AppConfig, apps

from jobs.conf import conf
from jobs.errors import InvalidField
from jobs.policies.retry import DEFAULT_POLICY, RetryPolicy
from tests.workers.attempts import execution
from workers import handlers
from workers.handlers import Cancelled, HandlerSpec, RetryAfter, Snooze, discover, handler


@pytest.fixture(autouse=True)
def registry(monkeypatch) -> dict[str, HandlerSpec]:
    """A registry of the test's own."""
    names: dict[str, HandlerSpec] = {}
    monkeypatch.setattr(handlers, "_registry", names)
    return names


def charge(ctx):
    return None


def test_a_handler_is_found_under_its_name_with_the_defaults_of_the_settings(registry):
    assert handler("billing.charge")(charge) is charge
    assert registry["billing.charge"] == HandlerSpec(
        name="billing.charge",
        function=charge,
        timeout_seconds=conf().default_timeout_seconds,
        max_attempts=conf().default_max_attempts,
        retry=DEFAULT_POLICY,
        transactional=False,
    )


def test_a_handler_states_what_differs_from_the_defaults(registry):
    policy = {"kind": "exponential", "base_seconds": 2, "factor": 3, "jitter": 0.1}
    handler("x", timeout_seconds=7, max_attempts=2, retry=policy, transactional=True)(charge)
    made = registry["x"]
    assert (made.timeout_seconds, made.max_attempts, made.transactional) == (7, 2, True)
    assert made.retry == RetryPolicy.parse(policy, "")


def test_two_functions_cannot_share_a_name_but_a_module_may_be_read_twice(registry):
    handler("billing.charge")(charge)
    handler("billing.charge")(charge)
    with pytest.raises(ValueError, match=r"two handlers are named 'billing.charge'"):
        handler("billing.charge")(lambda ctx: None)
    assert registry["billing.charge"].function is charge


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_that_no_column_holds_is_refused(name, registry):
    with pytest.raises(ValueError, match="1 to 200 characters"):
        handler(name)
    assert registry == {}


def test_a_faulty_policy_is_refused_where_it_is_written(registry):
    with pytest.raises(InvalidField, match="/factor"):
        handler("x", retry={"kind": "exponential", "factor": 0})(charge)
    assert registry == {}


def test_discovery_reads_the_handlers_module_of_each_installed_app(monkeypatch):
    package, module = ModuleType("shop_of_the_test"), ModuleType("shop_of_the_test.handlers")
    package.__path__ = []
    vars(package)["handlers"] = module
    monkeypatch.setitem(sys.modules, "shop_of_the_test", package)
    monkeypatch.setitem(sys.modules, "shop_of_the_test.handlers", module)
    config = AppConfig.create("workers")
    config.name, config.label = "shop_of_the_test", "shop_of_the_test"
    config.module = package
    monkeypatch.setattr(apps, "app_configs", {**apps.app_configs, "shop_of_the_test": config})
    handler("shop.charge")(charge)  # as that module does when it is read
    found = discover()
    assert found["shop.charge"].function is charge
    found.clear()
    assert discover() != {}  # a copy was given


def test_a_context_tells_what_the_attempt_is():
    ctx = execution(
        attempt=3, token=4, payload='{"amount": 1299, "to": "ann@example.org"}'
    ).context
    assert isinstance(ctx.job_id, UUID)
    assert (ctx.attempt, ctx.fencing_token, ctx.tenant) == (3, 4, "acme")
    assert ctx.payload == {"amount": 1299, "to": "ann@example.org"}
    assert ctx.payload is ctx.payload  # parsed once
    assert ctx.payload_ref is None


@pytest.mark.parametrize("payload", ["null", '"text"', "[1, 2]", "1.5", '{"a": "💥"}'])
def test_any_json_is_a_payload(payload):
    assert execution(payload=payload).context.payload == json.loads(payload)


def test_a_job_without_payload_has_none_and_may_have_a_reference():
    ctx = execution(payload=None, payload_ref="s3://orders/8812").context
    assert ctx.payload is None
    assert ctx.payload_ref == "s3://orders/8812"


def test_the_idempotency_token_is_the_same_for_every_attempt_and_never_contains_its_number():
    tokens = {execution(attempt=n, token=n).context.idempotency_token for n in range(1, 6)}
    assert tokens == {"acme/order-8812"}


def test_a_job_without_request_key_is_recognised_by_its_id():
    ctx = execution(request_key=None).context
    assert ctx.idempotency_token == f"acme/{ctx.job_id}"


@pytest.mark.parametrize(
    ("fraction", "stored"), [(1 / 3, 0.3333), (1, 1.0), (7, 1.0), (-0.5, 0.0), (math.nan, 0.0)]
)
def test_progress_is_a_share_of_the_whole_whatever_was_given(fraction, stored):
    ctx = execution().context
    ctx.progress(fraction)
    assert ctx.progress_note == {"fraction": stored, "note": ""}


@pytest.mark.parametrize("note", ["x" * 5_000, "💥" * 100, "a\x00b", "a\ud800b"])
def test_kf33_a_note_is_made_storable_before_the_heartbeat_of_all_jobs_carries_it(note):
    ctx = execution().context
    ctx.progress(0.5, note)
    assert ctx.progress_note is not None
    stored = str(ctx.progress_note["note"]).encode()
    assert b"\x00" not in stored
    assert 0 < len(stored) <= 200


def test_a_wait_ends_at_once_when_the_attempt_should_stop():
    one = execution()
    assert one.context.wait(0.001) is False
    timer = threading.Timer(0.05, one.stop.ask, ["cancel"])
    timer.start()
    began = time.monotonic()
    assert one.context.wait(30) is True
    assert time.monotonic() - began < 10
    timer.join()
    assert one.context.wait(30) is True  # asked before: no wait at all


def test_an_attempt_that_should_stop_can_leave_at_a_safe_point():
    one = execution()
    one.context.raise_if_cancelled()
    assert execution().context.cancelled is False
    one.stop.ask("cancel")
    assert one.context.cancelled
    with pytest.raises(Cancelled, match="cancel"):
        one.context.raise_if_cancelled()


def test_the_first_reason_to_stop_stays():
    stop = execution().stop
    stop.ask("timeout")
    stop.ask("cancel")
    assert stop.reason == "timeout"


def test_a_draining_worker_says_so_without_stopping_anything():
    drain = threading.Event()
    ctx = execution(drain=drain).context
    assert execution().context.shutting_down is False
    drain.set()
    assert ctx.shutting_down
    assert not ctx.cancelled


def test_the_lease_is_trusted_for_four_fifths_of_its_time_counted_from_the_sending(profile):
    one = execution(sent_at=time.monotonic())
    assert 1.0 < one.context.lease_remaining() <= 0.8 * conf().lease_ttl_seconds
    late = execution(sent_at=time.monotonic() - 3600)
    assert late.context.lease_remaining() == 0.0


def test_the_deadline_counts_from_the_start_of_the_handler(profile):
    seen = []
    one = execution(lambda ctx: seen.append(ctx.deadline), timeout_seconds=5.0, sent_at=0.0)
    began = time.monotonic()
    one.run()
    assert began + 5.0 <= seen[0] <= time.monotonic() + 5.0


@pytest.mark.parametrize("error", [RetryAfter(2.5), Snooze(2.5)])
def test_steering_exceptions_explain_themselves(error):
    assert "2.5 s" in str(error)
    assert str(type(error)(1, "the bank is closed")) == "the bank is closed"
