"""Schedules from their creation to the ledger: expansion, missed firings, edits, pauses, bad rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.errors import NotFound, NotPaused, UnknownHandler, ValidationFailed, VersionConflict
from jobs.models import DueEntry, Job, Occurrence, Schedule
from jobs.policies.zones import ZONE_DATA
from jobs.services.missed import judge_missed_jobs, settle_occurrences
from jobs.services.schedules import (
    delete_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.transitions.claim import claim_batch
from tests.factories import (
    SCHEDULER,
    all_shards,
    make_handler,
    make_pool,
    make_tenant,
    make_worker,
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


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


def test_a_new_schedule_makes_the_jobs_of_the_next_hour() -> None:
    schedule = create(cron="*/20 * * * *", job={"handler": "billing.charge", "payload": {"n": 1}})
    assert waiting(schedule) == ["05-03T12:20", "05-03T12:40", "05-03T13:00"]
    row = Occurrence.objects.get(schedule=schedule, slot="2027-05-03T12:20:00")
    assert (row.number, row.resolution, row.verdict) == (1, "plain", "pending")
    assert (row.timezone, row.on_gap, row.on_overlap) == ("UTC", "next_valid", "first")
    assert row.zone_data == ZONE_DATA
    job = job_of(row)
    assert (job.payload, job.shard, job.request_key) == ({"n": 1}, row.job_shard, None)
    assert DueEntry.objects.get(pk=job.pk).misfire_at == job.due_at + timedelta(seconds=60)


def test_i13_expanding_again_adds_nothing_and_time_goes_on_without_holes() -> None:
    schedule = create(cron="*/20 * * * *")
    for minutes in (0, 0, 1, 7, 29, 31, 31, 58, 61, 95, 120):
        expand_all(NOON + timedelta(minutes=minutes))
    slots = [slot for slot, _, _ in ledger(schedule)]
    assert slots == [
        f"{NOON + timedelta(minutes=20 * n):%m-%dT%H:%M}" for n in range(1, len(slots) + 1)
    ]
    assert len(slots) >= 7
    assert Job.objects.filter(schedule_id=schedule.pk).count() == len(slots)


def test_kf02_what_a_gap_skips_is_in_the_ledger_without_a_job() -> None:
    schedule = create(
        utc("2027-03-28T00:30:00Z"), cron="30 2 * * *", timezone="Europe/Berlin", on_gap="skip"
    )
    assert ledger(schedule) == [("03-28T02:30", "skipped", "gap")]
    row = Occurrence.objects.get(schedule=schedule)
    assert (row.fire_at, row.number, row.job_id, row.on_gap) == (None, 0, None, "skip")
    expand_all(utc("2027-03-28T00:45:00Z"))
    assert len(ledger(schedule)) == 1


def test_policies_come_from_the_schedule_else_the_tenant_else_the_deployment(
    settings: Any,
) -> None:
    tenant = make_tenant(timezone="Europe/Berlin", on_gap="skip")
    schedule = create(utc("2027-03-28T00:30:00Z"), cron="30 2 * * *")
    row = Occurrence.objects.get(schedule=schedule)
    assert (row.timezone, row.on_gap, row.on_overlap) == ("Europe/Berlin", "skip", "first")
    tenant.on_gap = "shift_forward"
    tenant.save()
    other = create(utc("2027-03-28T00:30:00Z"), name="other", cron="30 2 * * *")
    assert ledger(other) == [("03-28T02:30", "pending", "")]
    assert waiting(other) == ["03-28T01:30"]


# Missed firings.


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", ["skipped"] * 5),
        ("latest", ["skipped"] * 4 + ["pending"]),
        ("all", ["dropped"] * 3 + ["pending"] * 2),
    ],
)
def test_f31_what_fired_while_no_scheduler_ran_follows_the_policy(
    policy: str, expected: list[str]
) -> None:
    schedule = create(cron="0 */2 * * *", misfire=policy, catch_up_most=2)
    later = NOON + timedelta(hours=11)  # 14, 16, 18, 20 and 22 h were missed
    expand_all(later)
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later)
    judged = [verdict for slot, verdict, _ in ledger(schedule) if slot < f"{later:%m-%dT%H:%M}"]
    assert judged == expected
    assert len(waiting(schedule)) == expected.count("pending") + 1  # and that of midnight


def test_f31_a_job_that_was_made_ahead_and_missed_is_judged_like_the_others() -> None:
    schedule = create(cron="*/10 * * * *")  # 12:10 to 13:00 are made
    later = NOON + timedelta(minutes=35)
    assert judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later) == 3
    assert [verdict for _, verdict, _ in ledger(schedule)] == ["skipped"] * 2 + ["pending"] * 4
    assert Job.objects.filter(schedule_id=schedule.pk, status="cancelled").count() == 2
    late = DueEntry.objects.get(due_at=NOON + timedelta(minutes=30))
    assert late.misfire_at is None
    assert judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later) == 0


def test_f31_within_its_grace_a_late_firing_just_runs() -> None:
    schedule = create(cron="*/10 * * * *", misfire="skip", grace_seconds=600)
    assert (
        judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=NOON + timedelta(minutes=15))
        == 0
    )
    assert len(waiting(schedule)) == 6


def test_kf12_an_outage_of_many_schedules_makes_one_job_each_and_names_the_rest() -> None:
    made = [create(name=f"s{n}", cron="*/5 * * * *", misfire="latest") for n in range(5)]
    later = NOON + timedelta(hours=6, minutes=2)
    for _ in range(20):
        done = expand(later)
        judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later)
        if not done.more:
            break
    for schedule in made:
        missed = [row for row in ledger(schedule) if row[0] <= "05-03T18:00"]
        assert [row[1:] for row in missed] == [("skipped", "misfire")] * 71 + [("pending", "")]


def test_f31_a_round_is_bounded_and_the_next_goes_on_where_it_ended(settings: Any) -> None:
    settings.JOBS = {**settings.JOBS, "expand_firings": 7}
    schedule = create(cron="* * * * *", misfire="skip")
    later = NOON + timedelta(minutes=40)
    done = expand(later)
    assert (done.skipped, done.more) == (7, True) or done.made  # some were made ahead
    expand_all(later)
    slots = [slot for slot, _, _ in ledger(schedule)]
    assert slots == [
        f"{NOON + timedelta(minutes=n):%m-%dT%H:%M}" for n in range(1, len(slots) + 1)
    ]
    assert len(slots) >= 40


# Bounds.


def test_a_schedule_ends_by_time_or_by_count() -> None:
    start, end = "2027-05-03T12:20:00Z", "2027-05-03T13:20:00Z"
    by_time = create(name="time", cron="*/20 * * * *", starts_at=start, ends_at=end)
    by_count = create(name="count", cron="*/20 * * * *", max_runs=4)
    for minutes in (0, 30, 60, 90):
        expand_all(NOON + timedelta(minutes=minutes))
    assert [slot for slot, _, _ in ledger(by_time)] == [
        "05-03T12:20",
        "05-03T12:40",
        "05-03T13:00",
        "05-03T13:20",
    ]
    assert [slot for slot, _, _ in ledger(by_count)] == [
        "05-03T12:20",
        "05-03T12:40",
        "05-03T13:00",
        "05-03T13:20",
    ]
    for schedule in (by_time, by_count):
        schedule.refresh_from_db()
        assert schedule.look_at is None


def test_jitter_is_the_same_for_every_run_of_a_schedule() -> None:
    schedule = create(cron="*/20 * * * *", jitter_seconds=600)
    rows = Occurrence.objects.filter(schedule=schedule)
    delays = {row.due_at - row.fire_at for row in rows if row.due_at and row.fire_at}
    assert len(delays) == 1
    assert timedelta(0) <= delays.pop() <= timedelta(seconds=600)


# Edits, pauses, ends.


def test_kf14_an_edit_replaces_what_the_old_version_had_made_ahead() -> None:
    schedule = create(cron="*/15 * * * *")
    edited = edit(schedule, NOON + timedelta(seconds=5), cron="*/20 * * * *")
    assert edited.version == 2
    assert waiting(schedule) == ["05-03T12:20", "05-03T12:40", "05-03T13:00"]
    assert ledger(schedule) == [
        ("05-03T12:15", "superseded", "edited"),
        ("05-03T12:20", "pending", ""),
        ("05-03T12:30", "superseded", "edited"),
        ("05-03T12:40", "pending", ""),
        ("05-03T12:45", "superseded", "edited"),
        ("05-03T13:00", "pending", ""),
    ]
    shared = Occurrence.objects.get(schedule=schedule, slot="2027-05-03T13:00:00")
    assert shared.version == 2
    assert job_of(shared).status == "scheduled"


def test_kf14_an_edit_from_another_version_is_refused() -> None:
    schedule = create()
    edit(schedule, NOON, cron="30 * * * *")
    with pytest.raises(VersionConflict) as refused:
        edit(schedule, NOON, cron="45 * * * *")
    assert refused.value.current == 2
    assert waiting(schedule) == ["05-03T12:30"]


def test_kf15_a_pause_records_what_it_skips_and_the_resume_floods_nobody() -> None:
    schedule = create(utc("2026-08-13T12:00:00Z"), cron="0 2 * * *")
    tenant = make_tenant()
    expand_all(utc("2026-08-14T01:30:00Z"))  # and nobody has claimed its job
    pause_schedule(
        tenant=tenant,
        schedule_id=schedule.pk,
        actor="user:otto",
        reason="migration",
        now=utc("2026-08-14T12:00:00Z"),
    )
    resumed = utc("2026-08-15T07:49:00Z")
    resume_schedule(tenant=tenant, schedule_id=schedule.pk, actor="user:otto", now=resumed)
    expand_all(utc("2026-08-16T01:30:00Z"))
    assert waiting(schedule) == ["08-14T02:00", "08-16T02:00"]
    assert ledger(schedule) == [
        ("08-14T02:00", "pending", ""),
        ("08-15T02:00", "skipped", "paused"),
        ("08-16T02:00", "pending", ""),
    ]


def test_kf15_a_pause_takes_back_what_was_made_ahead_and_ends_by_its_time() -> None:
    schedule = create(cron="*/20 * * * *")
    pause_schedule(
        tenant=make_tenant(),
        schedule_id=schedule.pk,
        actor="user:otto",
        reason="lunch",
        resume_at=NOON + timedelta(minutes=50),
        now=NOON + timedelta(minutes=5),
    )
    assert waiting(schedule) == []
    for minutes in (21, 41, 50):
        expand_all(NOON + timedelta(minutes=minutes))
    assert [row[1:] for row in ledger(schedule)][:2] == [("skipped", "paused")] * 2
    assert waiting(schedule) == ["05-03T13:00", "05-03T13:20", "05-03T13:40"]
    schedule.refresh_from_db()
    assert (schedule.paused_at, schedule.paused_by, schedule.resume_at) == (None, "", None)
    with pytest.raises(NotPaused):
        resume_schedule(tenant=make_tenant(), schedule_id=schedule.pk, actor="user:otto")


def test_a_deleted_schedule_fires_no_more_and_its_record_stays() -> None:
    schedule = create(cron="*/20 * * * *")
    delete_schedule(tenant=make_tenant(), schedule_id=schedule.pk, actor="user:otto", now=NOON)
    expand_all(NOON + timedelta(hours=2))
    assert waiting(schedule) == []
    assert {row[1:] for row in ledger(schedule)} == {("superseded", "deleted")}
    create(cron="@daily")  # the name is free again


def test_a_run_now_moves_no_firing() -> None:
    schedule = create(cron="0 * * * *")
    before = ledger(schedule)
    made = trigger_schedule(
        tenant=make_tenant(), schedule_id=schedule.pk, actor="user:otto", request_key="now-1"
    )
    again = trigger_schedule(
        tenant=make_tenant(), schedule_id=schedule.pk, actor="user:otto", request_key="now-1"
    )
    assert (made.created, again.created, again.job_id) == (True, False, made.job_id)
    assert ledger(schedule) == before


def test_only_its_own_tenant_reaches_a_schedule() -> None:
    schedule = create()
    for act in (delete_schedule, resume_schedule, trigger_schedule):
        with pytest.raises(NotFound):
            act(tenant=make_tenant("other"), schedule_id=schedule.pk, actor="user:eve")


# Verdicts of what ran.


def test_what_was_claimed_has_run_in_time_or_late_and_what_was_cancelled_is_skipped() -> None:
    schedule = create(cron="*/20 * * * *")
    rows = list(Occurrence.objects.filter(schedule=schedule).order_by("slot"))
    for row, minutes in zip(rows[:2], (20, 45), strict=True):
        claimed = NOON + timedelta(minutes=minutes, seconds=2)
        DueEntry.objects.filter(pk=job_of(row).pk).update(misfire_at=None)
        claim(row, claimed)
    Job.objects.filter(pk=job_of(rows[2]).pk).update(status="cancelled", finished_at=NOON)
    assert settle_occurrences(shards=all_shards(), now=NOON + timedelta(hours=2)) == 3
    assert [row[1:] for row in ledger(schedule)] == [
        ("ran", ""),
        ("late", ""),
        ("skipped", "cancelled"),
    ]


def claim(row: Occurrence, now: datetime) -> None:
    done = claim_batch(
        shards=all_shards(),
        job_ids=[job_of(row).pk],
        pool=make_pool(),
        actor=SCHEDULER,
        now=now,
    )
    assert done.published == 1


def test_f31_a_missed_job_is_claimed_by_nobody_before_it_is_judged() -> None:
    schedule = create(cron="*/20 * * * *")
    row = Occurrence.objects.get(schedule=schedule, slot="2027-05-03T12:20:00")
    with pytest.raises(AssertionError):
        claim(row, NOON + timedelta(minutes=22))
    claim(row, NOON + timedelta(minutes=20, seconds=30))


# Bad rows.


def test_kf16_a_bad_row_is_flagged_and_its_neighbours_fire() -> None:
    good = [create(name=f"good{n}", cron="*/20 * * * *") for n in range(5)]
    bad = [create(name=f"bad{n}", cron="*/20 * * * *") for n in range(4)]
    bad[0].versions.update(timezone="Europe/Madrid ")
    bad[1].versions.update(cron="0 0 30 2 *")
    bad[2].versions.update(template={"handler": "gone.handler"})
    bad[3].versions.update(template={"surprise": 1})
    later = NOON + timedelta(hours=2)
    expand_all(later)
    flagged = dict(Schedule.objects.exclude(fault__isnull=True).values_list("name", "fault__code"))
    assert flagged == {
        "bad0": "unknown_timezone",
        "bad1": "impossible_date",
        "bad2": "handler_unknown",
        "bad3": "unknown",
    }
    for schedule in good:
        assert max(ledger(schedule))[0] == "05-03T15:00"
    mended = edit(Schedule.objects.get(pk=bad[1].pk), later, name="bad1", cron="*/30 * * * *")
    assert mended.fault is None
    assert waiting(mended)[-2:] == ["05-03T14:30", "05-03T15:00"]


def test_a_process_with_older_zone_data_leaves_the_schedule_alone() -> None:
    schedule = create(cron="*/20 * * * *")
    Schedule.objects.filter(pk=schedule.pk).update(zone_data="2099z")
    assert expand(NOON + timedelta(hours=2)).schedules == 0
    assert len(ledger(schedule)) == 3


def test_a_full_backlog_delays_the_expansion_and_loses_no_firing() -> None:
    tenant = make_tenant()
    schedule = create(cron="*/20 * * * *")
    type(tenant).objects.filter(pk=tenant.pk).update(max_backlog=3)
    later = NOON + timedelta(minutes=35)
    expand(later)
    assert len(ledger(schedule)) == 3
    schedule.refresh_from_db()
    assert (schedule.fault, schedule.look_at) == (None, later + timedelta(seconds=10))
    type(tenant).objects.filter(pk=tenant.pk).update(max_backlog=None)
    expand_all(later + timedelta(seconds=11))
    assert len(ledger(schedule)) > 3


@pytest.mark.parametrize(
    ("bad", "pointer"),
    [
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"cron": None, "every": "5x", "anchor": "2027-01-01T00:00:00Z"}, "/every"),
        ({"timezone": "UTC+3"}, "/timezone"),
        ({"timezone": ""}, "/timezone"),
        ({"on_gap": "guess"}, "/on_gap"),
        ({"misfire": "maybe"}, "/misfire"),
        ({"job": {"handler": "billing.charge", "due_at": "2027-01-01T00:00:00Z"}}, "/job/due_at"),
        ({"job": {"handler": 5}}, "/job/handler"),
        ({"jitter_seconds": -1}, "/jitter_seconds"),
        ({"surprise": 1}, "/surprise"),
        ({"starts_at": "2027-05-05T00:00:00Z", "ends_at": "2027-05-04T00:00:00Z"}, "/ends_at"),
        ({"cron": "0 0 29 2 *", "ends_at": "2027-13-01T00:00:00Z"}, "/ends_at"),
    ],
)
def test_kf16_a_bad_field_is_refused_by_name(bad: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        create(**bad)
    assert pointer in [fault.pointer for fault in refused.value.errors]
    assert not Schedule.objects.exists()


def test_a_schedule_of_an_unknown_handler_or_a_name_in_use_is_refused() -> None:
    with pytest.raises(UnknownHandler):
        create(job={"handler": "gone.handler"})
    create()
    with pytest.raises(ValidationFailed, match="has this name"):
        create()
    assert Schedule.objects.count() == 1


@pytest.mark.parametrize("number", ["nan", "infinity", "1e300"])
def test_f65_numbers_that_no_plan_can_work_with_flag_their_schedule_alone(number: str) -> None:
    good, bad = create(name="good", cron="*/20 * * * *"), create(name="bad", cron="*/20 * * * *")
    with connection.cursor() as cursor:
        cursor.execute(
            f"update jobs_scheduleversion set grace_seconds = '{number}' where schedule_id = %s",
            [bad.pk],
        )
    later = NOON + timedelta(minutes=45)
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later)
    expand_all(later)
    assert max(ledger(good))[0] >= "05-03T13:20"
    assert [row[1] for row in ledger(good)[:2]] == ["skipped", "pending"]
    bad.refresh_from_db()
    assert bad.fault is not None


def test_f65_a_template_too_deep_to_read_flags_its_schedule_alone() -> None:
    good, bad = create(name="good", cron="*/20 * * * *"), create(name="bad", cron="*/20 * * * *")
    deep = "[" * 5_000 + "]" * 5_000
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_scheduleversion set template = %s::jsonb where schedule_id = %s",
            [deep, bad.pk],
        )
    later = NOON + timedelta(minutes=45)
    judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later)
    expand_all(later)
    assert max(ledger(good))[0] >= "05-03T13:20"
    assert Schedule.objects.exclude(fault__isnull=True).values_list("name", flat=True)[0] == "bad"


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(
            ("jobs_schedule", name)
            for name in ("expanded_until", "look_at", "paused_at", "resume_at", "skip_until")
        ),
        ("jobs_scheduleversion", "starts_at"),
        ("jobs_scheduleversion", "ends_at"),
        ("jobs_scheduleversion", "since"),
        ("jobs_occurrence", "fire_at"),
        ("jobs_occurrence", "known_at"),
        ("jobs_occurrence", "due_at"),
        ("jobs_job", "fire_at"),
    ],
)
def test_f65_a_time_that_python_cannot_hold_is_refused_by_the_database(
    table: str, column: str
) -> None:
    create()
    for moment in ("infinity", "-infinity", "0044-03-15 BC"):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"update {table} set {column} = '{moment}'")


def test_a_full_backlog_refuses_no_pause_no_resume_and_no_edit() -> None:
    tenant = make_tenant()
    schedule = create(cron="*/20 * * * *")
    type(tenant).objects.filter(pk=tenant.pk).update(max_backlog=1)
    who: dict[str, Any] = {"tenant": tenant, "schedule_id": schedule.pk, "actor": "user:otto"}
    later = NOON + timedelta(minutes=50)
    pause_schedule(**who, reason="too much", now=later)
    resume_schedule(**who, now=later + timedelta(minutes=1))
    assert edit(schedule, later + timedelta(minutes=2), cron="*/15 * * * *").version == 2
    type(tenant).objects.filter(pk=tenant.pk).update(max_backlog=None)
    expand_all(later + timedelta(minutes=3))
    assert waiting(schedule)[-1] == "05-03T13:45"
