"""Text, results and exceptions of handlers: always storable, never an error."""

from __future__ import annotations

import collections
import enum
import functools
import json
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NoReturn
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policies.cleaning import (
    CUT_MARK,
    MESSAGE_BYTES,
    clean_json,
    clean_text,
    describe_exception,
    fingerprint,
)
from tests.support.cost import assert_cheap

# Lone surrogates and NUL included, far more often than by chance.
any_text = st.text(
    st.characters()
    | st.characters(categories=["Cs"])
    | st.sampled_from("\x00\x01\x1f\r\n\t\x7f💥"),
    max_size=60,
)


class Hostile:
    """Everything that can be overridden raises, and not only an Exception."""

    def __repr__(self) -> str:
        return "Hostile()"  # or pytest itself could not report a failure

    def __str__(self) -> str:
        raise SystemExit("no text")

    @property  # type: ignore[misc]  # lying is its purpose
    def __class__(self) -> type:
        raise KeyError("no class")

    def __getattr__(self, name: str) -> object:
        raise GeneratorExit

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise OSError("not comparable")


class LyingText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self

    def encode(self, *args: object, **kwargs: object) -> bytes:
        raise RuntimeError("no bytes")

    def __len__(self) -> int:
        return -1

    def __getitem__(self, key: object) -> str:
        raise RuntimeError("no part")

    def replace(self, *args: object) -> str:
        raise RuntimeError("no part")


class LyingList(list[object]):
    def __iter__(self) -> Iterator[object]:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        return 0


class LyingDict(dict[str, object]):
    def items(self) -> NoReturn:
        raise RuntimeError("no items")


class Mask:
    """Says it is a dict; is none."""

    __class__ = dict  # type: ignore[assignment]


class Colour(enum.Enum):
    RED = "red"
    BROKEN = math.nan


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Invoice:
    number: int
    total: Decimal
    lines: list[object]


ODD = [
    Colour.RED,
    Colour.BROKEN,
    Level.HIGH,
    Hostile(),
    Mask(),
    LyingText("x\x00"),
    len,
    Hostile,
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**301)
    | st.floats()
    | any_text
    | st.binary(max_size=20)
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.complex_numbers()
    # sampled_from() would look into them, and some do not bear it.
    | st.integers(0, len(ODD) - 1).map(lambda index: ODD[index]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(LyingList)
        | st.dictionaries(any_text | st.integers() | st.none() | st.floats(), inner, max_size=4)
        | st.dictionaries(st.text(max_size=2), inner, max_size=4).map(LyingDict)
        | st.frozensets(st.integers() | any_text, max_size=4)
        | st.builds(Invoice, st.integers(), st.decimals(), st.lists(inner, max_size=2))
    ),
    max_leaves=25,
)


def assert_jsonb_accepts(value: object, depth: int = 0) -> None:
    """What PostgreSQL's jsonb refuses or Python's reader would change; types exactly those of JSON."""
    assert depth <= 33
    match value:
        case None | bool():
            pass
        case str():
            assert type(value) is str
            value.encode()
            assert "\x00" not in value
        case int():
            assert type(value) is int
            assert -(2**63) <= value < 2**63
        case float():
            assert type(value) is float
            assert math.isfinite(value)
        case list():
            for member in value:
                assert_jsonb_accepts(member, depth + 1)
        case dict():
            for key, member in value.items():
                assert isinstance(key, str)
                assert_jsonb_accepts(key)
                assert_jsonb_accepts(member, depth + 1)
        case _:
            pytest.fail(f"{type(value)} is not JSON")


def size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


@given(any_text, st.integers(-5, 200))
def test_kf33_any_text_is_cleaned_and_cut_to_its_limit(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned.encode()) <= max(limit, 0)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", cleaned)


@given(any_text)
def test_kf33_a_text_that_fits_keeps_everything_but_what_cannot_be_stored(text: str) -> None:
    cleaned = clean_text(text, 10_000)
    expected = "".join(
        "\ufffd" if (c < " " and c not in "\n\t") or "\ud800" <= c <= "\udfff" else c
        for c in text.replace("\r\n", "\n")
    )
    assert cleaned == expected
    assert clean_text(cleaned, 10_000) == cleaned


