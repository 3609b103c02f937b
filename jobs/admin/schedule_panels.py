"""What the page of a schedule tells beside its form: next runs, the ledger, the versions, the coming changes of its clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.clock import database_now
from jobs.errors import ValidationFailed
from jobs.models import Occurrence, Schedule
from jobs.queries.schedule_lists import (
    firings_to_come,
    jitters_of,
    list_firings,
    list_versions,
    read_schedules,
)
from jobs.queries.schedules import StoredSchedule
from jobs.services.ledger_words import firing_words
from jobs.services.preview import coming_shifts, shift_document
from jobs.services.timings import defaults, timing_of
from jobs.services.upcoming import upcoming
from jobs.services.version_fields import version_changes

RUNS, FIRINGS, VERSIONS = 10, 50, 20


def next_runs(schedule: Schedule) -> SafeString:
    """The rule in words, and its next runs by its own clock and in UTC."""
    stored = _stored(schedule)
    if stored is None:
        return SafeString("It was deleted.")
    told = upcoming(stored, after=database_now(), count=RUNS)
    lines = [
        (
            When(one["local"] or one["slot"]),
            When(one["fire_at"] or ""),
            When(one["due_at"] or ""),
            one["words"],
        )
        for one in told.runs
    ]
    table = _table(("By its clock", "UTC", "Job is due", ""), lines)
    nothing = "paused" if stored.paused else "none"
    words = told.words or "Its rule cannot be read."
    return format_html("<p>{}</p>{}", words, table if lines else nothing)


def clock_changes(schedule: Schedule) -> SafeString:
    """The next gap and the next overlap, and what each policy would do."""
    stored = _stored(schedule)
    try:
        timing = None if stored is None else timing_of(stored)
    except ValidationFailed:
        timing = None
    if timing is None:
        return SafeString("")
    rule = timing.recurrence
    found: dict[bool, dict[str, Any]] = {}
    for shift in coming_shifts(rule.zone, database_now()):
        found.setdefault(shift.after > shift.before, shift_document(rule, shift))
    lines = []
    for one in sorted(found.values(), key=lambda each: str(each["at"])):
        would = [
            f"{name}: {', '.join(at) or 'not at all'}" for name, at in one["would_run"].items()
        ]
        lines.append((When(one["at"]), one["kind"], one["words"], "; ".join(would)))
    if not lines:
        return format_html("The clock of {} is not moved in the next 18 months.", rule.zone)
    return _table(("UTC", "Kind", rule.zone, "Would run"), lines)


def ledger(schedule: Schedule) -> SafeString:
    """The next few firings and the last ones, with what became of them."""
    rows = [*firings_to_come(schedule), *list_firings(schedule, limit=FIRINGS)]
    jitters = jitters_of(schedule.pk, {row.version for row in rows})
    lines = [
        (
            When(row.slot),
            row.timezone,
            _utc(row.fire_at),
            _utc(row.due_at),
            row.verdict + (" (caught up)" if row.caught_up else ""),
            row.reason,
            firing_words(row, jitters.get(row.version)),
            row.version,
            _job(row),
        )
        for row in rows
    ]
    heads = ("Slot", "Zone", "Fires (UTC)", "Due (UTC)", "Verdict", "Reason", "", "Version", "Job")
    return _table(heads, lines) if lines else SafeString("none yet")


def versions(schedule: Schedule) -> SafeString:
    """Who changed what; secrets masked."""
    found = list_versions(schedule, limit=VERSIONS + 1)
    lines = []
    for one, before in zip(found, [*found[1:], None], strict=True):
        told = version_changes(one, before, reveal=False)
        changes = [f"{name}: {_short(old)} → {_short(new)}" for name, (old, new) in told.items()]
        rule = one.cron or f"every {one.every}"
        lines.append(
            (
                one.number,
                one.why,
                _utc(one.since),
                one.created_by,
                rule,
                one.in_timezone,
                "; ".join(changes),
            )
        )
    heads = ("#", "Why", "Since (UTC)", "By", "Rule", "Zone", "Changes")
    return _table(heads, lines[:VERSIONS])


def _stored(schedule: Schedule) -> StoredSchedule | None:
    return read_schedules([schedule.pk], defaults=defaults()).get(schedule.pk)


def _short(value: Any) -> str:
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


class When(str):
    """A time, which a table shows on one line."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.replace("T", " ")


def _utc(moment: datetime | None) -> When:
    return When("" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}")


def _job(row: Occurrence) -> SafeString:
    if row.job_id is None:
        return SafeString("")
    address = reverse("console:job", args=[row.job_id])
    return format_html('<a href="{}">{}</a>', address, str(row.job_id)[:8])


def _table(heads: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> SafeString:
    head = format_html_join("", "<th scope='col'>{}</th>", ((one,) for one in heads))
    cells = ((format_html_join("", "{}", ((_cell(one),) for one in line)),) for line in lines)
    body = format_html_join("", "<tr>{}</tr>", cells)
    return format_html("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", head, body)


def _cell(value: Any) -> SafeString:
    if isinstance(value, When):
        return format_html('<td class="nowrap">{}</td>', str(value))
    return format_html("<td>{}</td>", value)
