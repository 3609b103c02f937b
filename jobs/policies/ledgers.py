"""I13: does the ledger of a schedule say what an independent calendar says, and do its jobs agree with it?

Owns the comparison of one schedule's rows with oracle.py, version by version. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from jobs.policies.oracle import Calendar, Due, among, walk
from jobs.states import JobStatus, Verdict

INSTANT = timedelta(microseconds=1)
WITH_JOB = frozenset({Verdict.PENDING, Verdict.RAN, Verdict.LATE})


class Entry(NamedTuple):
    """One row of the ledger, and what its job says; `job_schedule` is None if there is no such job."""

    version: int
    known_at: datetime
    fire_at: datetime | None
    slot: str
    number: int
    verdict: str
    caught_up: bool
    job_id: UUID | None
    job_schedule: UUID | None
    job_fire_at: datetime | None
    job_status: str | None
    job_attempt: int | None

    @property
    def due(self) -> Due:
        """As the oracle would say it."""
        return Due(self.known_at, self.fire_at, self.slot, self.number)

    @property
    def waits(self) -> bool:
        """Its job was never claimed and is not over: an edit would have taken it back."""
        return self.job_id is None or (
            self.job_status == JobStatus.SCHEDULED and not self.job_attempt
        )


class Known(NamedTuple):
    """A row elsewhere in the ledger that has the slot or the instant of a firing."""

    version: int
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one version says, and in which part of the ledger it is in force: since < known_at <= end.

    Attributes:
        number: Of the version.
        calendar: None: it cannot be read.
        same_zone_data: It was made with the zone data of this process.
        since, end: Aware.
        replaced_at: When the next one came; None for the newest.
        starts_at, ends_at: Nothing fires outside.
        cut_at_end: Its runs were used up at `end`: what else is known at that instant is left open.
    """

    number: int
    calendar: Calendar | None
    same_zone_data: bool
    since: datetime
    end: datetime
    replaced_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    cut_at_end: bool = False

    def expected(self, begin: datetime, end: datetime) -> Iterator[Due]:
        """What must be in the ledger with begin < known_at <= end, as far as it is in force there."""
        if self.calendar is not None:
            begin, end = max(begin, self.since), min(end, self.end)
            if self.starts_at is not None:
                begin = max(begin, self.starts_at - INSTANT)
            if self.ends_at is not None:
                end = min(end, self.ends_at)
            yield from walk(self.calendar, begin, end)

    def fires_at(self, moment: datetime) -> bool:
        """Whether it is between its start and its end."""
        started = self.starts_at is None or self.starts_at <= moment
        return started and (self.ends_at is None or moment <= self.ends_at)


def unexpected(terms: Sequence[Terms], entries: Sequence[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Of rows that the version in force does not expect where they are, those that nothing else explains.

    A row is explained if somebody asked for it afterwards, if a version had decided it ahead and it was claimed before the
    next one came, or if its time was over by then (the next one may reach back); it then is what its own version expects.
    One of a version that cannot be read is let pass.

    Args:
        terms: All versions, ascending.
        entries: Such rows.

    Returns:
        Rows, and whether that is certain: a version from other zone data is not.
    """
    by_number = {one.number: one for one in terms}
    explained: dict[int, list[Entry]] = {}
    for entry in entries:
        own = _explains(terms, by_number.get(entry.version), entry)
        if own is None:
            known = by_number.get(entry.version)
            yield entry, known is None or known.same_zone_data
        else:
            explained.setdefault(own.number, []).append(entry)
    for number, several in explained.items():
        own = by_number[number]
        if own.calendar is None:
            continue
        real = among(own.calendar, {entry.known_at for entry in several})
        for entry in several:
            inside = entry.caught_up or own.fires_at(entry.known_at)
            if entry.due not in real or not inside:
                yield entry, own.same_zone_data


def _explains(terms: Sequence[Terms], own: Terms | None, entry: Entry) -> Terms | None:
    """The version that must know such a row; None: no version may have it there."""
    if own is None or own.calendar is None or entry.caught_up:
        return own
    is_over = own.replaced_at is not None and entry.known_at <= own.replaced_at
    if is_over or not entry.waits:
        return own if entry.known_at > own.since else None
    # As good for the newest version, which has been set back and has not come so far again.
    newest = terms[-1]
    is_kept = entry.known_at > newest.end and entry.version < newest.number
    return newest if is_kept else None


def job_fault(entry: Entry, schedule_id: UUID) -> str | None:
    """What is wrong between a row and its job.

    Args:
        entry: The row.
        schedule_id: Whose ledger it is in.

    >>> from datetime import UTC
    >>> noon = datetime(2027, 5, 3, 12, tzinfo=UTC)
    >>> row = Entry(1, noon, noon, "2027-05-03T12:00:00", 1, "ran", False, None, None, None, None, None)
    >>> job_fault(row, UUID(int=1))
    'is ran and has no job'
    """
    if entry.verdict not in WITH_JOB:
        alive = entry.job_status not in (None, JobStatus.CANCELLED)
        return f"is {entry.verdict} and its job is {entry.job_status}" if alive else None
    if entry.fire_at is None:
        return f"is {entry.verdict} and never fires"
    if entry.job_id is None:
        return f"is {entry.verdict} and has no job"
    if entry.job_status is None:
        return "names a job that is gone"
    if entry.job_schedule != schedule_id:
        return "names a job of another schedule"
    if entry.job_fire_at != entry.fire_at:
        return f"names a job that fires at {entry.job_fire_at and entry.job_fire_at.isoformat()}"
    return None
