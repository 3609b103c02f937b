"""Schedules and real schedulers: an outage over a firing, two expanders at once, and odd settings of a process."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from benchmarks.nights import make_nights
from jobs.conf import conf
from jobs.database import rows
from jobs.models import Job, Occurrence, Schedule
from jobs.services.verifying import verify_history
from jobs.states import Resolution
from tests.factories import make_handler, make_pool, make_schedule
from tests.process.stories import assert_at_rest, database_now, events, finished, seconds_between
from tests.support.process import MANAGE, Fleet

pytestmark = pytest.mark.process

SECOND = timedelta(seconds=1)
DOWN_SECONDS, LATEST_SECONDS = 20, 25  # after a firing; and when its job has begun then
ROUNDS = int(os.environ.get("PROCESS_ROUNDS") or 50)
NIGHTS, SEED = int(os.environ.get("PROCESS_NIGHTS") or 400), 7
CASES = Path(__file__).parents[1] / "support" / "calendar" / "cases.json"
ODD = {
    "TZ": "Pacific/Apia",
    "PGTZ": "America/St_Johns",
    "LANG": "tr_TR.UTF-8",
    "LC_ALL": "tr_TR.UTF-8",
    "PYTHONUTF8": "0",
}


def test_kf11_a_firing_while_no_scheduler_runs_has_one_job_as_soon_as_one_runs(fleet):
    """Both ways: its job was made ahead by then, and nobody has ever expanded it."""
    scheduler = fleet.scheduler()
    fleet.worker("--slots", "4")
    fleet.ready()
    fires_at = database_now().replace(microsecond=0) + 4 * SECOND
    rule: dict[str, Any] = {
        "cron": f"{fires_at.second} {fires_at.minute} {fires_at.hour} * * *",
        "misfire": "latest",
        "job": {"handler": "probe.deaf"},
    }
    made_ahead = make_schedule(name="made ahead", **rule)
    scheduler.send(signal.SIGTERM)
    assert scheduler.exit_code() == 0
    never_looked_at = make_schedule(
        name="never looked at", now=fires_at - timedelta(hours=2), **rule
    )
    assert Occurrence.objects.get().schedule_id == made_ahead.pk
    assert database_now() < fires_at
    back_at = fires_at + DOWN_SECONDS * SECOND
    fleet.until(lambda: database_now() >= back_at, "the outage is over", poll_seconds=0.1)
    assert not events_of(fires_at, "leased")
    fleet.scheduler()

    def ran() -> bool:
        return Occurrence.objects.filter(verdict="ran", fire_at=fires_at).count() == 2

    fleet.until(ran, "both have run")
    jobs = list(Job.objects.filter(fire_at=fires_at))
    fleet.until(lambda: finished(*(job.pk for job in jobs)), "both are finished")
    assert {job.schedule_id for job in jobs} == {made_ahead.pk, never_looked_at.pk}
    assert len(jobs) == 2
    for began in events_of(fires_at, "started"):
        assert DOWN_SECONDS <= seconds_between(fires_at, began) <= LATEST_SECONDS
    assert_at_rest()


def events_of(fires_at: datetime, kind: str) -> list[datetime]:
    jobs = Job.objects.filter(fire_at=fires_at).values_list("pk", flat=True)
    return [event.at for job in jobs for event in events(job, kind)]


def test_kf13_two_schedulers_at_once_make_one_job_for_each_firing(fleet):
    """`runscheduler --once`, always two; half of the time both look at the same shards, whoever owns them."""
    fleet.fork_all()
    shared = ("--shards", f"0-{conf().shards - 2}", "--once")
    for number in range(ROUNDS):
        begun = database_now() - timedelta(hours=2)
        for name in "abc":
            make_schedule(name=f"{number}{name}", cron="*/10 * * * *", misfire="all", now=begun)
        flags = shared if number < ROUNDS / 2 else ("--once",)
        fresh = {"LC_ALL": "C"} if number % 25 == 0 else {}  # an interpreter of its own
        both = [fleet.scheduler(*flags, **fresh) for _ in range(2)]
        for one in both:
            one.may_end = True
        assert [one.exit_code() for one in both] == [0, 0], both[0].last_lines()
    last = fleet.scheduler("--once")  # has all shards
    last.may_end = True
    assert last.exit_code() == 0
    assert not Schedule.objects.filter(look_at__lte=database_now()).exists()
    verdict = verify_history()
    assert verdict.violations == []
    assert verdict.schedules == 3 * ROUNDS
    # From an hour ago to an hour ahead; the hour before was expanded when they were made.
    assert verdict.occurrences >= 3 * ROUNDS * 17
    running = Job.objects.exclude(status="cancelled").values_list("schedule_id", "fire_at")
    assert len(running) == len(set(running)) >= 3 * ROUNDS * 12


@pytest.mark.timeout(300)
def test_f22_i13_a_night_with_a_moved_clock_under_killed_schedulers_is_in_the_ledger_as_the_calendar_says(
    fleet,
):
    """Gaps and overlaps of many zones. `python -m benchmarks schedules` does the same with 10,000 of 50 zones."""
    fleet.fork_all()
    make_handler("probe.deaf")
    make_pool()
    rng = random.Random(SEED)
    alive = [fleet.scheduler() for _ in range(3)]
    fleet.ready()
    make_nights(NIGHTS, 25, "probe.deaf")
    to_do = Schedule.objects.filter(look_at__isnull=False)
    met = 0
    for done in (0.0, 0.2, 0.4, 0.6, 0.8):  # of the work
        fleet.until(
            lambda done=done: to_do.count() <= NIGHTS * (1 - done), f"{done} is done (seed {SEED})"
        )
        victim = alive.pop(rng.randrange(len(alive)))
        victim.kill()
        met += to_do.exists()
        alive.append(fleet.scheduler())
    assert met >= 2, "too few of them were killed at work"
    fleet.until(lambda: not to_do.exists(), f"the night is over for all (seed {SEED})")
    verdict = verify_history()
    assert verdict.violations == []
    assert (verdict.schedules, verdict.unchecked) == (NIGHTS, 0)
    told = Occurrence.objects.values_list("resolution", flat=True).distinct()
    assert set(told) == {one.value for one in Resolution}
    assert Job.objects.count() > NIGHTS / 2
    # And the check would have seen it: each of a few firings is missed when its row is gone.
    gone = list(Occurrence.objects.filter(verdict="skipped").order_by("?")[:5])
    for one in gone:
        one.delete()
    assert len(verify_history().violations) == len(gone)


@pytest.fixture
def database_in_kathmandu(database_url: str) -> Iterator[None]:
    """For every session that begins now."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"alter database {name} set timezone to 'Asia/Kathmandu'")
        yield
        cursor.execute(f"alter database {name} reset timezone")