def test_kf33_the_texts_that_broke_others_are_storable() -> None:
    assert clean_text("💥" * 10, 16_384) == "💥" * 10
    assert clean_text("a\x00b", 16_384) == "a\ufffdb"
    for surrogate in ("\ud800", "\udbff", "\udc00", "\udfff"):
        assert clean_text(f"a{surrogate}b", 16_384) == "a\ufffdb"
    assert clean_text("\ud7ff\ue000\x1f\x20", 16_384) == "\ud7ff\ue000\ufffd\x20"
    long = clean_text("💥" * 5_000_000, 16_384)
    assert 16_380 - len(CUT_MARK.encode()) < len(long.encode()) <= 16_384
    assert long.endswith("💥" + CUT_MARK)
    assert set(long[: -len(CUT_MARK)]) == {"💥"}


@pytest.mark.parametrize("limit", range(30))
def test_kf33_a_cut_never_splits_a_character(limit: int) -> None:
    for text in ("é" * 50, "a💥" * 50, "\x00" * 50, "\r\n" * 100):
        cleaned = clean_text(text, limit)
        assert len(cleaned.encode()) <= limit
        body = cleaned.removesuffix(CUT_MARK)
        assert clean_text(text, 10_000).startswith(body)
        if limit >= len(CUT_MARK.encode()):
            assert cleaned.endswith(CUT_MARK)


def test_kf33_a_text_at_its_limit_is_not_cut() -> None:
    assert clean_text("x" * 20, 20) == "x" * 20
    assert clean_text("x" * 21, 20).endswith(CUT_MARK)
    assert clean_text("\r\n" * 20, 20) == "\n" * 20


def test_kf34_an_object_whose_text_cannot_be_read_is_named() -> None:
    assert clean_text(Hostile(), 100) == "[Hostile: text not readable]"
    assert clean_text(LyingText("a\x00b"), 100) == "a\ufffdb"


@given(values, st.integers(0, 400))
@settings(deadline=None)
def test_kf33_any_result_becomes_json_that_the_database_accepts(value: object, limit: int) -> None:
    plain = clean_json(value, limit)
    assert_jsonb_accepts(plain)
    assert size(plain) <= max(limit, 64)


json_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | json_text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_text, inner, max_size=4),
    )
)
@settings(deadline=None)
def test_a_result_that_is_json_already_is_not_changed(value: object) -> None:
    assert repr(clean_json(value, 10**6)) == repr(value)


def test_values_beyond_json_are_turned_into_something_readable() -> None:
    zone = timezone(timedelta(hours=1))
    assert clean_json(
        {
            "nan": math.nan,
            "inf": [math.inf, -math.inf],
            "big": [2**63, -(2**63) - 1],
            "decimal": Decimal("12.50"),
            "uuid": UUID(int=7),
            "path": PurePosixPath("/a/b"),
            "aware": datetime(2026, 12, 1, 1, tzinfo=zone),
            "naive": datetime(2026, 12, 1, 1),  # noqa: DTZ001
            "date": date(2026, 12, 1),
            "took": timedelta(minutes=1.5),
            "bytes": [b"abc", b"\xff\x00", bytearray(b"d"), memoryview(b"e")],
            "tuple": (1, (2,)),
            "set": {3, 1, 2},
            "enum": [Colour.RED, Colour.BROKEN, Level.HIGH],
            "invoice": Invoice(7, Decimal(3), [b"x"]),
            "view": types.MappingProxyType({"a": 1}),
            "odd": [object(), len, Invoice, functools.partial(len), (n for n in range(3))],
        },
        10_000,
    ) == {
        "nan": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "big": ["9223372036854775808", "-9223372036854775809"],
        "decimal": "12.50",
        "uuid": "00000000-0000-0000-0000-000000000007",
        "path": "/a/b",
        "aware": "2026-12-01T00:00:00Z",
        "naive": "2026-12-01T01:00:00",
        "date": "2026-12-01",
        "took": 90.0,
        "bytes": ["abc", "base64:/wA=", "d", "e"],
        "tuple": [1, [2]],
        "set": [1, 2, 3],
        "enum": ["red", "NaN", 3],
        "invoice": {"number": 7, "total": "3", "lines": ["x"]},
        "view": {"a": 1},
        "odd": ["object", "builtin_function_or_method", "type", "partial", "generator"],
    }


