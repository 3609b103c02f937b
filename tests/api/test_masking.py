"""What is hidden from people without the right to payloads."""

from __future__ import annotations

from functools import partial

import pytest

from jobs.policies.masking import MASK_KEYS, is_secret, mask_text, mask_texts, mask_values
from tests.support.cost import assert_cheap


@pytest.mark.parametrize("key", MASK_KEYS)
def test_each_key_is_masked_alone_inside_a_word_and_in_capitals(key):
    for spelled in (key, f"user_{key}", f"{key}Value", key.upper(), f"x{key.title()}y"):
        assert is_secret(spelled)
        assert mask_values({spelled: "4111"}) == {spelled: "***"}
        assert "4111" not in mask_text(f"failed: {spelled}=4111")


def test_other_keys_are_shown():
    value = {"amount": 12, "name": "Ann", "note": "my password is 7", "list": [1, None, True, 2.5]}
    assert mask_values(value) == value


def test_whatever_is_under_a_secret_key_is_hidden_as_a_whole():
    for inside in ({"number": "4111"}, ["4111"], None, 7, True):
        assert mask_values({"card": inside}) == {"card": "***"}


def test_a_secret_is_hidden_at_the_deepest_level_that_can_be_stored():
    value: object = {"token": "s"}
    for _ in range(31):
        value = [value]
    assert "'s'" not in repr(mask_values(value))


def test_the_original_is_not_changed():
    value = {"card": "4111", "in": [{"token": "t"}]}
    mask_values(value)
    mask_texts(value)
    assert value == {"card": "4111", "in": [{"token": "t"}]}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password=hunter2", "password=***"),
        ("Password: hunter2, user=ann", "Password: ***, user=ann"),
        ('{"api_token": "a b c", "n": 1}', '{"api_token": ***, "n": 1}'),
        ("secret = 'x y' and more", "secret = *** and more"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("GET /x?token=abc&page=2", "GET /x?token=***&page=2"),
        ("postgres://h/db?password=x", "postgres://h/db?password=***"),
        ("iban:DE02 is wrong", "iban:*** is wrong"),
        ("card declined", "card declined"),
        ("the token has expired", "the token has expired"),
        ("a: b: c=d", "a: b: c=d"),
        ("", ""),
    ],
)
def test_secrets_in_error_texts(text, masked):
    assert mask_text(text) == masked


def test_texts_are_masked_inside_a_value_and_keys_are_left():
    detail = {"error": {"message": "password=x"}, "token": 7, "list": ["iban: y"]}
    assert mask_texts(detail) == {
        "error": {"message": "password=***"},
        "token": 7,
        "list": ["iban: ***"],
    }


@pytest.mark.parametrize(
    "text", ["a", "password", "a ", 'token="', "token='\"", "a:", "token: ", "token=Bearer ", " "]
)
def test_masking_a_long_text_takes_linear_time(text):
    assert_cheap(partial(mask_text, text * 200_000), seconds=5)
