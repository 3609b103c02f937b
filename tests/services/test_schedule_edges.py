"""Where two rules of a schedule meet: bounds and closed days, closed days and moved clocks, outages and edits, backlogs."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from jobs.errors import InvalidField, ValidationFailed
from jobs.models import Job, Occurrence, Schedule, Tenant
from jobs.policies import recurrence
from jobs.policies.misfire import plan
from jobs.policies.timing import Timing
from jobs.queries.schedules import lock_schedule
from jobs.services.calendars import create_calendar, parse_calendar
from jobs.services.missed import judge_missed_jobs
from jobs.services.preview import check_upcoming, parse_recurrence
from jobs.services.revision import mark_stale_schedules
from jobs.services.schedules import delete_schedule, pause_schedule
from jobs.services.timings import defaults
from jobs.services.upcoming import upcoming
from jobs.transitions.claim import claim_batch
from tests.factories import (
    SCHEDULER,
    all_shards,
    make_handler,
    make_pool,
    make_tenant,
    make_worker,
)
from tests.support.recurring import NOON, create, edit, expand, expand_all, ledger, utc, waiting

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


def works(*weekend: str) -> None:
    fields = {"name": "works", "weekend": list(weekend)}
    request = parse_calendar(fields, today=NOON.date())
    create_calendar(tenant=make_tenant(), request=request, actor="user:anna")


def through(begin: datetime, days: float) -> None:
    end = begin + timedelta(days=days)
    while begin <= end:
        expand_all(begin)
        begin += HOUR


def runs(schedule: Schedule) -> list[str]:
    rows = Occurrence.objects.filter(schedule=schedule, due_at__isnull=False).order_by("due_at")
    return [f"{row.due_at:%m-%dT%H:%M}" for row in rows if row.verdict == "pending"]


# Rules that are dense on few days.


@pytest.mark.parametrize(
    "text",
    ["* * * * 2 1#5", "* * * 29 2 *", "* * 0-7 1 12 *", "* * * * 11 1#5", "*/5 * * * 2 6#5"],
)
def test_kf07_a_rule_of_every_second_of_few_days_is_looked_for_by_its_days(text: str) -> None:
    schedule = parse_recurrence({"cron": text, "timezone": "America/New_York"})
    with patch.object(recurrence, "_step", wraps=recurrence._step) as steps:
        with suppress(InvalidField):  # nothing within ten years
            check_upcoming(schedule, NOON)
        timing = Timing(recurrence=schedule)
        plan(timing, expanded_until=NOON, now=NOON, ahead_seconds=3600, most=100)
    assert steps.call_count < 3000  # of 200 firings each; second by second they would be a million


def test_kf07_beats_that_begin_late_are_looked_for_from_their_anchor() -> None:
    schedule = parse_recurrence({"every": "1s", "anchor": "2035-01-01T00:00:00Z"})
    with patch.object(recurrence, "_step", wraps=recurrence._step) as steps:
        check_upcoming(schedule, NOON)
    assert steps.call_count < 10


def test_one_round_plans_no_longer_than_it_may_be_silent(monkeypatch: Any) -> None:
    for number in range(3):
        create(name=f"s{number}", cron="*/20 * * * *")
    monkeypatch.setattr("jobs.services.expansion.PLAN_SECONDS", 0.0)
    later = NOON + HOUR
    assert [expand(later).schedules for _ in range(3)] == [1, 1, 1]
    assert expand(later).schedules == 0


# A full backlog.


@pytest.mark.parametrize("most", [1, 3])
def test_i13_a_full_backlog_takes_as_many_firings_as_it_has_room_for(most: int) -> None:
    schedule = create(cron="*/10 * * * *", ends_at=(NOON + HOUR).isoformat())
    delete_schedule(tenant=make_tenant(), schedule_id=schedule.pk, actor="user:anna", now=NOON)
    Tenant.objects.update(max_backlog=most)
    tight = create(name="tight", cron="*/10 * * * *")
    now = NOON
    for _ in range(30):
        now += timedelta(seconds=11)
        expand(now)
    assert len(waiting(tight)) == most
    assert [slot for slot, _, _ in ledger(tight)] == [
        f"05-03T12:{10 * n}" for n in range(1, most + 1)
    ]
    tight.refresh_from_db()
    assert tight.fault is None


# The last of a limited number of runs.


def test_f31_the_only_run_is_overtaken_by_none_that_never_comes() -> None:
    schedule = create(cron="* * * * *", max_runs=1)
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=NOON + 10 * MINUTE)
    assert ledger(schedule) == [("05-03T12:01", "pending", "")]


def test_f31_of_a_limited_number_of_missed_runs_the_latest_runs() -> None:
    schedule = create(cron="*/10 * * * *", max_runs=3)
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=NOON + 2 * HOUR)
    assert [verdict for _, verdict, _ in ledger(schedule)] == ["skipped", "skipped", "pending"]


# Closed days where a clock is moved.


@pytest.mark.parametrize(
    ("weekend", "policy", "begin", "expected"),
    [
        (["sat"], {}, "2027-03-26T12:00:00Z", ["03-28T01:00", "03-29T00:30"]),
        (["sat", "sun"], {}, "2027-03-26T12:00:00Z", ["03-29T00:30"]),
        (
            ["sat"],
            {"on_overlap": "second"},
            "2027-10-29T12:00:00Z",
            ["10-31T01:30", "11-01T01:30"],
        ),
    ],
)
def test_a_daily_rule_runs_once_after_closed_days_whatever_the_clock_does(
    weekend: list[str], policy: dict[str, str], begin: str, expected: list[str]
) -> None:
    works(*weekend)
    schedule = create(
        utc(begin),
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        calendar="works",
        on_holiday="next_business_day",
        misfire="all",
        catch_up_seconds=30 * 86_400,
        **policy,
    )
    through(utc(begin), 3.4)
    assert runs(schedule) == expected


@pytest.mark.parametrize(
    ("on_gap", "expected"),
    [("next_valid", ["03-28T01:00"]), ("shift_forward", ["03-28T01:30"]), ("skip", [])],
)
def test_a_run_that_is_moved_into_a_gap_follows_the_policy(
    on_gap: str, expected: list[str]
) -> None:
    works("sat")
    begin = utc("2027-03-26T12:00:00Z")
    schedule = create(
        begin,
        cron="30 2 * * sat",
        timezone="Europe/Berlin",
        calendar="works",
        on_holiday="next_business_day",
        on_gap=on_gap,
    )
    through(begin, 1.5)
    assert runs(schedule) == expected


# Closed days and bounds.


@pytest.mark.parametrize(
    ("on_holiday", "bounds", "begin", "expected"),
    [
        (
            "next_business_day",
            {"starts_at": "2027-05-08T00:00:00Z", "ends_at": "2027-05-09T23:00:00Z"},
            "2027-05-07T12:00:00Z",
            ["05-10T09:00"],
        ),
        (
            "previous_business_day",
            {"starts_at": "2027-05-08T00:00:00Z"},
            "2027-05-06T12:00:00Z",
            ["05-07T09:00"],
        ),
    ],
)
def test_what_lies_outside_the_bounds_takes_no_run_from_a_closed_day(
    on_holiday: str, bounds: dict[str, str], begin: str, expected: list[str]
) -> None:
    works("sat", "sun")
    schedule = create(
        utc(begin), cron="0 9 * * *", calendar="works", on_holiday=on_holiday, **bounds
    )
    through(utc(begin), 2.4)
    assert runs(schedule)[: len(expected)] == expected


def test_a_run_before_the_closed_days_is_not_made_up_for_when_they_have_begun() -> None:
    works("sat", "sun")
    saturday = utc("2027-05-08T12:00:00Z")
    rule = {"calendar": "works", "on_holiday": "previous_business_day"}
    schedule = create(saturday, cron="0 9 * * sun", **rule)
    through(saturday, 2)
    assert ledger(schedule) == [("05-09T09:00", "skipped", "calendar")]
    assert Job.objects.filter(schedule_id=schedule.pk).count() == 0
    ran = create(utc("2027-05-06T12:00:00Z"), name="ran", cron="0 9 * * sun", **rule)
    through(utc("2027-05-06T12:00:00Z"), 1)
    assert runs(ran) == ["05-07T09:00"]
    (job,) = Job.objects.filter(schedule_id=ran.pk)
    done = claim_batch(
        shards=[job.shard], job_ids=[job.pk], pool=make_pool(), actor=SCHEDULER, now=job.due_at
    )
    assert done.published == 1
    edit(ran, saturday, name="ran", cron="30 9 * * sun", **rule)
    through(saturday, 1)
    assert runs(ran) == ["05-07T09:00"]


# What is still to run.


def test_next_runs_name_those_that_have_fired_and_are_still_to_be_due() -> None:
    works("sat", "sun")
    schedule = create(
        utc("2027-05-07T12:00:00Z"),
        cron="0 9 * * sat",
        calendar="works",
        on_holiday="next_business_day",
    )
    sunday = utc("2027-05-09T12:00:00Z")
    jittered = create(NOON, name="late", cron="*/20 * * * *", jitter_seconds=900)
    row = Occurrence.objects.filter(schedule=jittered).earliest("fire_at")
    assert row.fire_at is not None
    for one, now, expected in (
        (schedule, sunday, "2027-05-08T09:00:00Z"),
        (jittered, row.fire_at + timedelta(seconds=0.5), f"{row.fire_at:%Y-%m-%dT%H:%M:%SZ}"),
    ):
        stored = lock_schedule(schedule_id=one.pk, defaults=defaults(), now=now)
        assert stored is not None
        assert upcoming(stored, after=now, count=2).runs[0]["fire_at"] == expected


@pytest.mark.parametrize("by", ["tenant", "edit"])
def test_kf01_a_policy_that_changes_between_the_two_passes_runs_nothing_twice(by: str) -> None:
    first_pass = utc("2027-10-31T00:30:00Z")
    make_tenant(timezone="Europe/Berlin")
    schedule = create(first_pass - HOUR, cron="30 2 * * *")
    (job,) = Job.objects.filter(schedule_id=schedule.pk)
    claim_batch(
        shards=[job.shard], job_ids=[job.pk], pool=make_pool(), actor=SCHEDULER, now=first_pass
    )
    between = first_pass + 10 * MINUTE
    if by == "tenant":
        Tenant.objects.update(on_overlap="second")
        mark_stale_schedules(shards=all_shards(), now=between)
    else:
        edit(schedule, between, cron="30 2 * * *", on_overlap="second")
    expand_all(between)
    rows = Occurrence.objects.filter(schedule=schedule).order_by("number")
    assert [(row.number, row.verdict, row.reason) for row in rows] == [
        (1, "pending", ""),
        (2, "skipped", "first_pass"),
    ]
    assert Job.objects.filter(schedule_id=schedule.pk).count() == 1


# Outages of more than one round.


def test_f31_an_edit_after_a_long_outage_keeps_the_latest_missed_run(settings: Any) -> None:
    settings.JOBS = {**settings.JOBS, "expand_firings": 20}
    schedule = create(cron="* * * * *")
    later = NOON + 4 * HOUR + timedelta(seconds=30)
    edited = edit(schedule, later, cron="*/7 * * * *")
    told = [one for one in ledger(edited) if one[0] <= "05-03T16:00"]
    assert len(told) == 240
    assert told[-1] == ("05-03T16:00", "pending", "")
    # Those of the first hour have their jobs, which nobody has begun or judged.
    assert {one[1:] for one in told[60:-1]} == {("skipped", "misfire")}


def test_f31_a_pause_after_a_long_outage_calls_nothing_paused_that_fired_before(
    settings: Any,
) -> None:
    settings.JOBS = {**settings.JOBS, "expand_firings": 20}
    schedule = create(cron="* * * * *", misfire="skip")
    later = NOON + 4 * HOUR + timedelta(seconds=30)
    pause_schedule(
        tenant=make_tenant(), schedule_id=schedule.pk, actor="user:anna", reason="audit", now=later
    )
    expand_all(later + HOUR)
    reasons = [(slot <= "05-03T16:00", reason) for slot, _, reason in ledger(schedule)]
    assert {reason for before, reason in reasons if before} <= {"misfire", ""}
    assert {reason for before, reason in reasons if not before} == {"paused"}


def test_a_deleted_schedule_takes_back_what_is_due_and_nobody_has_begun() -> None:
    schedule = create(cron="*/5 * * * *")
    delete_schedule(
        tenant=make_tenant(),
        schedule_id=schedule.pk,
        actor="user:anna",
        now=NOON + 5 * MINUTE + timedelta(seconds=30),
    )
    assert ledger(schedule)[0] == ("05-03T12:05", "skipped", "deleted")
    assert not Job.objects.filter(schedule_id=schedule.pk, status="scheduled").exists()


# Anchors.


@pytest.mark.parametrize(
    "fields",
    [
        {"cron": None, "every": "90m", "anchor": "2026-12-01T00:00:00.123456789+01:00"},
        {"anchor": "x" * 40},
        {"anchor": "garbage"},
        {"anchor": 5},
    ],
)
def test_kf16_an_anchor_that_cannot_be_kept_or_has_no_use_is_refused(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        create(**fields)
    assert [one.pointer for one in refused.value.errors] == ["/anchor"]