def test_a_set_is_written_in_the_same_order_by_every_process() -> None:
    names = [f"n{n:02}" for n in range(50)]
    assert clean_json(set(names), 10_000) == names  # its own order follows the hash seed
    assert clean_json(frozenset(reversed(names)), 10_000) == names


def test_keys_become_texts_and_none_is_lost() -> None:
    value = {
        1: "a",
        "1": "b",
        None: "c",
        True and "x": "d",
        (1, 2): "e",
        1.5: "f",
        "a\x00": "g",
        b"k": "h",
    }
    assert clean_json(value, 10_000) == {
        "1": "a",
        "1 #2": "b",
        "null": "c",
        "x": "d",
        "[1,2]": "e",
        "1.5": "f",
        "a\ufffd": "g",
        "k": "h",
    }


def test_kf33_an_integer_of_a_million_digits_is_recorded() -> None:
    number = 1 << 4_000_000
    plain = clean_json(number, 1000)
    assert isinstance(plain, dict)
    assert plain["truncated"] is True
    assert str(plain["head"]).startswith('"0x1000')


def test_kf34_objects_that_misbehave_are_named_and_their_neighbours_kept() -> None:
    value = {
        "good": 1,
        "bad": Hostile(),
        "mask": Mask(),
        "list": LyingList([1, 2]),
        "dict": LyingDict(a=1),
    }
    assert clean_json(value, 10_000) == {
        "good": 1,
        "bad": "Hostile",
        "mask": "Mask",
        "list": [1, 2],
        "dict": {"a": 1},
    }
    assert clean_json(LyingText("a\x00b"), 100) == "a\ufffdb"
    assert clean_json({Hostile(): 1}, 100) == {"Hostile": 1}


def test_a_cycle_is_remarked_where_it_closes() -> None:
    cycle: dict[str, object] = {"a": 1}
    cycle["self"] = [cycle]
    assert clean_json(cycle, 1000) == {"a": 1, "self": ["[contains itself]"]}
    shared = [1]
    assert clean_json([shared, shared], 1000) == [[1], [1]]  # twice the same is no cycle


def test_depth_is_bounded_at_thirty_two() -> None:
    def nest(depth: int) -> object:
        value: object = "core"
        for _ in range(depth):
            value = [value]
        return value

    assert clean_json(nest(32), 1000) == nest(32)
    plain = clean_json(nest(33), 1000)
    assert "[deeper than 32 levels]" in json.dumps(plain)
    assert_jsonb_accepts(clean_json(nest(100_000), 1000))


def test_parts_that_share_parts_do_not_unfold_without_end() -> None:
    value: object = ["x"]
    for _ in range(30):
        value = [value, value]
    assert_cheap(partial(clean_json, value, 16_384), seconds=5)
    plain = clean_json(value, 16_384)
    assert isinstance(plain, dict)
    assert plain["truncated"] is True
    assert size(plain) <= 16_384


def test_a_mapping_without_end_is_cut() -> None:
    class Endless(collections.UserDict[int, None]):
        def items(self) -> Any:
            return ((n, None) for n in iter(int, 1))

    plain = clean_json(Endless(), 10**9)
    assert isinstance(plain, dict)
    assert plain["truncated"] is True


@pytest.mark.parametrize("limit", [64, 65, 100, 1000, 16_384])
@pytest.mark.parametrize("text", ["x", '"', "\\", "\n", "é", "💥", "\x00"], ids=ascii)
def test_kf33_a_result_that_is_too_large_becomes_its_head_and_its_size(
    limit: int, text: str
) -> None:
    value = {"k": text * 20_000}
    plain = clean_json(value, limit)
    assert isinstance(plain, dict)
    assert plain["truncated"] is True
    assert size(plain) <= limit
    full = json.dumps(clean_json(value, 10**6), ensure_ascii=False, separators=(",", ":"))
    assert plain["bytes"] == len(full.encode())
    head = str(plain["head"])
    assert full.startswith(head.removesuffix(CUT_MARK))
    if limit >= 1000:
        assert size(plain) > limit // 2  # the room is used


