"""KF-13, F22, F23: two expanders of one schedule, and an expansion against an edit, a pause, a resume or a delete."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from jobs.errors import NotPaused
from jobs.models import Job, Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.policies.cron import parse_cron
from jobs.policies.recurrence import Recurrence, expand
from jobs.services.catching_up import catch_up
from jobs.services.expansion import expand_schedules
from jobs.services.missed import judge_missed_jobs
from jobs.services.revision import mark_stale_schedules
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
)
from jobs.services.timings import tenant_defaults
from tests.factories import SCHEDULER, all_shards, make_schedule
from tests.support.race import RACES, ROUNDS, Team

pytestmark = RACES

SECOND = timedelta(seconds=1)
BEGIN = datetime(2031, 5, 1, 12, tzinfo=UTC)
SCHEDULES = 5
DEAD = {"cancelled"}


def expand_round(now: datetime) -> object:
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=now)
    return expand_schedules(shards=all_shards(), actor=SCHEDULER, now=now)


def assert_one_job_each(schedule: Schedule) -> None:
    """Every firing that is to run has one living job, and no job is without a firing."""
    rows = Occurrence.objects.filter(schedule=schedule)
    pending = [row.job_id for row in rows if row.verdict == "pending"]
    assert None not in pending
    jobs = Job.objects.filter(schedule_id=schedule.pk)
    living = [job.pk for job in jobs if job.status not in DEAD]
    assert Counter(pending) == Counter(living)


def assert_ledger_is_the_calendar(schedule: Schedule, text: str, begin: datetime) -> None:
    """Up to where it says it is, every instant of the rule has exactly one row that holds, and no other has any."""
    schedule.refresh_from_db()
    rows = Occurrence.objects.filter(schedule=schedule).exclude(verdict="superseded")
    found = sorted(row.fire_at for row in rows if row.fire_at is not None)
    window = begin, schedule.expanded_until
    expected = [one.fire_at for one in expand(Recurrence(parse_cron(text), "UTC"), *window)]
    assert found == expected


def test_kf13_f22_two_expanders_give_each_firing_one_job() -> None:
    made = [
        make_schedule(name=f"s{n}", cron="*/7 * * * *", misfire="all", now=BEGIN)
        for n in range(SCHEDULES)
    ]
    now = BEGIN
    with Team(3) as team:
        for number in range(ROUNDS // 2):
            now += timedelta(minutes=(5, 31, 61)[number % 3])
            team.together(*[partial(expand_round, now)] * 3)
    for schedule in made:
        assert_one_job_each(schedule)
        assert_ledger_is_the_calendar(schedule, "*/7 * * * *", BEGIN)


def change(what: str, schedule: Schedule, version: int, text: str, now: datetime) -> Any:
    who: dict[str, Any] = {
        "tenant": schedule.tenant,
        "schedule_id": schedule.pk,
        "actor": "user:anna",
        "now": now,
    }
    match what:
        case "edit":
            request = parse_schedule(
                {"name": schedule.name, "cron": text, "job": {"handler": "billing.charge"}},
                defaults=tenant_defaults(schedule.tenant),
            )
            return edit_schedule(**who, version=version, request=request)
        case "pause":
            pause_schedule(**who, reason="billing run")
            return resume_schedule(**who)
        case "delete":
            return delete_schedule(**who)
    raise AssertionError(what)


@pytest.mark.parametrize("what", ["edit", "pause"])
def test_f23_kf14_a_change_against_expansions_leaves_no_hole_and_no_double(what: str) -> None:
    schedule = make_schedule(cron="*/7 * * * *", misfire="all", now=BEGIN)
    now, version, text = BEGIN, 1, "*/7 * * * *"
    with Team(3) as team:
        for number in range(ROUNDS // 4):
            now += timedelta(minutes=(5, 31)[number % 2])
            if what == "edit":
                text = ("*/11 * * * *", "*/7 * * * *")[number % 2]
            team.together(
                partial(change, what, schedule, version, text, now),
                *[partial(expand_round, now)] * 2,
            )
            version += what == "edit"
            assert_one_job_each(schedule)
            schedule.refresh_from_db()
            rows = Occurrence.objects.filter(schedule=schedule).exclude(verdict="superseded")
            coming = sorted(row.fire_at for row in rows if row.fire_at and row.fire_at > now)
            window = now, schedule.expanded_until
            rule = Recurrence(parse_cron(text), "UTC")
            assert coming == [one.fire_at for one in expand(rule, *window)]
    if what == "pause":
        assert_ledger_is_the_calendar(schedule, text, BEGIN)


def test_f23_a_deleted_schedule_leaves_nothing_that_is_to_come() -> None:
    for number in range(ROUNDS // 10):
        schedule = make_schedule(name=f"s{number}", cron="*/7 * * * *", now=BEGIN)
        now = BEGIN + timedelta(minutes=45)
        with Team(2) as team:
            team.together(
                partial(change, "delete", schedule, 1, "", now), partial(expand_round, now)
            )
        rows = Occurrence.objects.filter(schedule=schedule, verdict="pending")
        assert [row.fire_at for row in rows if row.fire_at and row.fire_at > now] == []


def test_f23_a_policy_that_changes_while_it_is_expanded_leaves_no_hole_and_no_double() -> None:
    schedule = make_schedule(cron="*/7 1-23 * * *", misfire="all", now=BEGIN)
    zones = ("Asia/Kolkata", "Europe/Berlin", "UTC")
    now = BEGIN
    with Team(3) as team:
        for number in range(ROUNDS // 4):
            now += timedelta(minutes=(5, 31)[number % 2])
            Tenant.objects.update(timezone=zones[number % 3])

            def refresh(now: datetime = now) -> object:
                mark_stale_schedules(shards=all_shards(), now=now)
                return expand_round(now)

            team.together(*[refresh] * 3)
            assert_one_job_each(schedule)
            schedule.refresh_from_db()
            rows = Occurrence.objects.filter(schedule=schedule).exclude(verdict="superseded")
            coming = sorted(row.fire_at for row in rows if row.fire_at and row.fire_at > now)
            rule = Recurrence(parse_cron("*/7 1-23 * * *"), zones[number % 3])
            window = now, schedule.expanded_until
            assert coming == [one.fire_at for one in expand(rule, *window)]
    versions = ScheduleVersion.objects.filter(schedule=schedule).values_list("number", flat=True)
    assert sorted(versions) == list(range(1, schedule.version + 1))


def test_f22_catching_up_against_expansions_gives_each_firing_one_job() -> None:
    schedule = make_schedule(cron="*/7 * * * *", misfire="skip", now=BEGIN)
    who: dict[str, Any] = {
        "tenant": schedule.tenant,
        "schedule_id": schedule.pk,
        "actor": "user:anna",
    }
    now = BEGIN
    with Team(4) as team:
        for number in range(ROUNDS // 4):
            before, now = now, now + timedelta(minutes=(5, 31, 90)[number % 3])
            again = partial(catch_up, **who, begin=before + SECOND, until=now, now=now)
            team.together(again, again, *[partial(expand_round, now)] * 2)
            assert_one_job_each(schedule)
    while expand_schedules(shards=all_shards(), actor=SCHEDULER, now=now).more:
        pass
    # What was to run in time when it was asked for, and was missed afterwards.
    catch_up(**who, begin=now - timedelta(hours=12), until=now, now=now)
    assert_one_job_each(schedule)
    assert_ledger_is_the_calendar(schedule, "*/7 * * * *", BEGIN)
    recent = now - timedelta(hours=12)
    rows = Occurrence.objects.filter(schedule=schedule, fire_at__range=(recent, now))
    assert {row.verdict for row in rows} == {"pending"}  # nothing of it was left out


def test_a_schedule_that_goes_on_cannot_be_resumed_by_two() -> None:
    schedule = make_schedule(now=BEGIN)
    who: dict[str, Any] = {"tenant": schedule.tenant, "schedule_id": schedule.pk, "actor": "x"}
    with Team(2) as team:
        for _ in range(ROUNDS // 10):
            pause_schedule(**who, reason="billing run", now=BEGIN)

            def resume() -> bool:
                try:
                    resume_schedule(**who, now=BEGIN)
                except NotPaused:
                    return False
                return True

            assert sorted(team.together(resume, resume)) == [False, True]
