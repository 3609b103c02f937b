"""Everything of a schedule that decides when it runs: its firings, and when the job of one of them is due.

Owns firing → due time: closed days move or drop it, jitter delays it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from hashlib import blake2b
from uuid import UUID

from jobs.policies.cron import EPOCH
from jobs.policies.holidays import Holidays
from jobs.policies.intervals import Every
from jobs.policies.recurrence import Firing, Recurrence
from jobs.policies.zones import WIDEST_SECONDS, shifts, zone
from jobs.states import Misfire, OnGap, OnHoliday, OnOverlap

SECOND = timedelta(seconds=1)
INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)
_STEPS = {OnHoliday.NEXT_BUSINESS_DAY: 1, OnHoliday.PREVIOUS_BUSINESS_DAY: -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Everything of a schedule that decides when it runs.

    Attributes:
        recurrence: Rule, zone, policies for shifts of the clock.
        misfire: For missed firings.
        grace_seconds: One that is later than this is missed.
        catch_up_most: With `all`, at most so many missed ones run, the latest.
        catch_up_seconds: With `all`, none that is older.
        holidays: Closed days, in its own zone; None: no calendar.
        on_holiday: Where a firing on a closed day goes.
        delay_seconds: Jitter of this schedule: every run is due so much after it fires.
        starts_at, ends_at: Aware; nothing fires outside. Both are inside.
        max_runs: After so many it ends.
    """

    recurrence: Recurrence
    misfire: Misfire = Misfire.LATEST
    grace_seconds: float = 60.0
    catch_up_most: int = 10
    catch_up_seconds: float = 86_400.0
    holidays: Holidays | None = None
    on_holiday: OnHoliday = OnHoliday.SKIP
    delay_seconds: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_runs: int | None = None

    @property
    def delay(self) -> timedelta:
        """From the time of a run to the moment its job is due."""
        return timedelta(seconds=self.delay_seconds)

    def due_at(self, firing: Firing) -> datetime | None:
        """When the job of a firing is due; None if a gap or a closed day keeps it from running.

        A firing that is moved to where the schedule fires anyway, or to where one nearer to it is moved, does not run: a
        daily rule runs once on the Monday after a weekend.

        >>> from jobs.policies.cron import parse_cron
        >>> from jobs.policies.recurrence import expand
        >>> weekend = Holidays(weekend=frozenset({5, 6}))
        >>> rule = Recurrence(parse_cron("0 9 1 * *"), "Europe/Berlin")
        >>> timing = Timing(recurrence=rule, holidays=weekend, on_holiday=OnHoliday.NEXT_BUSINESS_DAY)
        >>> first = next(expand(rule, datetime(2027, 4, 30, tzinfo=UTC), datetime(2027, 5, 2, tzinfo=UTC)))
        >>> str(first.fire_at), str(timing.due_at(first))
        ('2027-05-01 07:00:00+00:00', '2027-05-03 07:00:00+00:00')
        """
        if firing.fire_at is None:
            return None
        runs_at = self._on_open_day(firing)
        return None if runs_at is None else runs_at + self.delay

    def within(self, begin: datetime, end: datetime) -> tuple[datetime, datetime]:
        """The part of a window (begin, end] that lies inside starts_at and ends_at."""
        if self.starts_at is not None:
            begin = max(begin, self.starts_at - INSTANT)
        if self.ends_at is not None:
            end = min(end, self.ends_at)
        return begin, end

    def reach(self, until: datetime) -> datetime:
        """How far firings must be known for every run up to `until`: those of later closed days may come first."""
        if self.holidays is None or self.on_holiday is not OnHoliday.PREVIOUS_BUSINESS_DAY:
            return until
        day = (until + DAY).astimezone(zone(self.recurrence.zone)).date()
        if not self.holidays.closed(day + DAY) and not self.holidays.closed(day):
            return until
        after = self.holidays.open_day(day, 1)
        return (
            until
            if after is None
            else max(
                until, datetime.combine(after, time(), zone(self.recurrence.zone)).astimezone(UTC)
            )
        )

    def _on_open_day(self, firing: Firing) -> datetime | None:
        if self.holidays is None or firing.fire_at is None:
            return firing.fire_at
        day = firing.fire_at.astimezone(zone(self.recurrence.zone)).date()
        if not self.holidays.closed(day):
            return firing.fire_at
        step = _STEPS.get(self.on_holiday)
        target = self.holidays.open_day(day, step) if step else None
        if step is None or target is None:
            return None
        while day != target:
            day += step * DAY
            if self._has_slot(datetime.combine(day, firing.slot.time())):
                return None
        return self._instant(datetime.combine(target, firing.slot.time()))

    def _has_slot(self, slot: datetime) -> bool:
        """Whether the rule has this slot, within the time in which anything fires."""
        rule, local = self.recurrence.rule, (slot - EPOCH) // SECOND
        if isinstance(rule, Every) or next(rule.slots(local, local + 1), None) is None:
            return False
        at = self._instant(slot)
        begin, end = self.starts_at or at, self.ends_at or at
        return at is None or begin is None or end is None or begin <= at <= end

    def _instant(self, slot: datetime) -> datetime | None:
        """When the clock shows a slot, by the policies where it is moved; None if they skip it."""
        there = zone(self.recurrence.zone)
        second = self.recurrence.on_overlap is OnOverlap.SECOND
        at = slot.replace(tzinfo=there, fold=1 if second else 0).astimezone(UTC)
        if at.astimezone(there).replace(tzinfo=None, fold=0) == slot:
            return at
        at = slot.replace(tzinfo=there, fold=0).astimezone(UTC)  # as the clock went before the gap
        match self.recurrence.on_gap:
            case OnGap.SKIP:
                return None
            case OnGap.SHIFT_FORWARD:
                return at
        moment = round(at.timestamp())
        moves = shifts(self.recurrence.zone, moment - WIDEST_SECONDS, moment)
        return datetime.fromtimestamp(moves[-1].at, UTC) if moves else at


def jitter_delay(schedule_id: UUID, jitter_seconds: int) -> float:
    """A delay of 0 to `jitter_seconds`, always the same for one schedule.

    >>> from uuid import UUID
    >>> 0 <= jitter_delay(UUID(int=5), 60) <= 60
    True
    """
    if not jitter_seconds:
        return 0.0
    digest = blake2b(schedule_id.bytes, digest_size=8).digest()
    return float(int.from_bytes(digest, "big") % (jitter_seconds + 1))