def test_a_result_at_its_limit_is_kept_whole() -> None:
    assert clean_json("x" * 98, 100) == "x" * 98
    assert clean_json("x" * 99, 100) != "x" * 99


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no pickle")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Disguised(Exception, metaclass=Nameless):
    __traceback__ = property(lambda self: 1 / 0)

    @property  # type: ignore[misc]  # lying is its purpose
    def __class__(self) -> type:
        raise KeyError("no class")

    def __str__(self) -> str:
        raise SystemExit("no text")


class HostileGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> NoReturn:
        raise RuntimeError("no parts")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001  # groups of BaseException too
        return caught


def test_kf34_odd_exceptions_are_recorded_by_class() -> None:
    for exc, name in ((TwoArguments(1, "x"), "TwoArguments"), (Disguised("x"), "Disguised")):
        told = describe_exception(raised(exc))
        assert told.type == name
        assert told.message == f"[{name}: text not readable]"
        assert told.where.startswith(f"{__name__}:raised:")


def test_kf34_a_group_of_a_thousand_says_how_many_are_inside() -> None:
    parts = [ValueError(n) for n in range(990)] + [KeyError(n) for n in range(9)] + [Disguised()]
    told = describe_exception(raised(ExceptionGroup("many", parts)))
    assert told.type == "ExceptionGroup"
    assert told.message.startswith(
        "1000 exceptions inside (990 ValueError, 9 KeyError, 1 Disguised): many"
    )
    hostile = describe_exception(raised(HostileGroup("many", parts)))
    assert hostile.type == "HostileGroup"
    assert hostile.message.startswith("1000 exceptions inside (990 ValueError")


def test_kf34_groups_in_groups_are_counted_without_recursion_or_end() -> None:
    deep: BaseException = ValueError("core")
    for _ in range(20_000):
        deep = BaseExceptionGroup("level", [deep])
    assert describe_exception(deep).message.startswith("1 exceptions inside (1 ValueError)")
    # Taken apart by hand: the interpreter frees a chain recursively.
    while isinstance(deep, BaseExceptionGroup):
        deep = deep.exceptions[0]
    shared: BaseException = ValueError("core")
    for _ in range(30):
        shared = BaseExceptionGroup("pair", [shared, shared])
    assert (
        "100000 exceptions inside (100000 ValueError, more)" in describe_exception(shared).message
    )


@given(any_text, st.integers(1, 4))
def test_kf33_any_message_is_stored_within_its_limit(text: str, times: int) -> None:
    told = describe_exception(RuntimeError(text * times * 100))
    assert len(told.message.encode()) <= MESSAGE_BYTES
    assert_jsonb_accepts([told.type, told.message, told.where])


def test_kf33_a_message_of_five_million_characters_is_cut() -> None:
    told = describe_exception(RuntimeError("x" * 5_000_000))
    assert len(told.message) <= MESSAGE_BYTES
    assert told.message.endswith(CUT_MARK)


def test_a_class_name_that_is_no_plain_text_is_cleaned() -> None:
    told = describe_exception(type("Zahlung💥" + "x" * 500, (Exception,), {})("boom"))
    assert told.type.startswith("Zahlung💥x")
    assert len(told.type.encode()) <= 255


def test_where_is_the_innermost_frame_of_the_application() -> None:
    def charge() -> None:
        json.loads("{")  # raises inside the standard library, three frames down

    with pytest.raises(json.JSONDecodeError) as caught:
        charge()
    told = describe_exception(caught.value)
    module, function, line = told.where.rsplit(":", 2)
    assert module == __name__
    assert function.endswith("<locals>.charge")
    assert int(line) == charge.__code__.co_firstlineno + 1


def test_where_is_a_library_frame_when_the_application_has_none() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    exc = caught.value
    exc.__traceback__ = (
        exc.__traceback__ and exc.__traceback__.tb_next
    )  # without the frame of this test
    assert describe_exception(exc).where.startswith("json")


