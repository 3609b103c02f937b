"""What every source gives: entries, what there is to say about them, and notices about whole files. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How much a finding matters."""

    DIFFERS = "differs"  # the schedule will not do what it did
    KEPT = "kept"  # it would differ, but a setting keeps the meaning
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about an entry.

    Attributes:
        code: Stable; for programs and for `--accept`.
        text: One sentence.
        kind: How much it matters.
        other_days: It runs on other days than before: nothing is created until that is accepted.
    """

    code: str
    text: str
    kind: Kind = Kind.DIFFERS
    other_days: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to know about a file.

    Attributes:
        wrong: Something of it could not be read, so not all is well.
    """

    place: str
    code: str
    text: str
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Zone:
    """Where rules run that name no zone, and who says so."""

    key: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rule of a source.

    Attributes:
        source: crontab, kubernetes or celery_beat.
        place: File and line, or table and row.
        rule: As it is written there.
        subject: What it runs, for people; may hold secrets, so it is masked where it is shown.
        zone: Where it runs.
        recurrence: `cron`, or `every` and `anchor`; policies that keep its meaning.
        fields: Other fields of a schedule.
        job: Fields of its jobs.
        facts: What a mapping can match and fill in, by name.
        key: Its own name at the source; "" if it has none.
        findings: In the order in which they are told.
        refusal: Why it cannot be imported.
        paused: Why it does not run now; "" if it does.
    """

    source: str
    place: str
    rule: str
    subject: str
    zone: Zone
    recurrence: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    findings: tuple[Finding, ...] = ()
    refusal: Finding | None = None
    paused: str = ""


@dataclass(slots=True)
class Reading:
    """What has been read so far."""

    entries: list[Entry] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        """All of another one, after what is here."""
        self.entries += other.entries
        self.notices += other.notices


@dataclass(frozen=True, slots=True)
class Context:
    """What readers need to know: the zone of rules that name none, and the time."""

    zone: Zone
    now: datetime


class Unreadable(Exception):
    """A source cannot be read at all; the text says why, and holds no secret."""
