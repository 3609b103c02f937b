"""What a version says held: when a policy, a calendar or the zone data changes, there is a new one. And catching up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection

from jobs.errors import NotFound, ValidationFailed
from jobs.models import Job, JobEvent, Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.policies import zones
from jobs.policies.zones import ZONE_DATA, zone
from jobs.services import expansion, firings, revision
from jobs.services import schedules as schedules_module
from jobs.services.calendars import create_calendar, parse_calendar
from jobs.services.catching_up import MOST_FIRINGS, catch_up
from jobs.services.missed import settle_occurrences
from jobs.services.revision import mark_stale_schedules
from jobs.services.schedules import pause_schedule, resume_schedule, trigger_schedule
from jobs.transitions.claim import claim_batch
from tests.factories import (
    SCHEDULER,
    all_shards,
    make_handler,
    make_pool,
    make_tenant,
    make_worker,
    publish,
)
from tests.support.recurring import (
    NOON,
    create,
    edit,
    expand,
    expand_all,
    job_of,
    ledger,
    utc,
    waiting,
)

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OLD_DATA = "2025b"


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


@contextmanager
def older_zone_data() -> Iterator[None]:
    """As it was when Vancouver was still to move its clocks with Los Angeles in November 2026."""

    def as_it_was(key: str) -> Any:
        return zone("America/Los_Angeles" if key == "America/Vancouver" else key)

    modules = (expansion, firings, revision, schedules_module)
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "ZONE_DATA", OLD_DATA))
        stack.enter_context(patch.object(zones, "zone", as_it_was))
        zones._of_year.cache_clear()
        yield
    zones._of_year.cache_clear()


def refresh(now: datetime) -> int:
    marked = mark_stale_schedules(shards=all_shards(), now=now)
    expand_all(now)
    return marked


def whys() -> list[tuple[int, str]]:
    rows = ScheduleVersion.objects.order_by("schedule", "number")
    return [(row.number, row.why) for row in rows]


def instants(schedule: Schedule) -> list[tuple[str, str, str]]:
    rows = Occurrence.objects.filter(schedule=schedule).order_by("fire_at", "slot")
    return [(row.slot[5:16], f"{row.fire_at:%m-%dT%H:%M}", row.verdict) for row in rows]


DUSK = utc("2026-11-30T15:30:00Z")


def test_newer_zone_data_moves_what_is_to_come_by_its_slot(settings: Any) -> None:
    settings.JOBS = {**settings.JOBS, "expand_ahead_seconds": 3 * 3600}
    with older_zone_data():
        moved = create(DUSK, name="moved", cron="0 9 * * *", timezone="America/Vancouver")
        same = create(DUSK, name="same", cron="0 9 * * *", timezone="America/Los_Angeles")
        assert instants(moved) == [("11-30T09:00", "11-30T17:00", "pending")]
        (before,) = Occurrence.objects.filter(schedule=moved)
        old_job = job_of(before)
    assert refresh(DUSK + MINUTE) == 2
    assert instants(moved) == [("11-30T09:00", "11-30T16:00", "pending")]
    (after,) = Occurrence.objects.filter(schedule=moved)
    assert (after.pk, after.version, after.zone_data) == (before.pk, 2, ZONE_DATA)
    assert waiting(moved) == ["11-30T16:00"]
    old_job.refresh_from_db()
    assert (old_job.status, old_job.cancel_reason) == ("cancelled", "zone_data")
    ended = JobEvent.objects.get(job_id=old_job.pk, kind="cancelled")
    assert ended.detail == {"reason": "zone_data", "was": "waiting"}
    # Of a zone that nothing has happened to, nothing is written but that it was looked at.
    assert [row.why for row in ScheduleVersion.objects.filter(schedule=same)] == ["created"]
    assert Occurrence.objects.get(schedule=same).version == 1
    same.refresh_from_db()
    assert same.zone_data == ZONE_DATA
    assert refresh(DUSK + 2 * MINUTE) == 0


def test_newer_zone_data_leaves_what_was_claimed_and_loses_no_slot(settings: Any) -> None:
    settings.JOBS = {**settings.JOBS, "expand_ahead_seconds": 3 * 3600}
    with older_zone_data():
        schedule = create(DUSK, cron="30 8,9 * * *", timezone="America/Vancouver")
        other = create(DUSK, name="other", cron="45 9 * * *", timezone="America/Vancouver")
        first = job_of(Occurrence.objects.filter(schedule=schedule).earliest("fire_at"))
        due = DUSK + HOUR + timedelta(seconds=30)
        done = claim_batch(
            shards=[first.shard], job_ids=[first.pk], pool=make_pool(), actor=SCHEDULER, now=due
        )
        assert done.published == 1
    refresh(utc("2026-11-30T16:55:00Z"))
    # By now 8:30 was more than an hour ago, and the instant of 9:30 is the one that has run.
    assert instants(schedule) == [
        ("11-30T08:30", "11-30T16:30", "pending"),
        ("11-30T09:30", "11-30T17:30", "superseded"),
    ]
    first.refresh_from_db()
    assert first.status == "leased"
    # The slot of the other one was still to come and is over by now, ten minutes ago: it runs late.
    assert instants(other) == [("11-30T09:45", "11-30T16:45", "pending")]
    assert waiting(other) == ["11-30T16:45"]
    assert whys().count((2, "zone_data")) == 2


def test_a_process_with_older_zone_data_expands_nothing_any_more() -> None:
    schedule = create(cron="*/20 * * * *")
    with older_zone_data():
        assert mark_stale_schedules(shards=all_shards(), now=NOON) == 0
        assert expand(NOON + HOUR).schedules == 0
    assert len(ledger(schedule)) == 3


def test_a_changed_policy_of_the_tenant_reaches_what_nobody_has_claimed() -> None:
    begin = utc("2027-03-28T00:30:00Z")  # half an hour before the gap in Berlin
    make_tenant(timezone="Europe/Berlin")
    schedule = create(begin, cron="30 2 * * *")
    own = create(begin, name="own", cron="30 2 * * *", on_gap="shift_forward")
    assert instants(schedule) == [("03-28T02:30", "03-28T01:00", "pending")]
    Tenant.objects.update(on_gap="skip")
    assert refresh(begin) == 1  # the other one says itself what holds
    assert ledger(schedule) == [
        ("03-28T02:30", "skipped", "gap"),
        ("03-28T02:30", "superseded", "policy"),
    ]
    assert waiting(schedule) == []
    Tenant.objects.update(on_gap="shift_forward")
    refresh(begin)
    assert instants(own) == [("03-28T02:30", "03-28T01:30", "pending")]
    assert waiting(schedule) == ["03-28T01:30"]
    (row,) = Occurrence.objects.filter(schedule=schedule).exclude(verdict="superseded")
    assert (row.resolution, row.on_gap, row.version) == ("shifted", "shift_forward", 3)
    version = ScheduleVersion.objects.get(schedule=schedule, number=3)
    assert (version.why, version.on_gap, version.in_on_gap) == ("policy", "", "shift_forward")
    assert version.created_by.startswith("scheduler:")


def test_a_changed_zone_of_the_tenant_replaces_what_is_to_come() -> None:
    schedule = create(cron="30 12,18 * * *")
    assert waiting(schedule) == ["05-03T12:30"]
    Tenant.objects.update(timezone="Asia/Kolkata")
    refresh(NOON)
    assert waiting(schedule) == ["05-03T13:00"]  # 18:30 in Kolkata
    assert whys() == [(1, "created"), (2, "policy")]
    # The same instant by another name is no second firing.
    Tenant.objects.update(timezone="Asia/Colombo")
    refresh(NOON)
    assert waiting(schedule) == ["05-03T13:00"]
    assert len(Job.objects.filter(schedule_id=schedule.pk, status="scheduled")) == 1


def test_kf14_a_schedule_that_moves_west_meets_its_times_of_day_again() -> None:
    """09:00 in Kolkata has been today; 09:00 in New York is still to come, and is another firing."""
    begin = utc("2027-05-03T03:00:00Z")
    schedule = create(begin, cron="0 9 * * *", timezone="Asia/Kolkata")
    assert waiting(schedule) == ["05-03T03:30"]
    edit(schedule, begin + 3 * HOUR, cron="0 9 * * *", timezone="America/New_York")
    for hours in range(3, 12):
        expand_all(begin + hours * HOUR)
    assert instants(schedule)[1:] == [("05-03T09:00", "05-03T13:00", "pending")]
    by_tenant = create(begin, name="other", cron="0 9 * * *", timezone=None)
    assert waiting(by_tenant) == []
    for number, key in enumerate(("Asia/Kolkata", "Europe/Berlin", "America/New_York")):
        Tenant.objects.update(timezone=key)
        for hours in range(3 * number, 3 * number + 4):
            refresh(begin + hours * HOUR)
    expand_all(begin + 10 * HOUR)
    fired = [at for _, at, verdict in instants(by_tenant) if verdict != "superseded"]
    assert fired == ["05-03T03:30", "05-03T07:00", "05-03T13:00"]


def test_kf16_a_tenant_policy_that_is_none_flags_the_schedule_and_not_its_neighbours() -> None:
    bad = create(name="bad", cron="*/20 * * * *")
    good = create(tenant=make_tenant("other"), name="good", cron="*/20 * * * *")
    Tenant.objects.filter(slug="acme").update(timezone="Europa/Madrid")
    refresh(NOON + HOUR)
    bad.refresh_from_db()
    assert bad.fault is not None
    assert bad.fault["code"] == "unknown_timezone"
    assert bad.version == 1
    assert len(ledger(good)) == 6


def test_a_limited_number_of_runs_survives_a_change_of_policy() -> None:
    schedule = create(cron="*/20 * * * *", max_runs=2)
    assert waiting(schedule) == ["05-03T12:20", "05-03T12:40"]
    Tenant.objects.update(timezone="Asia/Kolkata")
    Schedule.objects.update(look_at=NOON)  # it had come to its end
    expand_all(NOON)
    assert len(waiting(schedule)) == 2
    schedule.refresh_from_db()
    assert schedule.runs == 2


def test_a_flagged_schedule_that_is_mended_says_what_it_has_left_out() -> None:
    schedule = create(cron="*/20 * * * *")
    ScheduleVersion.objects.filter(schedule=schedule).update(cron="61 * * * *")
    expand_all(NOON + HOUR)
    schedule.refresh_from_db()
    assert schedule.fault is not None
    mended = edit(schedule, NOON + 3 * HOUR, cron="*/20 * * * *")
    expand_all(NOON + 3 * HOUR)
    told = ledger(mended)
    assert {reason for _, verdict, reason in told if verdict == "skipped"} == {"fault"}
    assert [slot for slot, _, reason in told if reason == "fault"] == [
        f"{NOON + timedelta(minutes=20 * n):%m-%dT%H:%M}" for n in range(4, 10)
    ]
    assert waiting(mended)[-1] == "05-03T16:00"


def test_an_edit_after_an_outage_leaves_no_firing_of_the_old_rule_without_a_verdict() -> None:
    schedule = create(cron="*/20 * * * *", misfire="skip")
    edit(schedule, NOON + 3 * HOUR, cron="5 * * * *")
    slots = [slot for slot, verdict, _ in ledger(schedule) if verdict != "superseded"]
    assert slots == [
        *(f"{NOON + timedelta(minutes=20 * n):%m-%dT%H:%M}" for n in range(1, 10)),
        "05-03T15:05",
    ]


def test_a_pause_skips_what_has_fired_and_is_delayed_by_jitter() -> None:
    schedule = create(cron="*/20 * * * *", jitter_seconds=600)
    row = Occurrence.objects.filter(schedule=schedule).earliest("fire_at")
    assert row.fire_at is not None
    assert row.due_at is not None
    assert row.due_at > row.fire_at, "the delay of this schedule is not 0"
    between = row.fire_at + timedelta(seconds=0.5)
    who: dict[str, Any] = {
        "tenant": make_tenant(), "schedule_id": schedule.pk, "actor": "user:anna",
    }  # fmt: skip
    pause_schedule(**who, reason="audit", now=between)
    assert ledger(schedule) == [("05-03T12:20", "skipped", "paused")]
    assert waiting(schedule) == []
    resume_schedule(**who, now=between + timedelta(minutes=30))
    expand_all(between + timedelta(minutes=30))
    assert ledger(schedule)[:2] == [
        ("05-03T12:20", "skipped", "paused"),
        ("05-03T12:40", "skipped", "paused"),
    ]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"reason": " "}, "/reason"),
        ({"reason": "x" * 1001}, "/reason"),
        ({"reason": "audit", "resume_at": NOON}, "/resume_at"),
    ],
)
def test_a_pause_needs_a_reason_and_an_end_to_come(fields: dict[str, Any], pointer: str) -> None:
    schedule = create()
    with pytest.raises(ValidationFailed) as refused:
        pause_schedule(
            tenant=make_tenant(), schedule_id=schedule.pk, actor="user:anna", now=NOON, **fields
        )
    assert [one.pointer for one in refused.value.errors] == [pointer]


def test_f65_a_run_by_hand_of_a_template_that_cannot_be_read_names_its_field() -> None:
    schedule = create()
    deep = "[" * 3000 + "]" * 3000
    with connection.cursor() as cursor:
        cursor.execute("update jobs_scheduleversion set template = %s::jsonb", [deep])
    with pytest.raises(ValidationFailed) as refused:
        trigger_schedule(tenant=make_tenant(), schedule_id=schedule.pk, actor="user:anna")
    assert [one.pointer for one in refused.value.errors] == ["/job"]


# Catching up.


def caught_up(schedule: Schedule, begin: datetime, until: datetime, now: datetime) -> Any:
    return catch_up(
        tenant=make_tenant(),
        schedule_id=schedule.pk,
        begin=begin,
        until=until,
        actor="user:anna",
        now=now,
    )


def test_what_was_skipped_runs_after_all_and_once() -> None:
    schedule = create(cron="0 * * * *", misfire="skip")
    later = NOON + 5 * HOUR + 30 * MINUTE
    expand_all(later)
    assert {verdict for slot, verdict, _ in ledger(schedule) if slot < "05-03T17:01"} == {
        "pending",
        "skipped",
    }
    made = caught_up(schedule, NOON + 2 * HOUR, NOON + 4 * HOUR, later)
    assert made == (3, 0, 0)
    assert caught_up(schedule, NOON + 2 * HOUR, NOON + 4 * HOUR, later) == (0, 3, 0)
    rows = Occurrence.objects.filter(schedule=schedule, caught_up=True).order_by("fire_at")
    assert [(row.slot[11:16], row.verdict, row.due_at) for row in rows] == [
        (hour, "pending", later) for hour in ("14:00", "15:00", "16:00")
    ]
    jobs = [job_of(row) for row in rows]
    assert [job.fire_at for job in jobs] == [row.fire_at for row in rows]
    assert {job.due_at for job in jobs} == {later}
    for job in jobs:
        publish(job.pk, job.shard)
    settle_occurrences(shards=all_shards(), now=later)
    rows = Occurrence.objects.filter(schedule=schedule, caught_up=True)
    assert {row.verdict for row in rows} == {"ran"}


def test_a_range_from_before_the_schedule_is_filled_by_its_rule() -> None:
    schedule = create(cron="0 9 * * *", timezone="Europe/Berlin", on_gap="skip")
    begin = utc("2027-03-27T00:00:00Z")
    assert caught_up(schedule, begin, begin + timedelta(days=3), NOON) == (3, 0, 0)
    assert [slot for slot, _, _ in ledger(schedule)] == [
        "03-27T09:00", "03-28T09:00", "03-29T09:00",
    ]  # fmt: skip
    expand_all(NOON)
    assert len(ledger(schedule)) == 3


@pytest.mark.parametrize("key", ["Europe/Paris", "Europe/Helsinki"])
def test_what_ran_by_the_clock_of_another_zone_has_run(key: str) -> None:
    """The same instants, by the same time of day or by another."""
    schedule = create(cron="0 8-20 * * *", timezone="Europe/Berlin", misfire="all")
    later = NOON + 3 * HOUR + MINUTE
    expand_all(later)
    made = len(Job.objects.filter(schedule_id=schedule.pk))
    moved = edit(schedule, later, cron="0 8-20 * * *", timezone=key)
    assert caught_up(moved, NOON + MINUTE, later, later) == (0, 3, 0)
    assert len(Job.objects.filter(schedule_id=schedule.pk, due_at__lte=later)) == made - 1
    assert moved.fault is None


def test_after_its_end_there_is_nothing_to_catch_up_with() -> None:
    ends_at = (NOON - 2 * HOUR).isoformat()
    schedule = create(
        NOON - 9 * HOUR, cron="0 * * * *", ends_at=ends_at, starts_at=(NOON - 4 * HOUR).isoformat()
    )
    assert caught_up(schedule, NOON - 5 * HOUR, NOON, NOON) == (4, 0, 0)


def test_both_ends_of_the_range_count() -> None:
    schedule = create(cron="0 * * * *")
    assert caught_up(schedule, NOON - 3 * HOUR, NOON - HOUR, NOON) == (3, 0, 0)


def test_catching_up_stays_clear_of_closed_days() -> None:
    request = parse_calendar({"name": "works", "weekend": ["sat", "sun"]}, today=NOON.date())
    create_calendar(tenant=make_tenant(), request=request, actor="user:anna")
    schedule = create(cron="0 9 * * *", calendar="works")
    week = NOON - timedelta(days=7)
    assert caught_up(schedule, week, NOON, NOON) == (5, 0, 2)
    assert [slot[:5] for slot, _, _ in ledger(schedule)] == [
        "04-27", "04-28", "04-29", "04-30", "05-03",
    ]  # fmt: skip


def test_catching_up_is_not_undone_by_a_pause() -> None:
    schedule = create(cron="0 * * * *", on_running="skip")
    who: dict[str, Any] = {
        "tenant": make_tenant(), "schedule_id": schedule.pk, "actor": "user:anna",
    }  # fmt: skip
    pause_schedule(**who, reason="audit", now=NOON + MINUTE)
    later = NOON + 3 * HOUR + MINUTE
    assert caught_up(schedule, NOON + HOUR, NOON + 3 * HOUR, later) == (3, 0, 0)
    expand_all(later)  # which would have skipped them
    assert {(verdict, reason) for _, verdict, reason in ledger(schedule)} == {("pending", "")}
    keys = {
        job.concurrency_key
        for job in Job.objects.filter(schedule_id=schedule.pk, status="scheduled")
    }
    assert keys == {f"schedule:{schedule.pk}"}


@pytest.mark.parametrize(
    ("begin", "until"),
    [(NOON, NOON - HOUR), (NOON - HOUR, NOON + MINUTE), (NOON - timedelta(days=1), NOON)],
)
def test_a_range_that_is_empty_too_large_or_to_come_is_refused(
    begin: datetime, until: datetime
) -> None:
    schedule = create(cron="* * * * *")
    made = len(ledger(schedule))
    with pytest.raises(ValidationFailed) as refused:
        caught_up(schedule, begin, until, NOON)
    assert [one.pointer for one in refused.value.errors] == ["/until"]
    assert len(ledger(schedule)) == made
    assert MOST_FIRINGS < 24 * 60


def test_s05_nobody_catches_up_for_another_tenant() -> None:
    schedule = create(tenant=make_tenant("other"))
    with pytest.raises(NotFound):
        caught_up(schedule, NOON - HOUR, NOON, NOON)
