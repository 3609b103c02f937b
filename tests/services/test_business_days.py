"""Calendars: what becomes of firings on closed days, and of schedules when their calendar changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from jobs.errors import CalendarInUse, NotFound, ValidationFailed
from jobs.models import Calendar, Occurrence, Schedule, ScheduleVersion
from jobs.policies.cron import parse_cron
from jobs.policies.holidays import read_holidays
from jobs.policies.recurrence import Recurrence, expand
from jobs.policies.timing import Timing
from jobs.services.calendars import (
    create_calendar,
    delete_calendar,
    find_calendar,
    list_calendars,
    parse_calendar,
    replace_calendar,
)
from jobs.services.revision import mark_stale_schedules
from jobs.states import OnHoliday
from tests.factories import all_shards, make_handler, make_pool, make_tenant, make_worker
from tests.support.recurring import create, expand_all, ledger, utc, waiting
from tests.support.recurring import edit as edit_it

pytestmark = pytest.mark.django_db
FRIDAY = utc("2027-05-07T08:00:00Z")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TODAY = date(2027, 5, 7)


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


def works(**days: str) -> Calendar:
    fields = {"name": "works", "weekend": ["sat", "sun"], "days": days}
    return create_calendar(
        tenant=make_tenant(), request=parse_calendar(fields, today=TODAY), actor="user:anna"
    )


def replace(**fields: Any) -> Calendar:
    request = parse_calendar({"name": "works", **fields}, today=TODAY)
    return replace_calendar(tenant=make_tenant(), request=request, actor="user:anna")


def due(schedule: Schedule) -> list[tuple[str, str, str, str | None]]:
    """(slot, verdict, reason, due)"""
    rows = Occurrence.objects.filter(schedule=schedule).order_by("slot")
    return [
        (
            row.slot[5:16],
            row.verdict,
            row.reason,
            f"{row.due_at:%m-%dT%H:%M}" if row.due_at else None,
        )
        for row in rows
    ]


def through(schedule: Schedule, begin: datetime, days: float, step: timedelta = HOUR) -> None:
    """A scheduler at work for so long, with nobody to claim anything."""
    end = begin + timedelta(days=days)
    while begin <= end:
        expand_all(begin)
        begin += step


def test_skip_leaves_closed_days_out_and_says_so() -> None:
    works(**{"2027-05-10": "Founding day"})
    schedule = create(FRIDAY, cron="0 9 * * *", calendar="works")
    through(schedule, FRIDAY, 4)
    assert due(schedule) == [
        ("05-07T09:00", "pending", "", "05-07T09:00"),
        ("05-08T09:00", "skipped", "calendar", None),
        ("05-09T09:00", "skipped", "calendar", None),
        ("05-10T09:00", "skipped", "calendar", None),
        ("05-11T09:00", "pending", "", "05-11T09:00"),
    ]


def test_next_business_day_runs_once_after_the_closed_days() -> None:
    works(**{"2027-05-10": "Founding day"})
    rule = {"calendar": "works", "on_holiday": "next_business_day"}
    weekly = create(FRIDAY, name="weekly", cron="0 9 * * sat", **rule)
    daily = create(FRIDAY, name="daily", cron="0 9 * * *", **rule)
    through(weekly, FRIDAY, 4)
    assert due(weekly) == [("05-08T09:00", "pending", "calendar", "05-11T09:00")]
    # Tuesday has a run of its own: those of the closed days before it are not run besides.
    assert [one[1:] for one in due(daily)[1:4]] == [("skipped", "calendar", None)] * 3
    assert due(daily)[4] == ("05-11T09:00", "pending", "", "05-11T09:00")


def test_previous_business_day_runs_before_the_closed_days() -> None:
    works()
    schedule = create(
        FRIDAY - DAY, cron="30 0 * * sun", calendar="works", on_holiday="previous_business_day"
    )
    through(schedule, FRIDAY - DAY, 5)
    (sunday,) = due(schedule)
    assert sunday == ("05-09T00:30", "pending", "calendar", "05-07T00:30")
    row = Occurrence.objects.get(schedule=schedule)
    assert row.decided_at <= utc("2027-05-07T00:30:00Z")  # in time, though it fires two days later
    assert row.fire_at == utc("2027-05-09T00:30:00Z")


@pytest.mark.parametrize("on_holiday", list(OnHoliday))
@pytest.mark.parametrize(
    "cron", ["0 9 * * *", "30 0 1,15 * *", "0 6,18 * * fri-sun", "5 23 L * *"]
)
def test_i13_however_it_is_cut_into_rounds_each_run_is_due_when_the_policy_says(
    cron: str, on_holiday: OnHoliday
) -> None:
    """Against a calendar of every day: the day of a run is open, the nearest one, and never twice at one time."""
    closed = {"2027-05-13": "x", "2027-05-17": "y", "2027-05-18": "z"}
    works(**closed)
    begin = utc("2027-05-03T00:00:00Z")  # a Monday: nothing of it was due before
    schedule = create(begin, cron=cron, calendar="works", on_holiday=on_holiday)
    through(schedule, begin, 40, step=timedelta(hours=7))
    until = begin + timedelta(days=40)
    rows = Occurrence.objects.filter(schedule=schedule, due_at__isnull=False, fire_at__lte=until)
    found = {row.slot: row.due_at for row in rows}
    holidays = read_holidays(closed, ["sat", "sun"])
    wanted: dict[datetime, str] = {}
    for one in expand(Recurrence(parse_cron(cron), "UTC"), begin, until):
        day = one.slot
        step = {"skip": 0, "next_business_day": 1, "previous_business_day": -1}[on_holiday]
        while holidays.closed(day.date()) and step:
            day += step * DAY
        if not holidays.closed(day.date()):
            at = day.replace(tzinfo=UTC)
            # Of several at one time the nearest firing stands for all of them.
            nearer = at not in wanted or abs(one.slot - day) < abs(
                datetime.fromisoformat(wanted[at]) - day
            )
            if nearer:
                wanted[at] = one.slot.isoformat()
    assert {slot: at for at, slot in wanted.items()} == found


def test_a_firing_before_the_closed_days_may_miss_its_time_like_any_other() -> None:
    works()
    schedule = create(
        FRIDAY, cron="0 9 * * sat", calendar="works", on_holiday="next_business_day", misfire="all"
    )
    expand_all(utc("2027-05-08T08:30:00Z"))
    expand_all(utc("2027-05-10T12:00:00Z"))
    assert due(schedule) == [("05-08T09:00", "pending", "calendar", "05-10T09:00")]


def test_a_new_edition_decides_anew_what_nobody_has_claimed() -> None:
    works()
    schedule = create(FRIDAY, cron="30 8 * * *", calendar="works")
    assert waiting(schedule) == ["05-07T08:30"]
    replace(weekend=["sat", "sun"], days={"2027-05-07": "Strike"})
    marked: dict[str, Any] = {"shards": all_shards(), "now": FRIDAY}
    assert mark_stale_schedules(**marked) == 1
    expand_all(FRIDAY)
    assert ledger(schedule) == [("05-07T08:30", "skipped", "calendar")]
    assert waiting(schedule) == []
    assert [(one.number, one.why) for one in ScheduleVersion.objects.order_by("number")] == [
        (1, "created"),
        (2, "calendar"),
    ]
    replace(weekend=["sat", "sun"])
    mark_stale_schedules(**marked)
    expand_all(FRIDAY)
    assert ledger(schedule) == [("05-07T08:30", "pending", "")]
    assert waiting(schedule) == ["05-07T08:30"]
    assert mark_stale_schedules(**marked) == 0


def test_an_edit_takes_back_what_a_closed_day_had_left_out() -> None:
    works(**{"2027-05-07": "Strike"})
    schedule = create(FRIDAY, cron="30 8 * * *", calendar="works")
    assert ledger(schedule) == [("05-07T08:30", "skipped", "calendar")]
    edit_it(schedule, FRIDAY, cron="30 8 * * *")
    assert ledger(schedule) == [("05-07T08:30", "pending", "")]


def test_a_calendar_is_known_by_name_and_kept_while_it_is_used() -> None:
    tenant = make_tenant()
    with pytest.raises(ValidationFailed) as refused:
        create(calendar="works")
    assert [(one.pointer, one.field_code) for one in refused.value.errors] == [
        ("/calendar", "unknown")
    ]
    works()
    with pytest.raises(ValidationFailed):
        works()
    create(FRIDAY, calendar="works")
    with pytest.raises(CalendarInUse):
        delete_calendar(tenant=tenant, name="works", actor="user:anna")
    assert [one.name for one in list_calendars(tenant_id=tenant.pk)] == ["works"]
    edit_it(Schedule.objects.get(), FRIDAY, cron="0 * * * *")
    delete_calendar(tenant=tenant, name="works", actor="user:anna")
    for gone in (
        lambda: find_calendar(tenant_id=tenant.pk, name="works"),
        lambda: delete_calendar(tenant=tenant, name="works", actor="user:anna"),
        replace,
    ):
        with pytest.raises(NotFound):
            gone()
    with pytest.raises(NotFound):
        find_calendar(tenant_id=make_tenant("other").pk, name="works")


def test_a_calendar_that_is_made_again_goes_on_counting() -> None:
    """An edition that somebody has seen is never another one."""
    tenant = make_tenant()
    assert works().number == 1
    assert replace().number == 2
    delete_calendar(tenant=tenant, name="works", actor="user:otto")
    gone = Calendar.objects.get(number=2)
    assert (gone.replaced_by, gone.replaced_at is None) == ("user:otto", False)
    assert works().number == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"cron": "0 9 * * *", "on_holiday": "next_business_day"},  # without a calendar
        {"cron": "0 * * * *", "calendar": "works", "on_holiday": "next_business_day"},
        {
            "cron": None,
            "every": "90m",
            "anchor": "2027-05-01T00:00:00Z",
            "calendar": "works",
            "on_holiday": "previous_business_day",
        },
        {"cron": "0 9 * * *", "calendar": "works", "on_holiday": "some_day"},
    ],
)
def test_a_rule_that_no_day_can_move_is_refused(fields: dict[str, Any]) -> None:
    works()
    with pytest.raises(ValidationFailed) as refused:
        create(**fields)
    assert {one.pointer for one in refused.value.errors} == {"/on_holiday"}


def test_where_every_day_is_closed_nothing_runs() -> None:
    days = {f"{date(2027, 1, 1) + timedelta(days=n)}": "x" for n in range(800)}
    holidays = read_holidays(days, [])
    for on_holiday in OnHoliday:
        timing = Timing(
            recurrence=Recurrence(parse_cron("0 9 * * *"), "UTC"),
            holidays=holidays,
            on_holiday=on_holiday,
        )
        (one,) = expand(timing.recurrence, FRIDAY, FRIDAY + 4 * HOUR)
        assert timing.due_at(one) is None
        assert timing.reach(FRIDAY) == FRIDAY
