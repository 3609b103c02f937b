"""parse_request: each faulty field is named by its JSON pointer, all faults at once, and nothing is guessed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from jobs.conf import conf
from jobs.errors import PayloadTooLarge, ValidationFailed
from jobs.services.requests import JobRequest, parse_request

NAN, INFINITY = float("nan"), float("inf")
SURROGATE, NUL = "a\ud800b", "a\x00b"


def faults_of(fields: Any, pointer: str = "") -> list[tuple[str, str]]:
    """(pointer, code) of every fault."""
    with pytest.raises(ValidationFailed) as refused:
        parse_request(fields, pointer)
    assert all(fault.reason for fault in refused.value.errors)
    return [(fault.pointer, fault.field_code) for fault in refused.value.errors]


def faults_with(**fields: Any) -> list[tuple[str, str]]:
    return faults_of({"handler": "billing.charge", **fields})


def test_a_request_with_nothing_but_its_handler_is_complete():
    request = parse_request({"handler": "billing.charge"})
    assert request == JobRequest(handler="billing.charge", sent={"handler": "billing.charge"})
    assert (request.payload, request.due_at, request.delay_seconds) == (None, None, 0.0)


def test_every_field_is_taken_as_given():
    sent = {
        "handler": "billing.charge",
        "payload": {"emoji": "💥", "rtl": "שלום", "n": [1, -0.5, None, True]},
        "due_at": "2026-12-01T00:00:00+01:00",
        "lane": "urgent",
        "priority": -7,
        "labels": {"region": "eu", "gpu": "a100"},
        "request_key": "Rechnung Nr. 8812: é",
        "reference": "cus_431",
        "tags": ["vip", "eu"],
        "max_attempts": 7,
        "retry": {"kind": "list", "delays": [1, 60]},
        "timeout_seconds": 12.5,
        "concurrency_key": "account-7",
    }
    assert parse_request(sent) == JobRequest(
        handler="billing.charge",
        payload=sent["payload"],
        due_at=datetime(2026, 11, 30, 23, tzinfo=UTC),
        lane="urgent",
        priority=-7,
        labels={"region": "eu", "gpu": "a100"},
        request_key="Rechnung Nr. 8812: é",
        reference="cus_431",
        tags=("vip", "eu"),
        max_attempts=7,
        retry={
            "kind": "list",
            "delays": [1.0, 60.0],
            "max_seconds": 86_400.0,
            "jitter": 0.5,
        },
        timeout_seconds=12.5,
        concurrency_key="account-7",
        sent=sent,
    )


GOOD = [
    ("payload_ref", "s3://bucket/key"),
    ("payload_ref", "x" * 2000),
    ("delay_seconds", 0),
    ("delay_seconds", 366 * 86_400),
    ("priority", 100),
    ("priority", -100),
    ("priority", 3.0),
    ("labels", {}),
    ("labels", {"a" * 63: "b" * 63}),
    ("request_key", "k"),
    ("request_key", "k" * 255),
    ("reference", ""),
    ("reference", "r" * 128),
    ("tags", []),
    ("tags", ["t" * 64] * 32),
    ("max_attempts", 1),
    ("max_attempts", 1000),
    ("timeout_seconds", 0.001),
    ("timeout_seconds", 86_400),
    ("concurrency_key", "c" * 255),
    ("due_at", "1970-01-01T00:00:00Z"),
    ("due_at", datetime(2026, 12, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    ("payload", None),
    ("payload", "text"),
]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=lambda value: str(value)[:30])
def test_values_at_the_edge_of_what_is_allowed_are_accepted(name, value):
    request = parse_request({"handler": "billing.charge", name: value})
    assert request.sent[name] == value


def texts(name: str, most: int, *, empty: bool = False) -> list[tuple[str, Any, str]]:
    """Bad values of a text field."""
    wrong = [(name, value, "wrong_type") for value in (None, 7, True, ["a"], {"a": 1}, b"a")]
    odd = [(name, NUL, "invalid_text"), (name, SURROGATE, "invalid_text")]
    length = [(name, "x" * (most + 1), "length"), *([] if empty else [(name, "", "length")])]
    return [*wrong, *odd, *length]


def numbers(name: str, least: Any, most: Any) -> list[tuple[str, Any, str]]:
    """Bad values of a number field."""
    wrong = (None, "7", True, [7], {"n": 7}, Decimal(7))
    outside = (least - 0.0001 if isinstance(least, float) else least - 1, most + 1)
    return [
        *((name, value, "wrong_type") for value in wrong),
        *((name, value, "out_of_range") for value in outside),
        *((name, value, "out_of_range") for value in (NAN, INFINITY, -INFINITY, 10**400)),
    ]


BAD = [
    *texts("handler", 200),
    *texts("payload_ref", 2000),
    *texts("lane", 63),
    *texts("request_key", 255),
    *texts("reference", 128, empty=True),
    *texts("concurrency_key", 255),
    *(("request_key", key, "not_printable") for key in ("a\nb", "a\tb", "a\u200bb", "a\u2028b")),
    *numbers("delay_seconds", 0, 366 * 86_400),
    *numbers("priority", -100, 100),
    *numbers("max_attempts", 1, 1000),
    *numbers("timeout_seconds", 0.001, 86_400),
    ("priority", 1.5, "wrong_type"),
    ("max_attempts", 2.5, "wrong_type"),
    ("labels", None, "wrong_type"),
    ("labels", ["region"], "wrong_type"),
    ("labels", {str(n): "x" for n in range(33)}, "too_many"),
    ("tags", None, "wrong_type"),
    ("tags", "vip", "wrong_type"),
    ("tags", {"vip": 1}, "wrong_type"),
    ("tags", ["t"] * 33, "too_many"),
    ("retry", None, "wrong_type"),
    ("retry", "fixed", "wrong_type"),
]


@pytest.mark.parametrize(("name", "value", "code"), BAD, ids=lambda value: repr(value)[:30])
def test_a_bad_value_names_its_field(name, value, code):
    assert faults_with(**{name: value}) == [(f"/{name}", code)]


TIMES = [
    ("due_at", None, "wrong_type"),
    ("due_at", 1_780_000_000, "wrong_type"),
    ("due_at", "tomorrow", "invalid_time"),
    ("due_at", "20261201", "invalid_time"),
    ("due_at", "2026-12-01", "invalid_time"),
    ("due_at", "2026-02-30T00:00:00Z", "invalid_time"),
    ("due_at", "2026-12-01T00:00:00", "offset_missing"),
    ("due_at", "1969-12-31T23:59:59Z", "out_of_range"),
    ("due_at", "2101-01-01T00:00:00Z", "out_of_range"),
    ("due_at", datetime(2026, 12, 1), "naive_time"),  # noqa: DTZ001 (the fault under test)
]


@pytest.mark.parametrize(("name", "value", "code"), TIMES, ids=lambda value: repr(value)[:30])
def test_s24_a_time_without_a_zone_or_out_of_range_is_refused_and_never_guessed(name, value, code):
    assert faults_with(**{name: value}) == [(f"/{name}", code)]


TEXTS = [
    ("payload", {"items": [1, {"x": NUL}]}, "/payload/items/1/x", "invalid_text"),
    ("payload", {"items": [SURROGATE]}, "/payload/items/0", "invalid_text"),
    ("payload", {NUL: 1}, "/payload/a\\u0000b", "invalid_text"),
    ("payload", {"deep": {SURROGATE: 1}}, "/payload/deep/a\\ud800b", "invalid_text"),
    ("tags", ["vip", NUL], "/tags/1", "invalid_text"),
    ("labels", {"region": NUL}, "/labels/region", "invalid_label"),
    ("labels", {NUL: "eu"}, "/labels/a\\u0000b", "invalid_label"),
    ("request_key", NUL, "/request_key", "invalid_text"),
    ("reference", SURROGATE, "/reference", "invalid_text"),
]
NUMBERS = [
    ("payload", {"n": NAN}, "/payload/n", "out_of_range"),
    ("payload", {"n": [INFINITY]}, "/payload/n/0", "out_of_range"),
    ("payload", [1e999], "/payload/0", "out_of_range"),
    ("payload", [2**63], "/payload/0", "out_of_range"),
    ("payload", [-(2**63) - 1], "/payload/0", "out_of_range"),
    ("delay_seconds", NAN, "/delay_seconds", "out_of_range"),
    ("timeout_seconds", INFINITY, "/timeout_seconds", "out_of_range"),
    ("retry", {"kind": "fixed", "jitter": NAN}, "/retry/jitter", "out_of_range"),
]
LABELS = [
    ("labels", {"Region": "eu"}, "/labels/Region", "invalid_label"),
    ("labels", {"region": "EU"}, "/labels/region", "invalid_label"),
    ("labels", {"region": "\uff45\uff55"}, "/labels/region", "invalid_label"),  # wide eu
    ("labels", {"region": "\u0435u"}, "/labels/region", "invalid_label"),  # Cyrillic e
    ("labels", {"region": ""}, "/labels/region", "invalid_label"),
    ("labels", {"region": "a" * 64}, "/labels/region", "invalid_label"),
    ("labels", {"region": "eu\n"}, "/labels/region", "invalid_label"),
    ("labels", {"region": 1}, "/labels/region", "wrong_type"),
    ("labels", {"": "eu"}, "/labels/", "invalid_label"),
    ("labels", {"a/b": "eu"}, "/labels/a~1b", "invalid_label"),
]
INSIDE = [
    ("payload", {"a/b": {"c~d": object()}}, "/payload/a~1b/c~0d", "wrong_type"),
    ("payload", {1: "a"}, "/payload", "wrong_type"),
    ("payload", {"k" * 257: 1}, "/payload/" + "k" * 80 + "…", "too_long"),
    ("payload", list(range(10_001)), "/payload", "too_many"),
    ("tags", ["vip", 7], "/tags/1", "wrong_type"),
    ("tags", ["vip", ""], "/tags/1", "length"),
    ("tags", ["t" * 65], "/tags/0", "length"),
    ("retry", {}, "/retry/kind", "required"),
    ("retry", {"kind": "never"}, "/retry/kind", "unknown"),
    ("retry", {"kind": "fixed", "factor": 2}, "/retry/factor", "unknown"),
    ("retry", {"kind": "fixed", "base_seconds": -1}, "/retry/base_seconds", "out_of_range"),
    ("retry", {"kind": "list", "delays": [1, 0]}, "/retry/delays/1", "out_of_range"),
]


def each(faults: list[tuple[str, Any, str, str]]) -> pytest.MarkDecorator:
    names = ("name", "value", "pointer", "code")
    return pytest.mark.parametrize(names, faults, ids=lambda value: repr(value)[:30])


@each(INSIDE)
def test_a_fault_inside_a_field_is_named_where_it_is(name, value, pointer, code):
    assert faults_with(**{name: value}) == [(pointer, code)]


@each(TEXTS)
def test_s22_nul_and_lone_surrogates_are_named_in_values_and_in_keys(name, value, pointer, code):
    assert faults_with(**{name: value}) == [(pointer, code)]


@each(NUMBERS)
def test_s23_numbers_that_json_or_the_database_cannot_hold_are_named(name, value, pointer, code):
    assert faults_with(**{name: value}) == [(pointer, code)]


@each(LABELS)
def test_s26_labels_that_are_not_plain_lower_case_ascii_are_named(name, value, pointer, code):
    assert faults_with(**{name: value}) == [(pointer, code)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [33, 5000, 200_000])
def test_s21_a_payload_that_is_nested_too_deep_is_refused_whatever_its_depth(depth):
    parse_request({"handler": "billing.charge", "payload": nested(32)})
    payload = nested(depth)
    ((pointer, code),) = faults_with(payload=payload)
    assert (pointer.count("/0"), code) == (32, "too_deep")
    while isinstance(payload, list):  # taken apart here: freeing it at once would recurse
        payload = payload.pop()


def test_s20_a_payload_over_the_limit_is_told_its_size_and_the_limit():
    limit = conf().payload_max_bytes
    fits = "x" * (limit - 2)  # and two quotes
    assert parse_request({"handler": "h", "payload": fits}).payload == fits
    with pytest.raises(PayloadTooLarge) as refused:
        parse_request({"handler": "h", "payload": fits + "x"}, "/jobs/3")
    assert (refused.value.limit, refused.value.pointer) == (limit, "/jobs/3/payload")
    assert str(limit + 1) in refused.value.detail


def test_the_handler_is_required_and_unknown_fields_are_faults():
    assert faults_of({}) == [("/handler", "required")]
    assert faults_with(handlr="x", status="dead") == [
        ("/handlr", "unknown"),
        ("/status", "unknown"),
    ]
    assert faults_with(**{"a/b~c\x00": 1}) == [("/a~1b~0c\\u0000", "unknown")]


@pytest.mark.parametrize("name", ["id", "tenant", "status", "attempt", "lease_token", "shard"])
def test_what_the_server_decides_cannot_be_sent(name):
    assert faults_with(**{name: 1}) == [(f"/{name}", "unknown")]


def test_fields_that_exclude_each_other_are_named():
    assert faults_with(payload=1, payload_ref="s3://x") == [("/payload_ref", "conflict")]
    assert faults_with(due_at="2026-12-01T00:00:00Z", delay_seconds=1) == [
        ("/delay_seconds", "conflict")
    ]


@pytest.mark.parametrize("body", [None, 7, "text", ["handler"], True], ids=repr)
def test_a_request_that_is_no_object_is_one_fault(body):
    assert faults_of(body) == [("", "wrong_type")]
    assert faults_of(body, "/jobs/3") == [("/jobs/3", "wrong_type")]


def test_several_faults_are_all_listed_in_the_order_of_the_fields():
    found = faults_of(
        {
            "payload": {"n": NAN},
            "due_at": "tomorrow",
            "delay_seconds": -1,
            "lane": "",
            "priority": "high",
            "labels": {"Region": "eu", "gpu": 1, "ok": "ok"},
            "request_key": "a\nb",
            "nonsense": 1,
            "max_attempts": 0,
            "retry": {"kind": "never"},
        },
        "/jobs/3",
    )
    assert found == [
        ("/jobs/3/payload/n", "out_of_range"),
        ("/jobs/3/due_at", "invalid_time"),
        ("/jobs/3/delay_seconds", "out_of_range"),
        ("/jobs/3/lane", "length"),
        ("/jobs/3/priority", "wrong_type"),
        ("/jobs/3/labels/Region", "invalid_label"),
        ("/jobs/3/labels/gpu", "wrong_type"),
        ("/jobs/3/request_key", "not_printable"),
        ("/jobs/3/nonsense", "unknown"),
        ("/jobs/3/max_attempts", "out_of_range"),
        ("/jobs/3/retry/kind", "unknown"),
        ("/jobs/3/handler", "required"),
        ("/jobs/3/delay_seconds", "conflict"),
    ]


def test_the_message_of_a_refusal_tells_every_fault():
    with pytest.raises(ValidationFailed) as refused:
        parse_request({"priority": 101, "lane": 7})
    text = str(refused.value)
    assert "/priority" in text
    assert "/lane" in text
    assert "/handler" in text


def test_a_python_caller_gives_an_aware_time_of_any_zone():
    moment = datetime(2026, 12, 1, 5, 45, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    request = parse_request({"handler": "h", "due_at": moment})
    assert request.due_at == datetime(2026, 12, 1, tzinfo=UTC)
    assert request.due_at is not None
    assert request.due_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("delay_seconds", 1e9, "must be from 0 to 31622400"),
        ("timeout_seconds", 0, "must be from 0.001 to 86400"),
        ("priority", 101, "must be from -100 to 100"),
    ],
)
def test_limits_are_written_as_plain_numbers(field, value, words):
    with pytest.raises(ValidationFailed) as refused:
        parse_request({"handler": "h", field: value})
    assert [fault.reason for fault in refused.value.errors] == [words]
