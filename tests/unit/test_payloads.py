"""Strict JSON: what may enter, what is refused and where, what counts as the same request."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import InvalidField, MalformedJson, PayloadTooLarge
from jobs.policies.payloads import (
    canonical_json,
    check_payload,
    check_scalar,
    parse_json,
    request_hash,
)
from jobs.policies.pointers import child_pointer
from tests.support.cost import assert_cheap

storable_text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(storable_text, inner, max_size=5),
    max_leaves=30,
)


def same(a: object, b: object) -> bool:
    """Equality that tells True from 1 and 1 from 1.0, as `==` does not."""
    return repr(a) == repr(b)


@given(json_values, st.booleans())
@settings(deadline=None)
def test_kf47_whatever_can_be_stored_is_read_back_unchanged(value: object, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    parsed = parse_json(body)
    assert same(parsed, value)
    check_payload(parsed)
    assert same(json.loads(json.dumps(parsed, ensure_ascii=False).encode()), value)


def test_kf47_emoji_and_right_to_left_text_pass_raw_and_escaped() -> None:
    value = {
        "emoji 👩‍👩‍👧": "💥\U0010ffff",
        "rtl": "שלום \u202e\u0645\u0631\u062d",
        "control": "\u2028\x7f\ufffe",
    }
    for body in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parse_json(body.encode()) == value
    check_payload(value)


MALFORMED: dict[str, tuple[bytes, str]] = {
    # syntax: no pointer, line and column instead
    "empty": (b"", ""),
    "blank": (b"  \n ", ""),
    "cut off": (b'{"a": [1, 2', ""),
    "cut off in a text": (b'{"a": "b', ""),
    "trailing comma": (b"[1,]", ""),
    "trailing comma in an object": (b'{"a":1,}', ""),
    "two values": (b"1 2", ""),
    "comment": (b"[1] // one", ""),
    "single quotes": (b"{'a': 1}", ""),
    "bare key": (b"{a: 1}", ""),
    "number as key": (b"{1: 1}", ""),
    "unbalanced": (b"[}", ""),
    "closed too often": (b"[1]]", ""),
    "raw control character": (b'["a\x01b"]', ""),
    "raw line end in a text": (b'["a\nb"]', ""),
    "bad escape": (b'["\\x41"]', ""),
    "short escape": (b'["\\u12"]', ""),
    "leading zero": (b"[01]", ""),
    "plus sign": (b"[+1]", ""),
    "bare point": (b"[1.]", ""),
    "hexadecimal": (b"[0x10]", ""),
    "underscore": (b"[1_000]", ""),
    "capital literal": (b"[True]", ""),
    "no-break space": ("\u00a0[1]".encode(), ""),
    "form feed": (b"\x0c[1]", ""),
    # encodings
    "UTF-8 byte order mark": (b"\xef\xbb\xbf{}", ""),
    "UTF-16 with mark": ('{"a":1}'.encode("utf-16"), ""),
    "UTF-16 big endian with mark": (b"\xfe\xff" + '{"a":1}'.encode("utf-16-be"), ""),
    "UTF-16 little endian": ('{"a":1}'.encode("utf-16-le"), ""),
    "UTF-16 big endian": ('{"a":1}'.encode("utf-16-be"), ""),
    "UTF-32": ('{"a":1}'.encode("utf-32"), ""),
    "Latin-1": ('["é"]'.encode("latin-1"), ""),
    "overlong encoding": (b'["\xc0\x80"]', ""),
    "encoded surrogate": (b'["\xed\xa0\x80"]', ""),
    "beyond Unicode": (b'["\xf4\x90\x80\x80"]', ""),
    "cut off character": (b'["\xf0\x9f\x92"]', ""),
    "raw NUL": (b'["a\x00b"]', ""),
    # digits of other scripts
    "full-width digit": ("[\uff11]".encode(), ""),
    "Arabic-Indic digit": ("[1\u0662]".encode(), ""),
    "Devanagari fraction": ("[1.\u0967]".encode(), ""),
    # one bad value: the pointer says where
    "NaN": (b'{"a": [1, NaN]}', "/a/1"),
    "Infinity": (b'{"a": {"b": Infinity}}', "/a/b"),
    "-Infinity": (b"[-Infinity]", "/0"),
    "1e400": (b'{"payload": {"x": 1e400}}', "/payload/x"),
    "-1e999": (b"[[-1e999]]", "/0/0"),
    "a fraction that overflows": (b"[" + b"9" * 400 + b".5]", "/0"),
    "2**63": (b'{"n": 9223372036854775808}', "/n"),
    "-2**63 - 1": (b'{"n": -9223372036854775809}', "/n"),
    "5,000 digits": (b'{"n": ' + b"1" * 5000 + b"}", "/n"),
    "bad value alone": (b"NaN", ""),
    "duplicate key": (b'{"a": 1, "b": 2, "a": 3}', "/a"),
    "duplicate key below": (b'{"x": [0, {"k": 1, "k": 1}]}', "/x/1/k"),
    "duplicate key, written differently": (b'{"a": 1, "\\u0061": 2}', "/a"),
    "duplicate empty key": (b'{"": 1, "": 2}', "/"),
    "NUL": (b'{"a": "x\\u0000y"}', "/a"),
    "NUL alone": (b'"\\u0000"', ""),
    "NUL in a key": (b'{"p": {"x\\u0000y": 1}}', "/p/x\\u0000y"),
    "lone high surrogate": (b'{"a": ["\\ud800"]}', "/a/0"),
    "lone low surrogate": (b'["ok", "\\uDFFF!"]', "/1"),
    "surrogates in the wrong order": (b'["\\udc00\\ud800"]', "/0"),
    "lone surrogate in a key": (b'{"\\ud800": 1}', "/\\ud800"),
    "key with a slash and a tilde": (b'{"a/b": {"~": NaN}}', "/a~1b/~0"),
    "first of several": (b'{"ok": 1, "first": "\\u0000", "second": NaN}', "/first"),
}


@pytest.mark.parametrize(("body", "pointer"), MALFORMED.values(), ids=MALFORMED.keys())
def test_s23_what_cannot_be_stored_and_read_back_is_refused_with_its_place(
    body: bytes, pointer: str
) -> None:
    with pytest.raises(MalformedJson) as refusal:
        parse_json(body)
    assert refusal.value.pointer == pointer
    refusal.value.detail.encode()  # can be sent


def test_s23_the_answer_to_a_byte_order_mark_says_what_to_send() -> None:
    for body in (b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\xfe\xff\x00{\x00}"):
        with pytest.raises(MalformedJson, match="byte order mark; send plain UTF-8"):
            parse_json(body)


def test_s22_the_answer_to_a_raw_nul_says_where_it_is() -> None:
    for body, position in ((b'["a\x00b"]', 3), ("[1]".encode("utf-16-le"), 1), (b"\x00", 0)):
        with pytest.raises(MalformedJson, match=f"NUL at byte {position}; send plain UTF-8"):
            parse_json(body)


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud800", "\\udc00", "\\uD83D", "\\uDE00\\uD83D"])
def test_s22_nul_and_lone_surrogates_are_refused_in_values_and_keys(escape: str) -> None:
    for body, pointer in (
        (f'{{"payload": {{"deep": [1, "a{escape}b"]}}}}', "/payload/deep/1"),
        (f'{{"request_key": "{escape}"}}', "/request_key"),
    ):
        with pytest.raises(MalformedJson) as refusal:
            parse_json(body.encode())
        assert refusal.value.pointer == pointer
    with pytest.raises(MalformedJson) as refusal:
        parse_json(f'{{"labels": {{"a{escape}": "x"}}}}'.encode())
    assert refusal.value.pointer.startswith("/labels/a")
    refusal.value.pointer.encode()


def test_s22_escapes_that_only_look_like_nul_or_surrogates_pass() -> None:
    body = rb'["\\u0000", "\\ud800", "\ud83d\ude00", "\\\\u0000", "\u00010"]'
    assert parse_json(body) == ["\\u0000", "\\ud800", "\U0001f600", "\\\\u0000", "\x010"]


def test_s23_numbers_at_the_edge_pass() -> None:
    body = b"[9223372036854775807, -9223372036854775808, 1.7976931348623157e308, 5e-324, -0.0, 1E2, 0]"
    assert same(
        parse_json(body),
        [2**63 - 1, -(2**63), 1.7976931348623157e308, 5e-324, -0.0, 100.0, 0],
    )


def nested(depth: int, *, closed: bool = True, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + (closing * depth if closed else "")).encode()


@pytest.mark.parametrize("depth", [1, 31, 32])
def test_s21_nesting_up_to_the_limit_passes(depth: int) -> None:
    assert parse_json(nested(depth)) is not None
    assert (
        parse_json(nested(depth, opening='{"a":', closing="}").replace(b":}", b":1}")) is not None
    )
    check_payload(parse_json(nested(depth)))


@pytest.mark.parametrize("depth", [33, 5_000, 20_000, 10**6])
@pytest.mark.parametrize("closed", [True, False])
def test_s21_deeper_nesting_is_refused_before_anything_is_built(depth: int, closed: bool) -> None:
    body = nested(depth, closed=closed)

    def refuse() -> None:
        with pytest.raises(MalformedJson, match="nested deeper than 32") as refusal:
            parse_json(body)
        assert refusal.value.pointer == "/0" * 32

    assert_cheap(refuse, seconds=1)


def test_kf47_the_place_of_deep_nesting_is_named() -> None:
    body = b'{"ok": "[[{{\\"", "payload": {"a , b": [7, ' + nested(10_000) + b"]}}"
    with pytest.raises(MalformedJson, match="nested deeper") as refusal:
        parse_json(body)
    assert refusal.value.pointer == "/payload/a , b/1" + "/0" * 29


def refused(body: bytes) -> None:
    with pytest.raises(MalformedJson):
        parse_json(body)


def test_s21_mixed_and_broken_nesting_is_refused_too() -> None:
    for body in (
        nested(33, opening='{"a":[', closing="]}"),
        b'[{"a":' * 500_000,
        b"[}" * 500_000,
        b"]" * 10**6,
        b"[" * 32 + b"]}" * 500_000,
        b"[[]" * 333_333,
    ):
        assert_cheap(partial(refused, body), seconds=3)


@pytest.mark.parametrize("depth", [33, 10_000])
def test_s21_objects_count_like_arrays(depth: int) -> None:
    with pytest.raises(MalformedJson, match="nested deeper than 32") as refusal:
        parse_json(b'{"a":' * depth + b"1" + b"}" * depth)
    assert refusal.value.pointer == "/a" * 32
    side_by_side = b"[" + b",".join([b'{"a":{}}'] * 1000) + b"]"
    assert parse_json(side_by_side) == [{"a": {}}] * 1000


def test_s21_brackets_inside_texts_do_not_count() -> None:
    value = {"a": "[" * 1000, 'b"[{\\': ['"[[[[' * 100, "\\", '\\"[']}
    assert parse_json(json.dumps(value).encode()) == value


def test_s21_wide_documents_are_not_deep() -> None:
    body = b"[" + b"[]," * 333_332 + b"[]]"
    value = parse_json(body)
    assert isinstance(value, list)
    assert len(value) == 333_333
    assert_cheap(partial(parse_json, body), seconds=3)


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 500_000,
        b'"' + b"\\" * 10**6,
        b'"' * 10**6,
        b"9" * 10**6,
        b"1e" + b"9" * 10**6,
        b" " * 10**6,
    ],
    ids=["escaped quotes", "backslashes", "quotes", "digits", "exponent", "blanks"],
)
def test_s21_a_megabyte_of_anything_is_answered_quickly(body: bytes) -> None:
    assert_cheap(partial(refused, body), seconds=3)


@given(st.binary(max_size=200) | st.text('[]{}",:\\u0dD8 1eNaIn-.', max_size=60).map(str.encode))
@settings(deadline=None, max_examples=300)
def test_s23_any_bytes_are_a_storable_value_or_refused(body: bytes) -> None:
    try:
        value = parse_json(body)
    except MalformedJson:
        return
    check_payload(value)
    assert same(json.loads(body), value)


@pytest.mark.parametrize("limit", [16, 100, 65_536])
def test_s20_a_payload_may_have_exactly_its_limit_of_bytes(limit: int) -> None:
    check_payload("x" * (limit - 2), max_bytes=limit)
    with pytest.raises(PayloadTooLarge) as refusal:
        check_payload("x" * (limit - 1), max_bytes=limit)
    assert (refusal.value.limit, refusal.value.pointer) == (limit, "/payload")


def test_s20_bytes_are_counted_as_utf_8() -> None:
    check_payload("é" * 7, max_bytes=16)
    with pytest.raises(PayloadTooLarge):
        check_payload("é" * 8, max_bytes=16)


def test_s20_a_payload_may_have_exactly_ten_thousand_values() -> None:
    check_payload([1] * 9_999)
    for too_many in ([1] * 10_000, {str(n): 1 for n in range(10_000)}, [[1] * 100] * 100):
        with pytest.raises(InvalidField) as refusal:
            check_payload(too_many, max_bytes=10**9)
        assert (refusal.value.pointer, refusal.value.field_code) == ("/payload", "too_many")
    check_payload([[1] * 99] * 99 + [1] * 99, max_bytes=10**9)  # 1 + 99 * 100 + 99


def test_s20_a_key_may_have_256_characters() -> None:
    check_payload({"k" * 256: 1, "é" * 256: 1})
    with pytest.raises(InvalidField) as refusal:
        check_payload({"a": {"k" * 257: 1}})
    assert refusal.value.field_code == "too_long"
    assert refusal.value.pointer.startswith("/payload/a/kkk")
    assert len(refusal.value.pointer) < 120


STORED_BY_NOBODY: dict[str, tuple[object, str, str]] = {
    "NUL": ({"a": ["x", "\x00"]}, "/payload/a/1", "invalid_text"),
    "NUL in a key": ({"a": {"\x00": 1}}, "/payload/a/\\u0000", "invalid_text"),
    "surrogate": ("\ud800", "/payload", "invalid_text"),
    "surrogate in a key": ({"\udfff": 1}, "/payload/\\udfff", "invalid_text"),
    "NaN": ([math.nan], "/payload/0", "out_of_range"),
    "infinity": ({"a": -math.inf}, "/payload/a", "out_of_range"),
    "2**63": ([2**63], "/payload/0", "out_of_range"),
    "huge integer": ([-(10**5000)], "/payload/0", "out_of_range"),
    "bytes": ({"a": b"x"}, "/payload/a", "wrong_type"),
    "tuple": ((1, 2), "/payload", "wrong_type"),
    "set": ([{1}], "/payload/0", "wrong_type"),
    "time": ({"at": datetime(2026, 12, 1, tzinfo=UTC)}, "/payload/at", "wrong_type"),
    "object": ([object()], "/payload/0", "wrong_type"),
    "number as key": ({"a": {1: 2}}, "/payload/a", "wrong_type"),
    "none as key": ({None: 2}, "/payload", "wrong_type"),
    "first of several": ([{"b": {"c": math.nan}}, math.inf], "/payload/0/b/c", "out_of_range"),
}


@pytest.mark.parametrize(
    ("value", "pointer", "code"), STORED_BY_NOBODY.values(), ids=STORED_BY_NOBODY.keys()
)
def test_kf47_a_payload_made_in_python_meets_the_same_rules(
    value: object, pointer: str, code: str
) -> None:
    with pytest.raises(InvalidField) as refusal:
        check_payload(value)
    assert (refusal.value.pointer, refusal.value.field_code) == (pointer, code)
    refusal.value.detail.encode()


def test_kf47_deep_cyclic_and_shared_values_made_in_python_are_refused() -> None:
    deep: object = 1
    for _ in range(10_000):
        deep = [deep]
    cycle: list[object] = []
    cycle.append(cycle)
    shared: object = 1
    for _ in range(40):
        shared = [shared, shared]
    for value, code in ((deep, "too_deep"), (cycle, "too_deep"), (shared, "too_many")):
        with pytest.raises(InvalidField) as refusal:
            check_payload(value)
        assert refusal.value.field_code in (code, "too_deep")


@pytest.mark.parametrize("depth", [31, 32, 33])
def test_s21_depth_of_a_payload_is_bounded_with_its_place(depth: int) -> None:
    value: object = {}
    for _ in range(depth - 1):
        value = {"a": value}
    if depth <= 32:
        check_payload(value)
        return
    with pytest.raises(InvalidField) as refusal:
        check_payload(value)
    assert (refusal.value.pointer, refusal.value.field_code) == (
        "/payload" + "/a" * 32,
        "too_deep",
    )


def test_a_single_value_is_checked_alone() -> None:
    for good in (None, True, "text", 2**63 - 1, 1.5):
        check_scalar(good, "/x")
    not_storable: list[object] = [[], {}, "\x00", 2**63, math.nan]
    for bad in not_storable:
        with pytest.raises(InvalidField) as refusal:
            check_scalar(bad, "/x")
        assert refusal.value.pointer == "/x"


@given(json_values, st.randoms())
@settings(deadline=None)
def test_canonical_json_does_not_depend_on_the_order_of_keys(
    value: object, rng: random.Random
) -> None:
    def shuffled(part: object) -> object:
        if isinstance(part, dict):
            items = list(part.items())
            rng.shuffle(items)
            return {key: shuffled(member) for key, member in items}
        return [shuffled(member) for member in part] if isinstance(part, list) else part

    canonical = canonical_json(value)
    assert canonical_json(shuffled(value)) == canonical
    assert canonical_json(json.loads(canonical)) == canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"b":1,"a":2}', b' { "a" : 2 , "b" : 1 } '),
        (b"[1, 1.0, 1e0, 10E-1]", b"[1,1,1,1]"),
        (b"[1e3, -0.0, 0]", b"[1000, 0, -0]"),
        (b"[0.10, 1.5e1]", b"[0.1, 15]"),
        (b'["\\u00e9\\/"]', '["é/"]'.encode()),
        (b"[1e18]", b"[1000000000000000000]"),
        (b"[4.961603100802397e16]", b"[49616031008023970]"),
    ],
)
def test_equal_values_have_one_canonical_text(one: bytes, other: bytes) -> None:
    assert canonical_json(parse_json(one)) == canonical_json(parse_json(other))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_jsonb_wrote_out_has_the_same_canonical_text(number: float) -> None:
    written_out = json.loads(f"{Decimal(repr(number)):f}")  # numeric never uses an exponent
    assert canonical_json([number]) == canonical_json([written_out])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"[1]", b"[true]"),
        (b"[0]", b"[false]"),
        (b"[1]", b'["1"]'),
        (b"[null]", b"[]"),
        (b"{}", b"[]"),
        (b'{"a":null}', b"{}"),
        (b"[1,2]", b"[2,1]"),
        (b"[9007199254740993]", b"[9007199254740992]"),
        (b"[1e300]", b"[1e299]"),
        ('["é"]'.encode(), '["e\u0301"]'.encode()),
    ],
)
def test_different_values_have_different_canonical_texts(one: bytes, other: bytes) -> None:
    assert canonical_json(parse_json(one)) != canonical_json(parse_json(other))


def request(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "handler": "billing.charge",
        "payload": {"invoice": 8812},
        "due_at": "2026-12-01T00:00:00+01:00",
    }
    return request_hash({**fields, **changes})


def test_the_same_moment_in_another_zone_is_the_same_request() -> None:
    assert len(request()) == 32
    assert request(due_at="2026-11-30T23:00:00Z") == request()
    assert request(due_at="2026-11-30t23:00:00.000z") == request()
    assert request(due_at=datetime(2026, 11, 30, 23, tzinfo=UTC)) == request()
    assert request(payload={"invoice": 8812.0}) == request()


def test_any_other_difference_is_another_request() -> None:
    hashes = {
        request(),
        request(due_at="2026-12-01T00:00:00Z"),
        request(due_at="2026-12-01T00:00:00"),
        request(due_at=None),
        request(payload={"invoice": "8812"}),
        request(payload={"due_at": "2026-12-01T00:00:00+01:00"}),
        request(payload={"due_at": "2026-11-30T23:00:00Z"}),  # a payload is never read as a time
        request(lane="urgent"),
        request(handler="billing.refund"),
    }
    assert len(hashes) == 9


def test_hashing_does_not_change_the_fields() -> None:
    fields: dict[str, object] = {"due_at": "2026-12-01T00:00:00+01:00"}
    request_hash(fields)
    assert fields == {"due_at": "2026-12-01T00:00:00+01:00"}


@given(st.text(max_size=200))
def test_a_pointer_can_always_be_sent_and_names_one_level(token: str) -> None:
    pointer = child_pointer("/payload", token)
    pointer.encode()
    assert pointer.startswith("/payload/")
    assert pointer.count("/") == 2
    assert "\x00" not in pointer
    assert len(pointer) < 800
