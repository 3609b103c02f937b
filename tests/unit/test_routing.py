"""Labels: what may be written, who may run what."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import InvalidField
from jobs.policies.routing import (
    PoolOffer,
    able_pools,
    can_run,
    canonical_labels,
    label_faults,
    missing_labels,
    parse_label_args,
    parse_labels,
)

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=63)
label_sets = st.dictionaries(words, words, max_size=6)  # the most, 32, have a test of their own
few = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)


@given(label_sets)
def test_s26_good_labels_pass_unchanged(labels: dict[str, str]) -> None:
    assert parse_labels(labels) == labels
    assert parse_label_args([f"{name}={text}" for name, text in labels.items()]) == labels


BAD_WORDS = [
    "",
    "a" * 64,
    "GPU",
    "Gpu",
    "a b",
    "a=b",
    "a,b",
    "a/b",
    "a:b",
    "a\n",
    "\na",
    "a\x00",
    "\ud800",
    "é",
    "\uff41",  # full-width a
    "\u0430",  # Cyrillic a
    "\u0131",  # dotless i
    "\u212a",  # Kelvin sign: its lower case is an ASCII k
    "ß",
    "\uff11",
    "\u0663",  # Arabic-Indic three
    "a\u200bb",  # zero-width space
    "a\u0301",
    "gpu\u202e",
    "-\u2013",
]


@pytest.mark.parametrize("word", BAD_WORDS, ids=ascii)
def test_s26_capitals_and_look_alikes_are_refused_as_name_and_as_value(word: str) -> None:
    with pytest.raises(InvalidField) as as_value:
        parse_labels({"ok": "fine", "region": word})
    assert (as_value.value.pointer, as_value.value.field_code) == (
        "/labels/region",
        "invalid_label",
    )
    with pytest.raises(InvalidField) as as_name:
        parse_labels({"ok": "fine", word: "eu"})
    assert as_name.value.pointer.startswith("/labels/")
    assert as_name.value.field_code == "invalid_label"
    as_name.value.detail.encode()  # can be sent


@given(st.text(max_size=70))
def test_s26_whatever_passes_is_short_lower_case_ascii(word: str) -> None:
    for labels in ({word: "x"}, {"x": word}):
        if not label_faults(labels):
            assert word.isascii()
            assert word == word.lower()
            assert 1 <= len(word) <= 63


def test_s26_at_most_thirty_two_labels() -> None:
    labels = {f"l{n}": "x" for n in range(32)}
    assert parse_labels(labels) == labels
    with pytest.raises(InvalidField) as refusal:
        parse_labels({**labels, "one-more": "x"})
    assert (refusal.value.pointer, refusal.value.field_code) == ("/labels", "too_many")


@pytest.mark.parametrize("value", [None, [], "gpu=a100", [["a", "b"]], 3, True])
def test_s26_labels_are_an_object(value: object) -> None:
    with pytest.raises(InvalidField) as refusal:
        parse_labels(value)
    assert (refusal.value.pointer, refusal.value.field_code) == ("/labels", "wrong_type")


@pytest.mark.parametrize("text", [None, 1, True, 1.5, ["a"], {"a": "b"}])
def test_s26_a_label_value_is_a_text(text: object) -> None:
    with pytest.raises(InvalidField) as refusal:
        parse_labels({"gpu": text})
    assert (refusal.value.pointer, refusal.value.field_code) == ("/labels/gpu", "wrong_type")


def test_every_bad_label_has_its_own_fault_and_pointer() -> None:
    faults = label_faults(
        {"ok": "1", "Bad": "1", "gpu": "A100", "n": 3, "a/b~c": "1"}, "/jobs/4/labels"
    )
    assert [fault.pointer for fault in faults] == [
        "/jobs/4/labels/Bad",
        "/jobs/4/labels/gpu",
        "/jobs/4/labels/n",
        "/jobs/4/labels/a~1b~0c",
    ]


@pytest.mark.parametrize("argument", ["gpu", "", "=x", "x=", "Gpu=1", "gpu=a=b", "gpu = a"])
def test_a_command_line_label_is_name_equals_value(argument: str) -> None:
    with pytest.raises(InvalidField):
        parse_label_args([argument])


def test_a_label_given_twice_on_the_command_line_must_say_the_same() -> None:
    assert parse_label_args(["a=1", "a=1"]) == {"a": "1"}
    with pytest.raises(InvalidField) as refusal:
        parse_label_args(["a=1", "a=2"])
    assert refusal.value.field_code == "duplicate"


@given(label_sets, st.randoms())
def test_canonical_labels_do_not_depend_on_order_and_read_back(
    labels: dict[str, str], rng: random.Random
) -> None:
    items = list(labels.items())
    rng.shuffle(items)
    text = canonical_labels(dict(items))
    assert text == canonical_labels(labels)
    assert parse_label_args(text.split(",") if text else []) == labels


@given(label_sets, label_sets)
def test_different_labels_have_different_canonical_texts(
    a: dict[str, str], b: dict[str, str]
) -> None:
    assert (canonical_labels(a) == canonical_labels(b)) == (a == b)


@given(few, few, few)
def test_a_job_runs_where_its_labels_are_offered_and_the_exclusive_ones_are_asked_for(
    needed: dict[str, str], offered: dict[str, str], exclusive: dict[str, str]
) -> None:
    expected = set(needed.items()) <= set(offered.items()) and set(exclusive.items()) <= set(
        needed.items()
    )
    assert can_run(needed=needed, offered=offered, exclusive=exclusive) is expected


def test_plain_work_stays_away_from_an_exclusive_pool() -> None:
    gpu = {"gpu": "a100", "region": "eu"}
    exclusive = {"gpu": "a100"}
    assert not can_run(needed={}, offered=gpu, exclusive=exclusive)
    assert not can_run(needed={"region": "eu"}, offered=gpu, exclusive=exclusive)
    assert can_run(needed={"gpu": "a100"}, offered=gpu, exclusive=exclusive)
    assert not can_run(needed={"gpu": "h100"}, offered=gpu, exclusive=exclusive)


@given(few, few)
def test_missing_labels_are_empty_exactly_when_all_are_offered(
    needed: dict[str, str], offered: dict[str, str]
) -> None:
    missing = missing_labels(needed, offered)
    assert (missing == {}) is can_run(needed=needed, offered=offered, exclusive={})
    assert missing.items() <= needed.items()
    assert list(missing) == sorted(missing)


def pool(
    number: int,
    labels: dict[str, str],
    *,
    exclusive: dict[str, str] | None = None,
    knows: str = "h",
) -> PoolOffer:
    return PoolOffer(number, labels, exclusive or {}, frozenset(knows.split()))


def test_the_home_pool_is_the_tightest_match() -> None:
    pools = [
        pool(1, {"gpu": "a100", "region": "eu", "disk": "ssd"}),
        pool(2, {"gpu": "a100", "region": "eu"}),
        pool(3, {"gpu": "a100"}),
        pool(4, {}),
    ]
    assert able_pools({"gpu": "a100"}, "h", pools)[0] == 3
    assert able_pools({"gpu": "a100", "region": "eu"}, "h", pools)[0] == 2
    assert able_pools({}, "h", pools)[0] == 4
    assert able_pools({"gpu": "h100"}, "h", pools) == []
    assert able_pools({}, "h", []) == []


def test_of_equally_tight_pools_the_first_made_is_home_in_any_order() -> None:
    pools = [pool(9, {"a": "1"}), pool(2, {"b": "1"}), pool(5, {"c": "1"})]
    assert able_pools({}, "h", pools)[0] == 2
    assert able_pools({}, "h", reversed(pools))[0] == 2


def test_a_pool_that_does_not_know_the_handler_is_not_home() -> None:
    pools = [
        pool(1, {}, knows="mail.send"),
        pool(2, {"gpu": "a100"}, knows="mail.send report.render"),
    ]
    assert able_pools({}, "report.render", pools)[0] == 2
    assert able_pools({}, "billing.charge", pools) == []


def test_an_exclusive_pool_is_home_only_for_work_that_asks_for_it() -> None:
    pools = [
        pool(1, {"gpu": "a100"}, exclusive={"gpu": "a100"}),
        pool(2, {"gpu": "a100", "region": "eu"}),
    ]
    assert able_pools({}, "h", pools)[0] == 2
    assert able_pools({"gpu": "a100"}, "h", pools)[0] == 1


def random_labels(source: random.Random) -> dict[str, str]:
    names = source.sample(["region", "gpu", "tenant", "disk"], source.randint(0, 3))
    return {name: source.choice(["a", "b"]) for name in names}


def test_i14_f60_in_ten_thousand_random_label_sets_nothing_is_routed_where_it_may_not_run() -> (
    None
):
    """Every pool of `able_pools` offers all labels, is asked for all its exclusive ones and knows the handler."""
    routed = unroutable = 0
    for seed in range(10_000):
        source = random.Random(seed)
        pools = []
        for number in range(source.randint(0, 6)):
            offered = random_labels(source)
            kept = source.sample(sorted(offered), source.randint(0, len(offered)))
            known = frozenset(source.sample(["h", "i"], source.randint(0, 2)))
            exclusive = {name: offered[name] for name in kept} if source.random() < 0.4 else {}
            pools.append(PoolOffer(number, offered, exclusive, known))
        needed = random_labels(source)
        found = able_pools(needed, "h", pools)
        allowed = {
            pool.id
            for pool in pools
            if "h" in pool.handlers
            and all(pool.labels.get(name) == text for name, text in needed.items())
            and all(needed.get(name) == text for name, text in pool.exclusive.items())
        }
        assert set(found) == allowed, seed
        assert len(found) == len(allowed), seed
        sizes = [len(pools[number].labels) for number in found]
        assert sizes == sorted(sizes), seed
        routed, unroutable = routed + bool(found), unroutable + (not found)
    assert min(routed, unroutable) > 1000
