"""Entries and a mapping → what would become of each here, and, when it is asked for, the schedules themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from django.db import DatabaseError, transaction

from jobs.errors import InvalidField, JobError, NotFound, ValidationFailed
from jobs.models import Schedule, ScheduleVersion, Tenant
from jobs.policies.times import parse_time
from jobs.policies.timing import Timing
from jobs.services.calendars import find_calendar
from jobs.services.preview import Preview, check_upcoming, parse_recurrence, preview
from jobs.services.requests import parse_request
from jobs.services.schedule_requests import (
    RECURRENCE,
    ScheduleRequest,
    fields_of,
    parse_schedule,
)
from jobs.services.schedules import create_schedule, pause_schedule
from jobs.services.submit import check_request
from jobs.services.timings import tenant_defaults
from workers.importing.entries import Entry, Finding, Kind, Zone
from workers.importing.mapping import Rule, filled

NEXT_RUNS = 3
# Findings that no longer hold once the mapping sets one of these fields itself.
SETTLED_BY = {"dst": ("on_gap", "on_overlap"), "missed_runs": ("misfire", "grace_seconds")}
ANCHOR_MOVES = "anchor"  # the source counts from its last run, so it differs at every import


class Outcome(StrEnum):
    """What has become, or would become, of an entry."""

    WOULD_CREATE = "would_create"
    CREATED = "created"
    UNCHANGED = "unchanged"  # a schedule of this name is there and says the same
    DIFFERS = "differs"  # it says something else, and is left alone
    IGNORED = "ignored"  # by the mapping, on purpose
    UNMAPPED = "unmapped"
    NEEDS_ACCEPT = "needs_accept"
    REFUSED = "refused"


CALENDAR = Finding("calendar", "next runs are shown as if its calendar closed no day", Kind.NOTE)
NOT_WELL = frozenset({Outcome.UNMAPPED, Outcome.NEEDS_ACCEPT, Outcome.REFUSED})


@dataclass(slots=True)
class Row:
    """An entry and all that is to be told of it.

    Attributes:
        entry: As read.
        outcome: What becomes of it.
        findings: Of the entry, as far as the mapping has not settled them.
        zone: Where it will run.
        name: Of the schedule; "" where there is none.
        request: What would be stored.
        shown: Its next runs and the changes of its clock.
        rule: Of the mapping.
        faults: Why it is refused.
        differs: Fields in which the stored schedule says something else.
    """

    entry: Entry
    outcome: Outcome
    findings: tuple[Finding, ...]
    zone: Zone
    name: str = ""
    request: ScheduleRequest | None = None
    shown: Preview | None = None
    rule: Rule | None = None
    faults: list[InvalidField] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)

    def refuse(self, faults: Sequence[InvalidField]) -> None:
        """Nothing becomes of it, for these reasons."""
        self.outcome, self.faults = Outcome.REFUSED, [*faults]


class Planner:
    """Decides on one entry after the other; names are given once."""

    def __init__(
        self,
        *,
        tenant: Tenant,
        rules: Sequence[Rule],
        accepted: Collection[str] = (),
        prefix: str = "",
        now: datetime,
    ) -> None:
        """Set up for one import.

        Args:
            tenant: Owner of what is created.
            rules: Of the mapping file.
            accepted: Codes of findings by which an entry runs on other days than before, and which are wanted so.
            prefix: Before every name, such as that of the machine.
            now: Aware UTC; next runs are those after it.
        """
        self._tenant, self._rules, self._now = tenant, rules, now
        self._accepted, self._prefix = frozenset(accepted), prefix
        self._defaults = tenant_defaults(tenant)
        self._names: set[str] = set()
        self.used: set[str] = set()

    def plan(self, entry: Entry) -> Row:
        """What becomes of an entry. Reads the database and writes nothing."""
        row = Row(entry, Outcome.UNMAPPED, entry.findings, entry.zone)
        row.rule, values = self._mapped(entry)
        if row.rule is not None and row.rule.ignore:
            row.outcome = Outcome.IGNORED
            return row
        if entry.refusal is not None:
            row.refuse([InvalidField("", entry.refusal.code, entry.refusal.text)])
            return row
        try:
            self._decide(row, row.rule, values)
        except ValidationFailed as several:
            row.refuse(several.errors)
        except InvalidField as fault:
            row.refuse([fault])
        except JobError as fault:
            row.refuse([InvalidField(getattr(fault, "pointer", ""), fault.code, fault.detail)])
        return row

    def _mapped(self, entry: Entry) -> tuple[Rule | None, dict[str, Any]]:
        for rule in self._rules:
            if (values := rule.values(entry)) is not None:
                self.used.add(rule.place)
                return rule, values
        return None, {}

    def _decide(self, row: Row, rule: Rule | None, values: dict[str, Any]) -> None:
        entry = row.entry
        own = filled(dict(rule.schedule), values) if rule else {}
        fields = {"timezone": entry.zone.key, **entry.recurrence, **entry.fields, **own}
        if own.get("calendar"):
            row.findings = (*row.findings, CALENDAR)
        if own.get("timezone"):
            row.zone = Zone(own["timezone"], "the mapping")
        self._preview(row, fields)
        if rule is None:
            return
        job = {**entry.job, **filled(dict(rule.job), values)}
        row.findings = settled(row.findings, {**own, **rule.job})
        row.name = self._name(entry, rule, {**values, "handler": job["handler"]})
        row.request = parse_schedule(
            {"name": row.name, **fields, "job": job}, defaults=self._defaults
        )
        if row.name in self._names:
            fault = InvalidField("/name", "in_use", f"{row.name!r} is the name of another entry")
            raise ValidationFailed([fault])
        self._names.add(row.name)
        check_request(self._tenant, parse_request(row.request.version["template"], "/job"))
        if (calendar := row.request.version.get("calendar")) is not None:
            self._check_calendar(calendar)
        self._hold_against_stored(row, row.request)

    def _check_calendar(self, name: str) -> None:
        try:
            find_calendar(tenant_id=self._tenant.pk, name=name)
        except NotFound:
            raise InvalidField("/calendar", "unknown", "there is no such calendar") from None

    def _preview(self, row: Row, fields: dict[str, Any]) -> None:
        given = {name: fields[name] for name in RECURRENCE if fields.get(name) is not None}
        recurrence = parse_recurrence({**self._defaults, **given})
        text = str(fields.get("cron") or "")
        starts, ends = (_moment(fields.get(name)) for name in ("starts_at", "ends_at"))
        after = max(self._now, starts - timedelta(seconds=1)) if starts else self._now
        timing = Timing(recurrence=recurrence)
        row.shown = preview(timing, text=text, after=after, until=ends, count=NEXT_RUNS)
        if not row.shown.runs:  # by its bounds, or never
            check_upcoming(recurrence, self._now)

    def _name(self, entry: Entry, rule: Rule, values: dict[str, Any]) -> str:
        """The mapping's, else the entry's own, else file, handler and a digest of what it runs: lines may move."""
        if rule.name:
            return self._prefix + str(filled(rule.name, values))
        if entry.key:
            return self._prefix + entry.key
        facts = entry.facts
        parts = [str(facts.get(name, "")) for name in ("user", "command", "stdin")]
        file = "stdin" if facts["file"] == "-" else Path(str(facts["file"])).name
        for more in ([], [entry.rule]):  # a second rule for one command
            digest = blake2b("\0".join(parts + more).encode(), digest_size=4).hexdigest()
            name = f"{self._prefix}{file} {values['handler']} {digest}"
            if name not in self._names:
                break
        return name

    def _hold_against_stored(self, row: Row, request: ScheduleRequest) -> None:
        stored = Schedule.objects.filter(
            tenant=self._tenant, name=request.name, deleted_at=None
        ).first()
        if stored is None:
            missing = {one.code for one in row.findings if one.other_days} - self._accepted
            row.outcome = Outcome.NEEDS_ACCEPT if missing else Outcome.WOULD_CREATE
            return
        row.differs = differences(stored, request, paused=bool(row.entry.paused))
        row.outcome = Outcome.DIFFERS if row.differs else Outcome.UNCHANGED


def _moment(value: Any) -> datetime | None:
    return None if value is None else parse_time(value, "")


def settled(findings: Sequence[Finding], own: dict[str, Any]) -> tuple[Finding, ...]:
    """The findings, but for those about what the mapping sets itself; and that it does."""
    gone = {code for code, names in SETTLED_BY.items() if set(names) & own.keys()}
    if own.get("max_attempts") == 1:
        gone.add("retries")
    kept = tuple(one for one in findings if one.code not in gone)
    named = [name for code in sorted(gone) for name in SETTLED_BY.get(code, ()) if name in own]
    if not named:
        return kept
    told = ", ".join(f"{name}={own[name]}" for name in named)
    return (*kept, Finding("mapping_decides", f"the mapping sets {told}", Kind.NOTE))


def differences(stored: Schedule, request: ScheduleRequest, *, paused: bool) -> list[str]:
    """Names of fields in which a stored schedule says something else than a request."""
    version = ScheduleVersion.objects.select_related("calendar").get(
        schedule=stored, number=stored.version
    )
    asked = {**request.version, "job": request.version["template"]}
    names = [
        name
        for name, value in fields_of(version).items()
        if name != ANCHOR_MOVES and (value or None) != (asked.get(name, _default(name)) or None)
    ]
    return [*names, *(["paused"] if paused and stored.paused_at is None else [])]


def _default(name: str) -> Any:
    """What the database fills in for a field that is not given."""
    if name in ("job", *RECURRENCE):
        return None
    (column,) = [one for one in ScheduleVersion._meta.concrete_fields if one.name == name]
    return column.db_default if column.has_db_default() else None


def create(row: Row, *, tenant: Tenant, actor: str) -> None:
    """Store a row that would be created; paused if it did not run where it comes from. Its outcome says how it went."""
    if row.outcome is not Outcome.WOULD_CREATE or row.request is None:
        return
    try:
        with transaction.atomic():  # never a moment in which it could fire before it is paused
            made = create_schedule(tenant=tenant, request=row.request, actor=actor)
            if row.entry.paused:
                pause_schedule(
                    tenant=tenant, schedule_id=made.pk, actor=actor, reason=row.entry.paused
                )
        row.outcome = Outcome.CREATED
    except ValidationFailed as several:
        row.refuse(several.errors)
    except JobError as fault:
        row.refuse([InvalidField(getattr(fault, "pointer", ""), fault.code, fault.detail)])
    except DatabaseError as fault:
        text = f"not stored: {type(fault).__name__}"
        row.refuse([InvalidField("", "database", text)])
