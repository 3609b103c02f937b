"""Everything of a schedule that decides when it runs: its firings, and when the job of one of them is due.

Owns firing → due time: closed days move or drop it, jitter delays it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from hashlib import blake2b
from uuid import UUID

from jobs.policies.holidays import Holidays
from jobs.policies.recurrence import Firing, Recurrence, expand
from jobs.policies.zones import zone
from jobs.states import Misfire, OnHoliday

SECOND = timedelta(seconds=1)
INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)


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
        >>> weekend = Holidays(weekend=frozenset({5, 6}))
        >>> rule = Recurrence(parse_cron("0 9 1 * *"), "Europe/Berlin")
        >>> timing = Timing(recurrence=rule, holidays=weekend, on_holiday=OnHoliday.NEXT_BUSINESS_DAY)
        >>> first = next(expand(rule, datetime(2027, 4, 30, tzinfo=UTC), datetime(2027, 5, 2, tzinfo=UTC)))
        >>> str(first.fire_at), str(timing.due_at(first))
        ('2027-05-01 07:00:00+00:00', '2027-05-03 07:00:00+00:00')
        """
        if firing.fire_at is None:
            return None
        runs_at = self._on_open_day(firing.fire_at) if self.holidays else firing.fire_at
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
        return until if after is None else max(until, self._instant(after, time()))

    def _on_open_day(self, fire_at: datetime) -> datetime | None:
        local = fire_at.astimezone(zone(self.recurrence.zone))
        if self.holidays is None or not self.holidays.closed(local.date()):
            return fire_at
        if self.on_holiday is OnHoliday.SKIP:
            return None
        step = 1 if self.on_holiday is OnHoliday.NEXT_BUSINESS_DAY else -1
        target = self.holidays.open_day(local.date(), step)
        if target is None:
            return None
        day = local.date()
        while day != target:
            day += step * DAY
            at = self._instant(day, local.time())
            if next(expand(self.recurrence, at - SECOND, at), None) is not None:
                return None
        return at

    def _instant(self, day: date, clock: time) -> datetime:
        """A wall time on a day; one that a gap leaves out comes as much later as the gap is long."""
        local = datetime.combine(day, clock, zone(self.recurrence.zone))
        return local.astimezone(UTC)


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
