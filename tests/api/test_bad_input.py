"""Input that Python accepts and the database or the scheduler cannot hold, and limits exactly at their edge."""

from __future__ import annotations

import json
import random
from io import BytesIO

import pytest

from jobs.conf import conf
from jobs.models import Job, JobEvent
from tests.api.caller import (
    JOBS,
    REQUEST,
    Answer,
    Caller,
    assert_problem,
    pointers,
    stored,
)
from tests.support.cost import assert_cheap

NOTHING = (0, 0, 0, 0)


def body_with(payload: bytes) -> bytes:
    return b'{"handler": "billing.charge", "payload": ' + payload + b"}"


def padded(size: int) -> bytes:
    body = body_with(b"1")
    return body + b" " * (size - len(body))


CORPUS = {
    "NUL in a value": (body_with(rb'{"a": "x\u0000y"}'), 400, "/payload/a"),
    "NUL in a deep value": (body_with(rb'{"a": [0, {"b": "\u0000"}]}'), 400, "/payload/a/1/b"),
    "NUL in a key": (body_with(rb'{"a\u0000b": 1}'), 400, "/payload/a\\u0000b"),
    "a NUL byte": (body_with(b'"x\x00y"'), 400, ""),
    "NUL in a label": (
        rb'{"handler": "billing.charge", "labels": {"gpu": "\u0000"}}',
        400,
        "/labels/gpu",
    ),
    "NUL in the request key": (
        rb'{"handler": "billing.charge", "request_key": "k\u0000"}',
        400,
        "/request_key",
    ),
    "NUL in the handler": (rb'{"handler": "\u0000"}', 400, "/handler"),
    "NUL in a tag": (rb'{"handler": "billing.charge", "tags": ["a", "\u0000"]}', 400, "/tags/1"),
    "NaN": (body_with(b'{"a": NaN}'), 400, "/payload/a"),
    "Infinity": (body_with(b"[Infinity]"), 400, "/payload/0"),
    "-Infinity": (body_with(b"-Infinity"), 400, "/payload"),
    "1e999": (body_with(b'{"n": 1e999}'), 400, "/payload/n"),
    "-1e400": (body_with(b"[[-1e400]]"), 400, "/payload/0/0"),
    "65 bits": (body_with(b'{"n": 9223372036854775808}'), 400, "/payload/n"),
    "a million digits": (body_with(b"9" * 1_000_000), 400, "/payload"),
    "NaN as a number": (
        b'{"handler": "billing.charge", "delay_seconds": NaN}',
        400,
        "/delay_seconds",
    ),
    "a lone surrogate": (body_with(rb'"\ud800"'), 400, "/payload"),
    "a lone surrogate in a key": (body_with(rb'{"\udfff": 1}'), 400, "/payload/\\udfff"),
    "depth 33": (body_with(b"[" * 32 + b"]" * 32), 400, "/payload" + "/0" * 31),
    "depth 5,000": (body_with(b"[" * 5_000 + b"]" * 5_000), 400, "/payload" + "/0" * 31),
    "depth 10,000": (body_with(b"[" * 10_000 + b"]" * 10_000), 400, "/payload" + "/0" * 31),
    "depth 20,000 of objects": (
        body_with(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
        400,
        "/payload" + "/a" * 31,
    ),
    "depth 500,000, never closed": (body_with(b"[" * 500_000), 400, "/payload" + "/0" * 31),
    "a key given twice": (body_with(b'{"a": 1, "a": 2}'), 400, "/payload/a"),
    "a byte order mark": (b"\xef\xbb\xbf" + body_with(b"1"), 400, ""),
    "UTF-16": (body_with(b"1").decode().encode("utf-16-le"), 400, ""),
    "Latin-1": (body_with(b'"\xe9"'), 400, ""),
    "Arabic digits": (body_with("١٢".encode()), 400, ""),
    "a comment": (b"// hello\n" + body_with(b"1"), 400, ""),
    "a naive time": (
        b'{"handler": "billing.charge", "due_at": "2026-12-01T00:00:00"}',
        422,
        "/due_at",
    ),
    "a time without dashes": (
        b'{"handler": "billing.charge", "due_at": "20261201"}',
        422,
        "/due_at",
    ),
    "a time as a number": (b'{"handler": "billing.charge", "due_at": 1796083200}', 422, "/due_at"),
    "year 2101": (
        b'{"handler": "billing.charge", "due_at": "2101-01-01T00:00:00Z"}',
        422,
        "/due_at",
    ),
    "30 February": (
        b'{"handler": "billing.charge", "due_at": "2027-02-30T00:00:00Z"}',
        422,
        "/due_at",
    ),
    "an oversized payload": (body_with(b'"' + b"x" * 65_535 + b'"'), 413, "/payload"),
    "too many values": (body_with(b"[" + b"1," * 10_000 + b"1]"), 422, "/payload"),
    "a long key": (body_with(b'{"%s": 1}' % (b"k" * 257)), 422, "/payload/" + "k" * 80 + "…"),
    "a label in capitals": (
        b'{"handler": "billing.charge", "labels": {"GPU": "a100"}}',
        422,
        "/labels/GPU",
    ),
    "a Cyrillic look-alike": (
        '{"handler": "billing.charge", "labels": {"gpu": "\u0430100"}}'.encode(),
        422,
        "/labels/gpu",
    ),
    "33 labels": (
        b'{"handler": "billing.charge", "labels": {%s}}'
        % b",".join(b'"l%d": "x"' % n for n in range(33)),
        422,
        "/labels",
    ),
    "a long request key": (
        b'{"handler": "billing.charge", "request_key": "%s"}' % (b"k" * 256),
        422,
        "/request_key",
    ),
    "true as a number": (b'{"handler": "billing.charge", "priority": true}', 422, "/priority"),
    "null as a text": (b'{"handler": "billing.charge", "reference": null}', 422, "/reference"),
    "a retry policy of words": (b'{"handler": "billing.charge", "retry": "often"}', 422, "/retry"),
    "both times": (
        b'{"handler": "billing.charge", "due_at": "2027-01-01T00:00:00Z", "delay_seconds": 1}',
        422,
        "/delay_seconds",
    ),
}


@pytest.mark.parametrize("name", CORPUS)
def test_kf47_bad_input_is_a_4xx_that_names_the_place_and_stores_nothing(owner, name):
    body, status, pointer = CORPUS[name]
    answer = owner.call("POST", JOBS, body)
    code = {400: "malformed_json", 413: "payload_too_large", 422: "validation_failed"}[status]
    assert_problem(answer, status, code)
    assert pointers(answer) == {pointer}
    assert stored() == NOTHING


TEXTS = {
    "emoji": "🧾👩‍🚀🏳️‍🌈",
    "right to left": "שלום عالم \u202eevil\u202c",
    "combining": "e\u0301 é ﷽",
    "controls": "tab\t line\n escape\x1b del\x7f",
    "astral": "\U0010ffff\ufffe",
    "escapes": '\\u0000 " \\ / %s {} ${x} <script>',
}


@pytest.mark.parametrize("name", TEXTS)
def test_kf47_text_of_any_script_comes_back_unchanged(owner, name):
    text = TEXTS[name]
    payload = {text: [text, {"deep": text}], "n": [0.1, 1e15, 2**63 - 1, -(2**63)]}
    fields = {"payload": payload, "reference": text[:100], "tags": [text[:60]]}
    if text.isprintable():
        fields["request_key"] = text
    created = owner.create(**fields)
    assert created.status == 201
    read = owner.get(created.body["id"]).body
    for field, value in fields.items():
        assert read[field] == value
    assert Job.objects.get().payload == payload


def test_s20_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_not(owner):
    limit = conf().body_max_bytes
    assert owner.call("POST", JOBS, padded(limit)).status == 201
    before = stored()
    body = assert_problem(owner.call("POST", JOBS, padded(limit + 1)), 413, "payload_too_large")
    assert body["limit"] == limit == 1_048_576
    assert stored() == before


def test_s20_a_body_that_announces_too_much_is_never_parsed(owner, monkeypatch):
    monkeypatch.delattr("jobs.api.parsers.parse_json")
    answer = owner.call("POST", JOBS, padded(conf().body_max_bytes + 1))
    assert_problem(answer, 413, "payload_too_large")


def test_s20_a_body_that_announces_far_too_much_is_refused_unread(owner):
    stream = BytesIO(padded(1_000))
    answer = owner.call(
        "POST", JOBS, b"x", **{"wsgi.input": stream, "CONTENT_LENGTH": "1" + "0" * 12}
    )
    assert_problem(answer, 413, "payload_too_large")
    assert stream.tell() == 0


def test_s20_a_body_without_a_length_is_kept_to_the_limit_and_not_read_for_ever(owner):
    def send(body: bytes):
        stream = BytesIO(body)
        chunked = {"wsgi.input": stream, "wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
        return owner.call("POST", JOBS, b"x", **chunked), stream

    limit = conf().body_max_bytes
    answer, _ = send(padded(limit))
    assert answer.status == 201
    answer, _ = send(padded(limit + 1))
    assert_problem(answer, 413, "payload_too_large")
    answer, stream = send(padded(40 * limit))
    assert_problem(answer, 413, "payload_too_large")
    assert stream.tell() < 20 * limit


def test_s20_a_body_without_a_length_from_a_server_that_does_not_end_it_is_empty(owner):
    answer = owner.call("POST", JOBS, b"x", CONTENT_LENGTH="")
    assert_problem(answer, 400, "malformed_json")


@pytest.mark.parametrize("megabytes", [2, 3, 12])
def test_s20_the_frameworks_own_limit_is_never_met(owner, megabytes):
    body = body_with(b'"' + b"x" * (megabytes << 20) + b'"')
    assert_problem(owner.call("POST", JOBS, body), 413, "payload_too_large")


def test_s20_the_limit_can_be_above_the_frameworks_own(owner, monkeypatch, settings):
    settings.JOBS = {**settings.JOBS, "body_max_bytes": 4 << 20}
    conf.cache_clear()
    try:
        assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE < 3 << 20
        assert owner.call("POST", JOBS, padded(3 << 20)).status == 201
    finally:
        conf.cache_clear()


def test_s20_a_payload_of_exactly_the_limit_is_stored_and_one_byte_more_is_not(owner):
    limit = conf().payload_max_bytes
    assert owner.create(payload="x" * (limit - 2)).status == 201
    answer = owner.create(payload="x" * (limit - 1))
    body = assert_problem(answer, 413, "payload_too_large")
    assert body["limit"] == limit == 65_536
    assert owner.create(payload="ü" * (limit // 2)).status == 413  # bytes, not characters


def test_s20_values_and_keys_are_counted_to_the_edge(owner):
    assert owner.create(payload=[1] * 9_999).status == 201
    assert owner.create(payload=[1] * 10_000).status == 422
    assert owner.create(payload={"k" * 256: 1}).status == 201
    assert owner.create(payload={"k" * 257: 1}).status == 422


def test_s21_a_document_of_32_levels_is_stored(owner):
    assert owner.call("POST", JOBS, body_with(b"[" * 31 + b"]" * 31)).status == 201


def test_f64_random_damage_is_never_a_5xx_and_is_quick(owner):
    """Seeded: every byte of a good request may be replaced, dropped or doubled. Time is CPU time."""
    source = random.Random(64)
    good = json.dumps(
        {
            **REQUEST,
            "due_at": "2027-01-01T00:00:00+01:00",
            "labels": {},
            "tags": ["a"],
            "priority": 3,
            "retry": {"kind": "fixed", "base_seconds": 1.0},
            "timeout_seconds": 1.5,
            "request_key": "k",
            "reference": "ü\\u0000",
        },
        ensure_ascii=False,
    ).encode()
    odd = [
        b"\x00",
        b"\xff",
        b'"',
        b"\\",
        b"[",
        b"}",
        b"9",
        b"-",
        b"e",
        b"\\ud800",
        b"NaN",
        b"\xf0\x9f",
    ]
    for _ in range(400):
        damaged = bytearray(good)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(damaged))
            damaged[at : at + source.randint(0, 3)] = source.choice(odd)
        answers: list[Answer] = []
        assert_cheap(lambda: answers.append(owner.call("POST", JOBS, bytes(damaged))), seconds=1)  # noqa: B023
        answer = answers[-1]
        assert answer.status in (200, 201, 400, 413, 422), bytes(damaged)
        if answer.status >= 400 and answer.body["code"] != "malformed_json":
            assert answer.body["errors"] or answer.body["code"] == "request_key_reused"
    assert Job.objects.count() == JobEvent.objects.count()


SERVER_OWNED = {
    *(field.attname for field in Job._meta.get_fields() if hasattr(field, "attname")),
    *(field.name for field in Job._meta.get_fields()),
    *"tenant lease worker token phase links idempotency_token scopes pool events cancel".split(),  # noqa: SIM905
} - set(
    """handler payload payload_ref due_at lane priority request_key reference tags max_attempts retry timeout_seconds
    concurrency_key""".split()  # noqa: SIM905
)


def test_s07_the_list_of_server_owned_fields_is_not_empty():
    assert {"tenant_id", "status", "attempt", "lease_token", "created_by", "id"} <= SERVER_OWNED


@pytest.mark.parametrize("field", sorted(SERVER_OWNED))
def test_s07_server_owned_fields_are_refused_not_ignored(owner, stranger, field):
    value = stranger.tenant.pk if field.startswith("tenant") else "x"
    answer = owner.create(**{field: value})
    assert_problem(answer, 422, "validation_failed")
    assert pointers(answer) == {f"/{field}"}
    assert answer.body["errors"][0]["code"] == "unknown"
    assert stored() == NOTHING


def test_s07_the_tenant_is_the_tokens_whatever_is_sent(owner, stranger):
    owner.create()
    assert Job.objects.get().tenant == owner.tenant != stranger.tenant
    assert Caller(stranger.tenant).get(Job.objects.get().pk).status == 404
