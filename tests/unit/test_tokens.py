"""API tokens: form, checksum, what is stored."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.tokens import MintedToken, matches, mint, parse

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def fixed(public: bytes, secret: bytes) -> Callable[[int], bytes]:
    return lambda size: {16: public, 32: secret}[size]


@given(
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
    st.sampled_from(["live", "test"]),
)
def test_s01_a_minted_token_has_the_documented_form_and_is_read_back(
    public: bytes, secret: bytes, kind: Literal["live", "test"]
) -> None:
    minted = mint(kind, randbytes=fixed(public, secret))
    assert re.fullmatch(
        r"dk_(live|test)_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}[0-9A-Za-z]{6}", minted.text
    )
    assert minted.text.startswith(f"dk_{kind}_{minted.id}_")
    assert minted.last4 == minted.text[-4:]
    parsed = parse(minted.text)
    assert parsed.id == minted.id
    assert matches(minted.secret_hash, parsed.secret_hash)


def test_s01_all_256_bits_of_the_secret_are_in_the_token() -> None:
    texts = set()
    for bit in range(256):
        secret = (1 << bit).to_bytes(32, "big")
        text = mint("live", randbytes=fixed(bytes(16), secret)).text
        value = 0
        for character in text.split("_")[3][:43]:
            value = value * 62 + ALPHABET.index(character)
        assert value == 1 << bit
        texts.add(text)
    assert len(texts) == 256


def test_s01_only_a_hash_of_the_secret_is_kept() -> None:
    minted = mint("live")
    secret = minted.text.split("_")[3][:43]
    assert minted.secret_hash == hashlib.sha256(secret.encode()).digest()
    for shown in (repr(minted), str(minted), repr(parse(minted.text))):
        assert secret not in shown
        assert minted.secret_hash.hex() not in shown
        assert repr(minted.secret_hash) not in shown


def test_s01_the_checksum_is_crc32_over_everything_before_it() -> None:
    text = mint("test").text
    value = 0
    for character in text[-6:]:
        value = value * 62 + ALPHABET.index(character)
    assert value == zlib.crc32(text[:-6].encode())


def test_s01_tokens_differ_each_time() -> None:
    minted: list[MintedToken] = [mint("live") for _ in range(100)]
    assert len({token.id for token in minted}) == 100
    assert len({token.secret_hash for token in minted}) == 100


def test_s01_any_changed_character_is_noticed_before_a_query() -> None:
    text = mint("live").text
    for position in range(len(text)):
        for other in ("0", "Z", "_", "é"):
            if text[position] == other:
                continue
            damaged = text[:position] + other + text[position + 1 :]
            with pytest.raises(ValueError, match="API token"):
                parse(damaged)


def test_s01_live_and_test_are_not_exchangeable() -> None:
    with pytest.raises(ValueError, match="checksum"):
        parse(mint("test").text.replace("_test_", "_live_"))


@pytest.mark.parametrize("kind", ["", "LIVE", "prod"])
def test_s01_there_are_two_kinds_of_token(kind: str) -> None:
    with pytest.raises(ValueError, match="live or test"):
        mint(kind)  # type: ignore[arg-type]


@given(
    st.none()
    | st.integers()
    | st.binary()
    | st.text(max_size=80)
    | st.from_regex(r"\Adk_live_\w{8}_\w{49}\Z")
)
def test_s01_anything_else_is_refused_without_being_repeated(text: object) -> None:
    with pytest.raises(ValueError, match="API token") as refusal:
        parse(text)
    if isinstance(text, str) and len(text) > 10:
        assert text not in str(refusal.value)


def test_s01_a_token_with_a_line_end_or_spaces_is_refused() -> None:
    text = mint("live").text
    for spoiled in (text + "\n", " " + text, text + " ", text.lower() + "x", text * 1000):
        with pytest.raises(ValueError, match="not an API token"):
            parse(spoiled)


def test_s01_hashes_are_compared_as_a_whole() -> None:
    stored = mint("live").secret_hash
    assert matches(stored, bytes(stored))
    assert not matches(stored, stored[:-1])
    assert not matches(stored, bytes([stored[0] ^ 1]) + stored[1:])
    assert not matches(stored, b"")
