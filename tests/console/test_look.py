"""What the templates and the stylesheet must keep to: nothing inline, nothing foreign, readable in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings

TEMPLATES = sorted((Path(settings.BASE_DIR) / "templates" / "console").glob("*.html"))
STYLESHEET = Path(settings.BASE_DIR) / "static" / "console" / "console.css"
PAIRS = [
    ("ink", "page"),
    ("ink", "surface"),
    ("muted", "page"),
    ("muted", "surface"),
    ("link", "page"),
    ("link", "surface"),
    ("bad-ink", "surface"),
    ("warn-ink", "surface"),
    ("bad-ink", "page"),
    ("warn-ink", "page"),
    *(
        (f"{name}-ink", f"{name}-fill")
        for name in ("main", "danger", "quiet", "wait", "live", "good", "warn", "bad")
    ),
]
FORBIDDEN = {
    "an inline script": r"<script(?![^>]*\bsrc=)",
    "a style element": r"<style",
    "a style attribute": r"\sstyle\s*=",
    "an event handler": r"\son[a-z]+\s*=",
    "an unescaped value": r"\|\s*safe\b|mark_safe|autoescape\s+off|safeseq",
    "another origin": r"(?:src|href|action)\s*=\s*[\"']?(?:https?:)?//",
    "a javascript address": r"javascript:",
}


def themes() -> dict[str, dict[str, str]]:
    css = STYLESHEET.read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    colours = re.compile(r"--([a-z-]+):\s*(#[0-9a-f]{6})")
    first = dict(colours.findall(light))
    return {"light": first, "dark": {**first, **dict(colours.findall(dark))}}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "fill"), PAIRS)
def test_text_is_readable_in_both_themes(theme: str, ink: str, fill: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[ink], colours[fill]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_field_borders_can_be_told_from_their_ground(theme: str) -> None:
    colours = themes()[theme]
    assert contrast(colours["edge-strong"], colours["surface"]) >= 3


def test_both_themes_are_different() -> None:
    assert themes()["light"] != themes()["dark"]


def test_the_stylesheet_is_small_and_needs_nobody_else() -> None:
    css = STYLESHEET.read_text()
    assert len(css.encode()) <= 25_000
    assert "@import" not in css
    assert "url(" not in css


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_templates_hold_nothing_that_the_policy_would_block(template: Path, what: str) -> None:
    assert not re.search(FORBIDDEN[what], template.read_text(), re.IGNORECASE), what


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_posts_carries_its_token_and_every_field_a_label(template: Path) -> None:
    text = template.read_text()
    for form in re.findall(r"<form[^>]*>.*?</form>", text, re.DOTALL):
        if 'method="post"' in form:
            assert "{% csrf_token %}" in form
    for field in re.findall(r"<input(?![^>]*type=\"hidden\")[^>]*>", text):
        name = re.search(r'\bid="([^"]+)"', field)
        labelled = "aria-label=" in field or (name and f'for="{name[1]}"' in text)
        assert labelled, field
    for header in re.findall(r"<th\b[^>]*>", text):
        assert "scope=" in header


def test_short_names_in_lists_stay_on_one_line_and_filters_are_of_one_height() -> None:
    css = STYLESHEET.read_text()
    for template in ("_job_rows.html", "dead_letters.html"):
        (text,) = (path.read_text() for path in TEMPLATES if path.name == template)
        for label in ("Handler", "Tenant"):
            assert f'<td data-label="{label}" class="name">' in text
    assert re.search(r"\.rows \.name bdi \{[^}]*width: max-content;", css)
    assert re.search(r"\.filters input \{[^}]*height: 2\.25rem;", css)