def test_f30_odd_settings_of_a_process_change_no_byte_of_a_preview(fleet):
    usual, odd = (previewed(fleet, **settings) for settings in ({}, ODD))
    assert len(usual) > 10_000
    assert usual == odd


def previewed(fleet: Fleet, **settings: str) -> bytes:
    command = (sys.executable, MANAGE, "dk", "schedule", "preview", "--cases", CASES)
    process = fleet.start("dk", *command, **settings)
    process.may_end = True
    assert process.exit_code() == 0
    return process.log.read_bytes()


LEDGER = """
select schedule.name, row_to_json(x)::text from jobs_schedule schedule, lateral (
    select version, extract(epoch from fire_at) as fire, extract(epoch from known_at) as known, slot, number,
        resolution, verdict, reason, due_at, timezone, on_gap, on_overlap, zone_data
    from jobs_occurrence where schedule_id = schedule.id) x
order by schedule.name, x.known, x.slot"""
BEGIN, END = (datetime.fromisoformat(f"2025-10-{day}T12:00:00+00:00") for day in (24, 27))


def test_f30_odd_settings_of_process_and_database_change_no_byte_of_a_ledger(
    fleet, request: pytest.FixtureRequest
):
    """Three days around the end of summer time, long ago: what they hold does not depend on today."""
    zones = (
        "Europe/Berlin",
        "Europe/Istanbul",
        "Asia/Kathmandu",
        "Pacific/Apia",
        "America/Havana",
    )
    fields: dict[str, Any] = {"misfire": "skip", "ends_at": END.isoformat()}
    for zone in zones:
        for on_overlap in ("first", "second", "both"):
            make_schedule(
                name=f"{zone} {on_overlap} I\u0131\u0130i",
                now=BEGIN,
                timezone=zone,
                on_overlap=on_overlap,
                cron="*/30 0-3,12 * * FRI-SUN,1",
                **fields,
            )
    made = {one.pk: (one.expanded_until, one.look_at) for one in Schedule.objects.all()}
    usual = expanded(fleet)
    for key, (until, look_at) in made.items():
        Occurrence.objects.filter(schedule=key, known_at__gt=until).delete()
        Schedule.objects.filter(pk=key).update(expanded_until=until, look_at=look_at)
    request.getfixturevalue("database_in_kathmandu")
    odd = expanded(fleet, **ODD)
    assert len(usual) > 15 * 25
    assert usual == odd
    assert verify_history().violations == []


def expanded(fleet: Fleet, **settings: str) -> list[tuple[str, str]]:
    """The ledgers after one round of a scheduler with these settings."""
    process = fleet.scheduler("--once", **settings)
    process.may_end = True
    assert process.exit_code() == 0
    assert not Schedule.objects.exclude(look_at=None).exists()
    return [(name, text) for name, text in rows(LEDGER, {})]
