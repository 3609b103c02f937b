"""I13: a ledger that was kept by the rules is clean, and each way in which one can be wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs.models import DueEntry, Job, Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.policies.zones import ZONE_DATA
from jobs.queries import ledgers
from jobs.services.calendars import CalendarRequest, create_calendar, replace_calendar
from jobs.services.catching_up import catch_up
from jobs.services.expansion import expand_schedules
from jobs.services.missed import judge_missed_jobs, settle_occurrences
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.services.timings import tenant_defaults
from jobs.services.verifying import Verdict, verify_history
from jobs.transitions.claim import claim_batch
from tests.factories import (
    SCHEDULER,
    all_shards,
    make_handler,
    make_pool,
    make_schedule,
    make_tenant,
    make_worker,
)

pytestmark = pytest.mark.usefixtures("committed")  # the snapshot is a transaction of its own

NOON = datetime.fromisoformat("2027-05-03T12:00:00Z")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
def a_world(committed: None) -> None:
    make_handler()
    make_pool()
    make_worker()


class Story:
    """One schedule, told by the clock."""

    def __init__(self, now: datetime = NOON, **fields: Any) -> None:
        self.now = now
        self.schedule = make_schedule(now=now, **fields)
        self.who: dict[str, Any] = {
            "tenant": self.schedule.tenant,
            "schedule_id": self.schedule.pk,
            "actor": "user:otto",
        }

    def until(self, now: datetime) -> Story:
        """A scheduler is at work until then, a turn every ten minutes, and everything that is due is claimed."""
        while self.now < now:
            self.now = min(self.now + 10 * MINUTE, now)
            self.turn()
            self.claim()
        return self

    def turn(self) -> None:
        for _ in range(200):
            if not expand_schedules(shards=all_shards(), actor=SCHEDULER, now=self.now).more:
                break
        judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=self.now)
        settle_occurrences(shards=all_shards(), now=self.now)

    def claim(self) -> None:
        due = DueEntry.objects.filter(due_at__lte=self.now).values_list("job_id", flat=True)
        claim_batch(
            shards=all_shards(), job_ids=list(due), pool=make_pool(), actor=SCHEDULER, now=self.now
        )
        settle_occurrences(shards=all_shards(), now=self.now)

    def edit(self, **fields: Any) -> Story:
        self.schedule.refresh_from_db()
        request = parse_schedule(
            {"name": "nightly", "job": {"handler": "billing.charge"}, **fields},
            defaults=tenant_defaults(make_tenant()),
        )
        edit_schedule(**self.who, version=self.schedule.version, request=request, now=self.now)
        return self

    def pause(self, until: datetime | None = None) -> Story:
        pause_schedule(**self.who, reason="migration", resume_at=until, now=self.now)
        return self

    def resume(self) -> Story:
        resume_schedule(**self.who, now=self.now)
        return self

    def tenant_says(self, **fields: str) -> Story:
        if fields:
            Tenant.objects.update(**fields)
        Schedule.objects.update(look_at=self.now)
        return self

    def catch_up(self, begin: datetime, until: datetime) -> Story:
        catch_up(**self.who, begin=begin, until=until, now=self.now)
        return self


def wrong(**how: Any) -> tuple[Verdict, list[str]]:
    """The verdict and what it says of ledgers."""
    verdict = verify_history(**how)
    return verdict, [one.detail for _, one in verdict.violations if one.invariant == "I13"]


def edited() -> None:
    story = Story(cron="*/20 * * * *").until(NOON + HOUR).edit(cron="*/15 * * * *")
    story.until(NOON + 2 * HOUR).edit(cron="0 9 * * *", timezone="Asia/Kolkata")
    story.until(NOON + 3 * HOUR).edit(every="7m", anchor="2027-05-01T00:00:03Z")
    story.until(NOON + 4 * HOUR).edit(every="3d", anchor="2027-05-01T17:00:00")
    story.until(NOON + 7 * HOUR)


def edited_late() -> None:
    """The expansion had been away for hours."""
    story = Story(cron="*/20 * * * *").until(NOON + HOUR)
    story.now = NOON + 5 * HOUR
    story.edit(cron="*/30 * * * *").until(NOON + 7 * HOUR)


def paused() -> None:
    story = Story(cron="*/20 * * * *").until(NOON + HOUR).pause()
    story.until(NOON + 3 * HOUR).resume().until(NOON + 5 * HOUR)
    story.pause(until=NOON + 6 * HOUR).until(NOON + 8 * HOUR)


def deleted() -> None:
    story = Story(cron="*/20 * * * *").until(NOON + 90 * MINUTE)
    delete_schedule(**story.who, now=story.now)
    story.until(NOON + 3 * HOUR)


def run_now() -> None:
    trigger_schedule(**Story(cron="*/20 * * * *").until(NOON + HOUR).who)


def caught_up() -> None:
    """Also a range before its start, and one of an earlier version by the rule in force."""
    story = Story(cron="*/20 * * * *", misfire="skip").until(NOON + HOUR)
    story.now = NOON + 6 * HOUR
    story.turn()
    story.catch_up(NOON + 2 * HOUR, NOON + 3 * HOUR).edit(cron="*/15 * * * *")
    story.catch_up(NOON - 3 * HOUR, NOON + 5 * HOUR).until(NOON + 8 * HOUR)


def policy_changed() -> None:
    """A day before the clock goes back, and a zone that comes from the tenant."""
    story = Story(datetime.fromisoformat("2027-10-30T00:10:00Z"), cron="30 * * * *")
    story.until(story.now + HOUR).tenant_says(timezone="Asia/Kolkata").until(story.now + 2 * HOUR)
    story.edit(cron="*/10 1,2 * * *").tenant_says(timezone="Europe/Berlin", on_overlap="both")
    story.until(datetime.fromisoformat("2027-10-31T00:35:00Z")).tenant_says(on_overlap="second")
    story.until(datetime.fromisoformat("2027-10-31T04:00:00Z"))


def gaps_skipped() -> None:
    start = datetime.fromisoformat("2027-03-27T20:00:00Z")
    story = Story(start, cron="*/20 1,2,3 * * *", timezone="Europe/Berlin", on_gap="skip")
    story.until(start + 9 * HOUR)


def calendar_changed() -> None:
    who: dict[str, Any] = {"tenant": make_tenant(), "actor": "user:otto"}
    weekend = ["sat", "sun"]
    create_calendar(request=CalendarRequest("days", {"2027-05-04": "closed"}, weekend), **who)
    story = Story(
        cron="*/30 6-20 * * *",
        calendar="days",
        on_holiday="previous_business_day",
        jitter_seconds=60,
    ).until(NOON + 13 * HOUR)
    replace_calendar(request=CalendarRequest("days", {"2027-05-05": "closed"}, weekend), **who)
    story.tenant_says().until(NOON + 24 * HOUR).edit(cron="*/20 6-20 * * *").until(
        NOON + 30 * HOUR
    )


def used_up() -> None:
    story = Story(cron="*/20 * * * *", max_runs=7).until(NOON + 5 * HOUR)
    story.edit(cron="*/10 * * * *", max_runs=12).until(NOON + 8 * HOUR)


def used_up_while_policies_change() -> None:
    """Also between a firing and the time at which jitter lets its job be due."""
    story = Story(cron="*/20 * * * *", max_runs=9, jitter_seconds=3600)
    for turn in range(1, 18):
        story.until(NOON + turn * 20 * MINUTE + MINUTE)
        story.tenant_says(on_gap=("skip", "next_valid")[turn % 2])


def within_limits() -> None:
    limits: dict[str, Any] = {
        "starts_at": "2027-05-03T13:00:00Z",
        "ends_at": "2027-05-03T15:20:00Z",
    }
    Story(cron="*/20 * * * *", **limits).until(NOON + 5 * HOUR)
    odd: dict[str, Any] = {
        "starts_at": "2027-05-03T13:00:00.5Z",
        "ends_at": "2027-05-03T15:20:00.5Z",
    }
    Story(name="odd", cron="*/20 * * * *", **odd).until(NOON + 5 * HOUR)


def missed() -> None:
    for misfire in ("skip", "latest", "all"):
        story = Story(name=misfire, cron="*/5 * * * *", misfire=misfire, catch_up_seconds=7200)
        story.now = NOON + 7 * HOUR
        story.turn()
        story.until(NOON + 8 * HOUR)


STORIES = [
    *(edited, edited_late, paused, deleted, run_now, caught_up, policy_changed, gaps_skipped),
    *(calendar_changed, used_up, used_up_while_policies_change, within_limits, missed),
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_i13_a_ledger_that_was_kept_by_the_rules_is_clean(story: Callable[[], None]) -> None:
    story()
    verdict, told = wrong()
    assert told == []
    assert verdict.unchecked == 0
    assert verdict.occurrences == Occurrence.objects.count() > 5
    assert verdict.schedules == Schedule.objects.count()


@pytest.fixture
def story() -> Story:
    """Three hours of every 20 minutes: ran, pending, and one that was missed and skipped."""
    story = Story(cron="*/20 * * * *", misfire="skip").until(NOON + HOUR)
    story.now += 21 * MINUTE
    story.turn()
    return story.until(NOON + 3 * HOUR)


def row(verdict: str, place: int = 0) -> Occurrence:
    return list(Occurrence.objects.filter(verdict=verdict).order_by("known_at"))[place]


def job_of(one: Occurrence) -> Any:
    assert one.job_id
    return Job.objects.filter(pk=one.job_id)


def change(one: Occurrence, **values: Any) -> None:
    Occurrence.objects.filter(pk=one.pk).update(**values)


def test_i13_missing_row(story: Story) -> None:
    one = row("skipped")
    one.delete()
    assert wrong()[1] == [
        f"schedule {story.schedule.pk}: {one.slot} is missing: due at {one.known_at.isoformat()}, version 1"
    ]


def test_i13_missing_first_and_last(story: Story) -> None:
    rows = Occurrence.objects.order_by("known_at")
    gone = [rows[0], list(rows)[-1]]
    for one in gone:
        one.delete()
    told = wrong()[1]
    assert [
        one.slot in text and "missing" in text for one, text in zip(gone, told[:2], strict=True)
    ]
    assert len(told) == 4  # each has a job that no ledger names


def test_i13_row_beyond_what_was_expanded(story: Story) -> None:
    at = NOON + timedelta(days=2)
    extra = row("skipped")
    extra.pk, extra.job_id, extra.slot = None, None, "2027-05-05T12:00:00"
    extra.fire_at = extra.known_at = at
    extra.save(force_insert=True)
    (told,) = wrong()[1]
    assert "2027-05-05T12:00:00 is too much" in told


@pytest.mark.parametrize("seconds", [1, 60, -1200 * 9 - 1])
def test_i13_extra_row(story: Story, seconds: int) -> None:
    extra = row("skipped")
    extra.pk, extra.job_id = None, None
    extra.known_at += timedelta(seconds=seconds)
    extra.fire_at = extra.known_at
    extra.slot = f"{extra.known_at:%Y-%m-%dT%H:%M:%S}"
    extra.save(force_insert=True)
    (told,) = wrong()[1]
    assert f"{extra.slot} is too much" in told


def test_i13_second_pass_of_an_instant_that_has_one(story: Story) -> None:
    extra = row("skipped")
    extra.pk, extra.job_id, extra.number = None, None, 2
    extra.fire_at = extra.known_at = extra.known_at + timedelta(microseconds=1)
    extra.save(force_insert=True)
    (told,) = wrong()[1]
    assert "is too much" in told


def test_i13_wrong_slot(story: Story) -> None:
    change(row("ran"), slot="2027-05-03T12:21:00")
    told = wrong()[1]
    assert sorted("too much" in one for one in told) == [False, True]
    assert "12:20:00 is missing" in "".join(told)


def test_i13_wrong_pass(story: Story) -> None:
    change(row("ran"), number=2)
    assert len(wrong()[1]) == 2


def test_i13_moved_instant(story: Story) -> None:
    one = row("skipped")
    change(one, fire_at=one.known_at + MINUTE, known_at=one.known_at + MINUTE)
    assert len(wrong()[1]) == 2


def test_i13_superseded_is_no_verdict(story: Story) -> None:
    change(row("skipped"), verdict="superseded")
    (told,) = wrong()[1]
    assert "is missing" in told


def test_i13_version_that_is_not_there(story: Story) -> None:
    one = row("skipped")
    change(one, version=7)
    assert wrong()[1] == []  # it is what it has to be
    change(one, version=7, slot="2027-05-03T12:21:00")
    assert len(wrong()[1]) == 2


@pytest.mark.parametrize(
    ("verdict", "values", "words"),
    [
        ("ran", {"job_id": None}, "is ran and has no job"),
        ("pending", {"job_id": None}, "is pending and has no job"),
        ("ran", {"job_id": uuid4()}, "names a job that is gone"),
        ("ran", {"verdict": "skipped"}, "is skipped and its job is leased"),
        ("pending", {"verdict": "dropped"}, "is dropped and its job is scheduled"),
        ("pending", {"verdict": "superseded"}, "is superseded and its job is scheduled"),
        ("ran", {"fire_at": None}, "is ran and never fires"),
    ],
)
def test_i13_row_and_job_disagree(
    story: Story, verdict: str, values: dict[str, Any], words: str
) -> None:
    change(row(verdict), **values)
    assert words in "\n".join(wrong()[1])


def test_i13_job_of_another_firing(story: Story) -> None:
    one = row("ran")
    job_of(one).update(fire_at=one.known_at + MINUTE)
    (told,) = wrong()[1]
    assert "names a job that fires at 2027-05-03T12:21:00+00:00" in told


def test_i13_job_of_another_schedule(story: Story) -> None:
    other = make_schedule(name="other", now=NOON)
    job_of(row("ran")).update(schedule_id=other.pk)
    told = wrong()[1]
    assert "names a job of another schedule" in told[0]
    assert len(told) == 2  # and the other one knows nothing of it


def test_i13_second_job_of_one_firing(story: Story) -> None:
    double = job_of(row("ran")).get()
    double.pk = uuid4()
    double.save(force_insert=True)
    verdict, told = wrong()
    assert told == [f"schedule {story.schedule.pk}: a job for a firing that no ledger has"]
    assert double.pk in [job for job, _ in verdict.violations]
    Job.objects.filter(pk=double.pk).update(status="cancelled", finished_at=NOON)
    assert wrong()[1] == []  # one that was withdrawn is none


def test_i13_caught_up_rows_must_be_in_the_calendar_too(story: Story) -> None:
    story.catch_up(NOON - 2 * HOUR, NOON - HOUR)
    assert wrong()[1] == []
    one = row("pending")
    assert one.caught_up
    change(one, slot="2027-05-03T10:01:00")
    (told,) = wrong()[1]
    assert "10:01:00 is too much" in told
    change(one, slot="2027-05-03T10:00:00", caught_up=False)
    (told,) = wrong()[1]
    assert "10:00:00 is too much" in told


def test_i13_a_row_that_an_edit_should_have_taken_back(story: Story) -> None:
    story.edit(cron="*/30 * * * *")
    assert wrong()[1] == []
    taken = row("superseded")
    change(taken, verdict="pending")
    job_of(taken).update(status="scheduled", finished_at=None)
    (told,) = wrong()[1]
    assert f"{taken.slot} is too much" in told


def test_i13_only_what_is_in_the_window_is_looked_at(story: Story) -> None:
    one = row("skipped")
    one.delete()
    assert len(wrong(since=one.known_at, until=one.known_at + MINUTE)[1]) == 1
    assert wrong(until=one.known_at)[1] == wrong(since=one.known_at + MINUTE)[1] == []
    assert wrong(tenant_id=make_tenant("other").pk)[0].schedules == 0
    assert wrong(handler="billing.charge")[0].schedules == 0
    assert wrong(job_id=row("ran").job_id)[0].schedules == 0


def test_i13_a_difference_to_a_calendar_of_other_zone_data_is_left_open(story: Story) -> None:
    row("skipped").delete()
    change(row("ran"), slot="2027-05-03T12:21:00")
    older = ZONE_DATA[:-1] + "0"
    ScheduleVersion.objects.update(zone_data=older)
    verdict, told = wrong()
    assert (told, verdict.unchecked) == ([], 3)


@pytest.mark.parametrize(
    "bad",
    [
        {"cron": "boom"},
        {"cron": ""},
        {"in_timezone": "Europe/Madrid "},
        {"in_on_gap": "later"},
        {"cron": "", "every": "3y", "anchor": "2027-01-01T00:00:00"},
    ],
)
def test_i13_a_rule_that_cannot_be_read_is_told_and_stops_nobody(
    story: Story, bad: dict[str, str]
) -> None:
    other = make_schedule(name="other", now=NOON)
    ScheduleVersion.objects.filter(schedule=story.schedule).update(**bad)
    Occurrence.objects.filter(schedule=other).first().delete()  # type: ignore[union-attr]
    verdict, told = wrong()
    assert (verdict.unchecked, verdict.schedules) == (1, 2)
    assert all(f"schedule {other.pk}" in one for one in told)
    assert len(told) == 2


def test_i13_a_version_that_was_set_aside_is_told_and_those_before_it_are_checked(
    story: Story,
) -> None:
    story.edit(cron="*/30 * * * *")
    Schedule.objects.update(fault={"pointer": "/cron", "code": "bad_syntax", "detail": ""})
    ScheduleVersion.objects.filter(number=2).update(cron="0 0 1 1 *")
    verdict, told = wrong()
    assert (told, verdict.unchecked) == ([], 1)
    row("skipped").delete()
    assert len(wrong()[1]) == 1


def test_i13_a_zone_further_west_has_the_same_slots_again(story: Story) -> None:
    story.edit(cron="*/20 * * * *", timezone="America/New_York").until(NOON + 8 * HOUR)
    verdict, told = wrong()
    assert (told, verdict.unchecked) == ([], 0)
    slots = Occurrence.objects.exclude(verdict="superseded").values_list("slot", flat=True)
    double = [one for one in slots if list(slots).count(one) > 1]
    assert double
    one = Occurrence.objects.get(timezone="America/New_York", slot=double[0])
    one.delete()
    assert f"{one.slot} is missing" in wrong()[1][0]


def test_i13_a_ledger_in_many_pages_is_one(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledgers.entries.__kwdefaults__ or {}, "page", 2)
    monkeypatch.setitem(ledgers.ledgers.__kwdefaults__ or {}, "page", 1)
    make_schedule(name="other", cron="*/7 * * * *", now=NOON)
    verdict, told = wrong()
    assert (told, verdict.schedules) == ([], 2)
    assert verdict.occurrences == Occurrence.objects.count()
    change(row("skipped"), slot="2027-05-03T12:21:00")
    assert len(wrong()[1]) == 2
