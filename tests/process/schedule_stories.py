"""What schedules commit, for the crash tests: each act is done again by whoever comes after the crash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models.functions import Now

from jobs.errors import NotFound
from jobs.models import Calendar, DueEntry, Job, Schedule, Tenant
from jobs.queries.schedules import lock_schedule
from jobs.services.calendars import (
    CalendarRequest,
    create_calendar,
    delete_calendar,
    replace_calendar,
)
from jobs.services.catching_up import catch_up
from jobs.services.expansion import expand_schedule, expand_schedules
from jobs.services.missed import decide_running, judge_missed_jobs, settle_occurrences
from jobs.services.revision import mark_stale_schedules, revise
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    create_schedule,
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.services.timings import defaults, tenant_defaults
from jobs.transitions.withdraw import let_late_jobs, withdraw_jobs
from tests.factories import SCHEDULER, all_shards, make_tenant, publish
from tests.process.scenes import CHARGE, ONCE, Scene, Story
from tests.support import moves

IN_TIME = datetime(
    2031, 3, 3, 3, 3, tzinfo=UTC
)  # of the clock that the acts on schedules are given


def rule(minute: str) -> dict[str, Any]:
    return {
        "name": "hourly",
        "cron": f"{minute} * * * *",
        "misfire": "skip",
        "starts_at": IN_TIME.isoformat(),  # a scheduler of today makes nothing of it
        "job": {"handler": CHARGE},
    }


def make_a_schedule(scene: Scene) -> None:
    request = parse_schedule(rule("0"), defaults=tenant_defaults(make_tenant()))
    create_schedule(tenant=make_tenant(), request=request, actor="user:anna", now=IN_TIME)


def of_the_schedule() -> dict[str, Any]:
    return {
        "tenant": make_tenant(),
        "schedule_id": Schedule.objects.get().pk,
        "actor": "user:anna",
        "now": IN_TIME,
    }


def edit_the_schedule(scene: Scene) -> None:
    request = parse_schedule(rule("30"), defaults=tenant_defaults(make_tenant()))
    edit_schedule(**of_the_schedule(), version=1, request=request)


def pause_the_schedule(scene: Scene) -> None:
    pause_schedule(**of_the_schedule(), reason="billing run")


def pause_one(scene: Scene) -> None:
    make_a_schedule(scene)
    pause_the_schedule(scene)


def resume_the_schedule(scene: Scene) -> None:
    resume_schedule(**of_the_schedule())


def delete_the_schedule(scene: Scene) -> None:
    delete_schedule(**of_the_schedule())


def expand_it(scene: Scene) -> None:
    """A day later: all that it missed is skipped, and the jobs of the next hour are made."""
    later = IN_TIME + timedelta(days=1)
    expand_schedules(shards=all_shards(), actor=SCHEDULER, now=later)


def expand_it_alone(scene: Scene) -> None:
    found = lock_schedule(
        schedule_id=Schedule.objects.get().pk, defaults=defaults(), now=IN_TIME + timedelta(days=1)
    )
    assert found is not None
    expand_schedule(found, actor=SCHEDULER, now=IN_TIME + timedelta(days=1))


def judge_it(scene: Scene) -> None:
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=IN_TIME + timedelta(days=1))


def cancel_its_job(scene: Scene) -> None:
    make_a_schedule(scene)
    job = Job.objects.get(schedule_id__isnull=False)
    moves.cancel_job(scene.it, shard=job.shard, job_id=job.pk, now=IN_TIME)


def can_be_missed(scene: Scene) -> None:
    """As a schedule's own job, for as long as this test takes."""
    DueEntry.objects.update(misfire_at=Now() + timedelta(hours=1))


def withdraw_its_job(scene: Scene) -> None:
    given: dict[str, Any] = {"shards": [scene.it.shard], "job_ids": [scene.it.job_id]}
    withdraw_jobs(**given, reason="edited", actor="user:anna")


def let_its_job_late(scene: Scene) -> None:
    let_late_jobs(shards=[scene.it.shard], until={scene.it.job_id: None})


def settle_it(scene: Scene) -> None:
    settle_occurrences(shards=all_shards(), now=IN_TIME + timedelta(days=1))


def change_its_policy(scene: Scene) -> None:
    make_a_schedule(scene)
    Tenant.objects.update(timezone="Asia/Kolkata")


