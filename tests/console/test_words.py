"""Plain words for stored values."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.console.markup import Chip, Moment
from jobs.console.words import Word, actor_name, count, duration, line, moment_in, text
from jobs.queries.lists import Count


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.04, "0 s"),
        (0.5, "0.5 s"),
        (1.0, "1 s"),
        (9.96, "10 s"),
        (59.6, "1 m"),
        (75, "1 m 15 s"),
        (3_599.7, "1 h"),
        (11_520, "3 h 12 m"),
        (86_400, "1 d"),
        (90_061, "1 d 1 h"),
        (86_460, "1 d"),  # two units that follow one another
        (1e300, "over 1,000 years"),
        (math.inf, "no end"),
        (math.nan, "unknown"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_counts_say_when_they_stopped() -> None:
    assert count(Count(9_999, at_least=False)) == "9,999"
    assert count(Count(10_000, at_least=True)) == "10,000+"
    assert count(Count(0, at_least=True)) == "?"
    assert count(Count(0, at_least=False)) == "0"


def test_control_characters_become_visible_and_lines_one() -> None:
    assert text("a\0b\x1b[31m\u202ec\td\ne\x85") == "a␀b␛[31m<U+202E>c\td\ne<U+0085>"
    assert line(" a\n\t b  ") == "a b"
    assert line("x" * 500, 10) == "x" * 10
    assert text("x" * 11, 10) == "x" * 10 + "…"
    assert text(None) == ""
    assert text({"a": [1, "é"]}) == '{"a": [1, "é"]}'


def test_actors_are_named_as_people_know_them() -> None:
    assert actor_name("user:anna") == "anna"
    assert actor_name("token:ab12") == "API token ab12"
    assert actor_name("scheduler:1") == "scheduler:1"
    assert actor_name("") == ""


def test_only_a_time_with_offset_is_a_time() -> None:
    assert moment_in("2026-12-01T00:00:00+00:00") is not None
    for other in (
        "2026-12-01T00:00:00",
        "soon",
        5,
        None,
        ["2026-12-01T00:00:00Z"],
        "2026-13-01T00:00Z",
    ):
        assert moment_in(other) is None


def test_markup_escapes_its_parts() -> None:
    assert str(Chip(Word("<b>", '"x'))) == '<span class="chip chip-&quot;x">&lt;b&gt;</span>'
    now = timezone.now()
    assert "1 h ahead" in str(Moment(now + timedelta(hours=1), now))
    assert "1 h ago" in str(Moment(now - timedelta(hours=1), now))
