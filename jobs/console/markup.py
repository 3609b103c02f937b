"""Moments and status words as markup. format_html escapes every part; nothing else in the console makes markup."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.html import format_html, html_safe
from django.utils.safestring import SafeString

from jobs.console.words import Word, between


@html_safe
@dataclass(frozen=True, slots=True)
class Moment:
    """A time element in UTC; its tooltip says how far from `now` it is."""

    at: datetime
    now: datetime | None = None
    millis: bool = False

    def __str__(self) -> SafeString:
        here = self.at.astimezone(UTC)
        shown = here.strftime("%Y-%m-%d %H:%M:%S")
        if self.millis:
            shown += f".{here.microsecond // 1000:03d}"
        title = f"{here.isoformat()} (UTC)"
        if self.now is not None:
            ahead = self.at > self.now
            far = between(self.now, self.at) if ahead else between(self.at, self.now)
            title += f", {far} {'ahead' if ahead else 'ago'}"
        return format_html(
            '<time datetime="{}" title="{}">{}</time>', here.isoformat(), title, shown
        )


@html_safe
@dataclass(frozen=True, slots=True)
class Chip:
    """A status: its word, in the colour of its tone."""

    word: Word

    def __str__(self) -> SafeString:
        return format_html('<span class="chip chip-{}">{}</span>', self.word.tone, self.word.text)


def moment(at: datetime | None, now: datetime | None = None) -> Moment | None:
    """A time that may be absent."""
    return None if at is None else Moment(at, now)