def mark_stale(scene: Scene) -> None:
    mark_stale_schedules(shards=all_shards(), now=IN_TIME)


def revise_it(scene: Scene) -> None:
    schedule = Schedule.objects.get()
    if schedule.version == 1:
        found = lock_schedule(schedule_id=schedule.pk, defaults=defaults(), now=IN_TIME)
        assert found is not None
        revise(found, "policy", actor=SCHEDULER, now=IN_TIME)


def catch_it_up(scene: Scene) -> None:
    catch_up(**of_the_schedule(), begin=IN_TIME - timedelta(hours=3), until=IN_TIME)


def holidays(*days: str) -> CalendarRequest:
    return CalendarRequest("works", dict.fromkeys(days, "closed"), ["sat", "sun"])


def make_a_calendar(scene: Scene) -> None:
    if not Calendar.objects.exists():  # a client that tries again is told that it is there
        create_calendar(tenant=make_tenant(), request=holidays(), actor="user:anna")


def replace_the_calendar(scene: Scene) -> None:
    again = holidays("2031-12-25")
    replace_calendar(tenant=make_tenant(), request=again, actor="user:anna", now=IN_TIME)


def delete_the_calendar(scene: Scene) -> None:
    with suppress(NotFound):
        delete_calendar(tenant=make_tenant(), name="works", actor="user:anna", now=IN_TIME)


def run_one_and_park_the_next(scene: Scene) -> None:
    """Of a schedule whose runs must not overlap: as if the claim had found the first one running."""
    request = parse_schedule(
        {**rule("*/5"), "on_running": "skip"}, defaults=tenant_defaults(make_tenant())
    )
    create_schedule(tenant=make_tenant(), request=request, actor="user:anna", now=IN_TIME)
    who = of_the_schedule()
    del who["now"]
    first = trigger_schedule(**who)
    publish(first.job_id, first.shard)
    DueEntry.objects.filter(misfire_at__isnull=False).update(parked=True)


def decide_it(scene: Scene) -> None:
    decide_running(shards=all_shards(), actor=SCHEDULER, now=IN_TIME + timedelta(hours=2))


SCHEDULE_STORIES: dict[str, Sequence[Story]] = {
    "schedules.create_schedule": [Story(act=make_a_schedule, before=ONCE, after=ONCE)],
    "schedules.edit_schedule": [
        Story(act=edit_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "schedules.pause_schedule": [
        Story(act=pause_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "schedules.resume_schedule": [
        Story(act=resume_the_schedule, prepare=pause_one, before=ONCE, after=ONCE)
    ],
    "schedules.delete_schedule": [
        Story(act=delete_the_schedule, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "expansion.expand_schedules": [
        Story(act=expand_it, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "expansion.expand_schedule": [
        Story(act=expand_it_alone, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "revision.mark_stale_schedules": [
        Story(act=mark_stale, prepare=change_its_policy, before=ONCE, after=ONCE)
    ],
    "revision.revise": [Story(act=revise_it, prepare=change_its_policy, before=ONCE, after=ONCE)],
    "catching_up.catch_up": [
        Story(act=catch_it_up, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "calendars.create_calendar": [Story(act=make_a_calendar, before=ONCE, after=ONCE)],
    "calendars.replace_calendar": [
        Story(act=replace_the_calendar, prepare=make_a_calendar, before=ONCE, after=ONCE)
    ],
    "calendars.delete_calendar": [
        Story(act=delete_the_calendar, prepare=make_a_calendar, before=ONCE, after=ONCE)
    ],
    "missed.decide_running": [
        Story(act=decide_it, prepare=run_one_and_park_the_next, before=ONCE, after=ONCE)
    ],
    "missed.judge_missed_jobs": [
        Story(act=judge_it, prepare=make_a_schedule, before=ONCE, after=ONCE)
    ],
    "withdraw.withdraw_jobs": [
        Story(act=withdraw_its_job, prepare=can_be_missed, before=ONCE, after="created cancelled")
    ],
    "withdraw.let_late_jobs": [
        Story(act=let_its_job_late, prepare=can_be_missed, before=ONCE, after=ONCE)
    ],
    "missed.settle_occurrences": [
        Story(act=settle_it, prepare=cancel_its_job, before=ONCE, after=ONCE)
    ],
}