def test_where_is_empty_without_a_traceback() -> None:
    assert describe_exception(ValueError("never raised")).where == ""


def test_where_survives_a_module_without_a_proper_name() -> None:
    for name in (None, 3, "a\x00\ud800", "x" * 5000, Hostile()):
        scope: dict[str, object] = {"__name__": name}
        exec("def fail():\n    raise ValueError('x')", scope)  # noqa: S102
        try:
            scope["fail"]()  # type: ignore[operator]
        except ValueError as exc:
            exc.__traceback__ = exc.__traceback__ and exc.__traceback__.tb_next
            told = describe_exception(exc)
        assert_jsonb_accepts(told.where)
        assert len(told.where.encode()) <= 512


def test_a_frame_of_the_engine_is_named_only_when_there_is_no_other() -> None:
    engine: dict[str, object] = {"__name__": "workers.execution"}
    exec("def run(handler):\n    return handler()", engine)  # noqa: S102
    run = engine["run"]

    def tell(handler: object) -> str:
        try:
            run(handler)  # type: ignore[operator]
        except Exception as exc:  # noqa: BLE001
            exc.__traceback__ = exc.__traceback__ and exc.__traceback__.tb_next
            return describe_exception(exc).where
        return ""

    assert tell(lambda: 1 / 0).startswith(f"{__name__}:")
    assert tell(functools.partial(json.loads, "{")).startswith("json")
    assert tell(functools.partial(int, "x")).startswith("workers.execution:run:")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout after 30 s", "timeout after 31.5 s"),
        ("order 8812 not found", "order 1 not found"),
        ("customer cus_431 blocked", "customer cus_9 blocked"),
        (
            "no row 0190163d-8694-739b-aea5-966c26f8ad91",
            "no row 018f0000-0000-7000-8000-000000000001",
        ),
        ("commit deadbeef unknown", "commit 9f86d081 unknown"),
        ("bad pointer 0x7ffde3a0", "bad pointer 0xdeadbeef"),
        ("key 'ann' missing", "key 'bob and carol' missing"),
        ('mailbox "ann@example.org" full', 'mailbox "bob@example.org" full'),
        ("can't open 'a.txt'", "can't open 'b-2.txt'"),
        ("at 2026-12-01T00:00:00Z", "at 2027-01-31T23:59:59.5Z"),
        ("10.0.0.1:5432 refused", "192.168.1.254:6543 refused"),
        ("ids [1, 2, 3] are gone", "ids [77] are gone"),
    ],
)
def test_messages_that_differ_in_values_share_a_fingerprint(one: str, other: str) -> None:
    def print_of(message: str) -> str:
        return fingerprint("h", "ValueError", message, "shop.mail:send:12")

    assert print_of(one) == print_of(other)
    assert re.fullmatch(r"[0-9a-f]{16}", print_of(one))


def test_other_causes_have_other_fingerprints() -> None:
    prints = {
        fingerprint("a", "E", "connection refused", "m:f:1"),
        fingerprint("b", "E", "connection refused", "m:f:1"),
        fingerprint("a", "F", "connection refused", "m:f:1"),
        fingerprint("a", "E", "connection reset", "m:f:1"),
        fingerprint("a", "E", "connection refused", "m:g:1"),
        fingerprint("a", "E", "can't connect, won't retry", "m:g:1"),
        fingerprint("a", "E", "can't connect, don't retry", "m:g:1"),
        fingerprint("aE", "", "connection refused", "m:f:1"),
    }
    assert len(prints) == 8
    moved = fingerprint("a", "E", "connection refused", "m:f:99")
    assert moved in prints  # a line number is not a cause


@given(any_text, any_text, any_text, any_text)
def test_kf33_any_texts_have_a_fingerprint(a: str, b: str, c: str, d: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint(a, b, c, d))


@pytest.mark.parametrize("text", ["'", '"', "a", "a-", "'a", "#", "1 ", "1.", "“", "` "])
def test_a_fingerprint_takes_linear_time(text: str) -> None:
    assert_cheap(partial(fingerprint, "h", "E", text * 20_000, ""), seconds=3)
