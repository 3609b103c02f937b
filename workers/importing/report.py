"""What is told of an import: for people, and as one document for programs. Commands are masked, escapes harmless."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.policies.zones import ZONE_DATA
from workers.dk.history import printable
from workers.importing.entries import Kind, Notice
from workers.importing.plan import NOT_WELL, Outcome, Row
from workers.importing.texts import masked

REASON_CHARACTERS = 1_000
_WORDS = {
    Outcome.WOULD_CREATE: "would be created",
    Outcome.CREATED: "created",
    Outcome.UNCHANGED: "exists, unchanged",
    Outcome.DIFFERS: "exists, differs",
    Outcome.IGNORED: "ignored",
    Outcome.UNMAPPED: "unmapped",
    Outcome.NEEDS_ACCEPT: "not accepted",
    Outcome.REFUSED: "refused",
}
_SIGNS = {Kind.DIFFERS: "differs", Kind.KEPT: "kept", Kind.NOTE: "note"}


def all_well(rows: Sequence[Row], notices: Sequence[Notice]) -> bool:
    """Everything was read, and all of it is mapped or ignored on purpose."""
    return not (any(row.outcome in NOT_WELL for row in rows) or any(one.wrong for one in notices))


def document(rows: Sequence[Row], notices: Sequence[Notice], *, applied: bool) -> dict[str, Any]:
    """For programs."""
    return {
        "applied": applied,
        "entries": [_entry(row) for row in rows],
        "notices": [
            {"place": one.place, "code": one.code, "text": one.text, "wrong": one.wrong}
            for one in notices
        ],
        "counts": counts(rows),
        "zone_data": ZONE_DATA,
    }


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many of each outcome that there is."""
    found = Counter(row.outcome for row in rows)
    return {one.value: found[one] for one in Outcome if found[one]}


def lines(rows: Sequence[Row], notices: Sequence[Notice], *, applied: bool) -> Iterator[str]:
    """For people."""
    footnotes = _footnotes(rows)
    for row in rows:
        yield from map(printable, _block(row, footnotes))
        yield ""
    for text, number in footnotes.items():
        yield printable(f"[{number}] {text}")
    if footnotes:
        yield ""
    for one in notices:
        yield printable(f"{one.place}: {one.code}: {one.text}")
    if notices:
        yield ""
    told = ", ".join(f"{count} {_WORDS[Outcome(name)]}" for name, count in counts(rows).items())
    yield f"{len(rows)} entries" + (f": {told}" if told else "")
    if not applied:
        yield "Nothing was stored: --apply creates what would be created."


def _entry(row: Row) -> dict[str, Any]:
    entry, shown = row.entry, row.shown
    shift = _next_shift(row)
    version = row.request.version if row.request else None
    return {
        "source": entry.source,
        "place": entry.place,
        "rule": entry.rule,
        "subject": masked(entry.subject),
        "outcome": row.outcome.value,
        "words": shown and shown.words,
        "timezone": row.zone.key,
        "timezone_from": row.zone.source,
        "mapping": row.rule and row.rule.place,
        "ignored": (row.rule and row.rule.ignore) or None,
        "handler": version and version["template"]["handler"],
        "name": row.name or None,
        "schedule": version and {k: _json(v) for k, v in version.items() if k != "template"},
        "paused": entry.paused or None,
        "next": [
            {"local": one["local"], "utc": one["fire_at"], "words": one["words"]}
            for one in (shown.runs if shown else [])
        ],
        "shift": shift and {name: shift[name] for name in ("at", "kind", "words", "would_run")},
        "findings": [
            {"code": one.code, "kind": one.kind.value, "text": one.text, "accept": one.other_days}
            for one in row.findings
        ],
        "errors": [
            {
                "pointer": one.pointer,
                "code": one.field_code,
                "detail": masked(one.reason, REASON_CHARACTERS),
            }
            for one in row.faults
        ],
        "differs": row.differs,
    }


def _json(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else value.isoformat()


def _next_shift(row: Row) -> dict[str, Any] | None:
    """The next change of the clock that this rule feels."""
    shifts = row.shown.shifts if row.shown else []
    return next((one for one in shifts if one["would_run"]), None)


def _block(row: Row, footnotes: dict[str, int]) -> Iterator[str]:
    entry = row.entry
    yield f"{entry.place}: {_outcome(row)}"
    words = f": {row.shown.words}" if row.shown else ""
    yield f"  {entry.rule}{words}"
    yield f"  {masked(entry.subject)}"
    if row.name:
        handler = row.request.version["template"]["handler"] if row.request else ""
        yield f"  → {handler or '?'}  as {json.dumps(row.name, ensure_ascii=False)}"
    if entry.paused:
        yield f"  paused: {entry.paused}"
    if row.shown:
        yield f"  next in {row.zone.key} (from {row.zone.source}):"
        for one in row.shown.runs:
            time = (
                f"{one['local']}  {one['fire_at']}"
                if one["fire_at"]
                else f"{one['slot']}  skipped"
            )
            yield "    " + "  ".join(filter(None, [time, one["words"]]))
        if not row.shown.runs:
            yield "    nothing: it has ended"
    if shift := _next_shift(row):
        yield f"  clock: {shift['at']}  {shift['words']}"
    for fault in row.faults:
        place = f"{fault.pointer}: " if fault.pointer else ""
        yield f"  {place}{fault.field_code}: {masked(fault.reason, REASON_CHARACTERS)}"
    for finding in row.findings if row.outcome is not Outcome.IGNORED else ():
        number = footnotes.get(finding.text)
        told = f"[{number}]" if number else finding.text
        yield f"  {_SIGNS[finding.kind]} {finding.code}: {told}"


def _footnotes(rows: Sequence[Row]) -> dict[str, int]:
    """Sentences that hold for several entries, numbered: they are told once, at the end."""
    told = Counter(
        one.text for row in rows for one in row.findings if row.outcome is not Outcome.IGNORED
    )
    several = [text for text, count in told.items() if count > 1]
    return {text: number for number, text in enumerate(several, 1)}


def _outcome(row: Row) -> str:
    words = _WORDS[row.outcome]
    match row.outcome:
        case Outcome.IGNORED if row.rule:
            return f"{words}: {row.rule.ignore}"
        case Outcome.DIFFERS:
            return f"{words}: {', '.join(row.differs)}; left alone"
        case Outcome.NEEDS_ACCEPT:
            codes = [one.code for one in row.findings if one.other_days]
            return f"{words}: runs on other days; --accept {' --accept '.join(codes)} wants that"
        case _:
            return words
