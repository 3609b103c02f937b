"""verify, of schedules: every ledger against an independent calendar (I13). Only reads, in the caller's snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from jobs.policies.history import Violation
from jobs.policies.ledgers import Entry, Terms, job_fault, unexpected
from jobs.policies.oracle import Calendar, Due, read_calendar
from jobs.policies.zones import ZONE_DATA
from jobs.queries.ledgers import Ledger, StoredVersion, entries, ledgers, stands_for, stray_jobs
from jobs.states import Verdict

INSTANT = timedelta(microseconds=1)
MOST = 1_000  # faults of one schedule: after so many the rest of it is not looked at


class Finding(NamedTuple):
    """One fault; `violation` is None if the calendar differs and other zone data may be why."""

    job_id: UUID | None
    violation: Violation | None


class Checked(NamedTuple):
    """One schedule.

    Attributes:
        occurrences: Rows read.
        unreadable: Versions whose rule says nothing.
        findings: Faults.
    """

    occurrences: int
    unreadable: int
    findings: list[Finding]


def check_ledgers(
    *,
    shards: Sequence[int],
    tenant_id: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterator[Checked]:
    """Each schedule; jobs that are in no ledger come last, as those of no schedule.

    Args:
        shards: All.
        tenant_id: Only this tenant's schedules.
        since: Only firings then or later, aware.
        until: Only firings before, aware.
    """
    after = since and since - INSTANT
    end = until and until - INSTANT
    for ledger in ledgers(tenant_id=tenant_id):
        yield _check(ledger, shards, after, end)


def check_strays(
    *,
    shards: Sequence[int],
    tenant_id: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Finding]:
    """Jobs that stand for a firing, are not cancelled, and that no ledger names. Arguments as above."""
    found = stray_jobs(shards=shards, tenant_id=tenant_id, since=since, until=until)
    return [
        _fault(schedule_id, "a job for a firing that no ledger has", job_id)
        for job_id, schedule_id in found
    ]


def _check(
    ledger: Ledger, shards: Sequence[int], after: datetime | None, until: datetime | None
) -> Checked:
    terms, read, findings = terms_of(ledger), 0, list[Finding]()
    pages = entries(shards=shards, schedule_id=ledger.schedule_id, after=after, until=until)
    for begin, end, page in pages:
        read += len(page)
        for finding in _page(ledger.schedule_id, terms, begin, end, page):
            findings.append(finding)
            if len(findings) >= MOST:
                return Checked(read, _unreadable(terms), findings)
    return Checked(read, _unreadable(terms), findings)


def terms_of(ledger: Ledger) -> list[Terms]:
    """What each version says, and where it is in force."""
    last = min(ledger.expanded_until, ledger.deleted_at or ledger.expanded_until)
    ends = [*((one.since, one.created_at) for one in ledger.versions[1:]), (last, None)]
    newest = len(ledger.versions) - 1
    return [
        Terms(
            number=one.number,
            calendar=None if ledger.faulty and place == newest else _calendar(one),
            same_zone_data=one.zone_data == ZONE_DATA,
            since=one.since,
            end=end,
            replaced_at=replaced_at,
            starts_at=one.starts_at,
            ends_at=one.ends_at,
            cut_at_end=(
                place == newest
                and ledger.ended
                and one.max_runs is not None
                and ledger.runs >= one.max_runs
            ),
        )
        for place, (one, (end, replaced_at)) in enumerate(zip(ledger.versions, ends, strict=False))
    ]


def _calendar(version: StoredVersion) -> Calendar | None:
    with suppress(ValueError, OverflowError):
        return read_calendar(
            cron=version.cron,
            every=version.every,
            anchor=version.anchor,
            zone=version.timezone,
            on_gap=version.on_gap,
            on_overlap=version.on_overlap,
        )
    return None


def _unreadable(terms: Sequence[Terms]) -> int:
    return sum(one.calendar is None for one in terms)


def _page(
    schedule_id: UUID,
    terms: Sequence[Terms],
    begin: datetime,
    end: datetime,
    page: Sequence[Entry],
) -> Iterator[Finding]:
    for entry in page:
        if (fault := job_fault(entry, schedule_id)) is not None:
            yield _fault(schedule_id, f"{entry.slot} {fault}", entry.job_id)
    open_ones = {one.due: one for one in page if one.verdict != Verdict.SUPERSEDED}
    for each in terms:
        for due in each.expected(begin, end):
            if open_ones.pop(due, None) is None and not _covered(schedule_id, each, due):
                missing = f"{due.slot} is missing: due at {due.known_at.isoformat()}, version {each.number}"
                yield _told(schedule_id, missing, None, certain=each.same_zone_data)
    for entry, certain in unexpected(terms, list(open_ones.values())):
        extra = f"{entry.slot} is too much: version {entry.version} has nothing at {entry.known_at.isoformat()}"
        yield _told(schedule_id, extra, entry.job_id, certain=certain)


def _covered(schedule_id: UUID, terms: Terms, due: Due) -> bool:
    """Another row stands for it: one of an earlier version that was claimed, or one that was asked for."""
    if terms.cut_at_end and due.known_at == terms.end:
        return True
    known = stands_for(
        schedule_id=schedule_id,
        timezone=terms.calendar.zone if terms.calendar else "",
        slot=due.slot,
        number=due.number,
        fire_at=due.fire_at,
    )
    return any(one.caught_up or one.version < terms.number for one in known)


def _told(schedule_id: UUID, detail: str, job_id: UUID | None, *, certain: bool) -> Finding:
    return _fault(schedule_id, detail, job_id) if certain else Finding(None, None)


def _fault(schedule_id: UUID, detail: str, job_id: UUID | None) -> Finding:
    return Finding(job_id, Violation("I13", 0, f"schedule {schedule_id}: {detail}"))
