"""The scheduler's turn: what it publishes, what it takes back, and how long it may sleep."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from jobs import telemetry
from jobs.clock import database_now
from jobs.conf import conf
from jobs.database import rows
from jobs.models import (
    DueEntry,
    Job,
    JobEvent,
    Lease,
    Occurrence,
    Pause,
    SchedulerNode,
    Shard,
)
from jobs.queries.catalog import forget
from jobs.services.dispatch import dispatch
from jobs.states import Place
from tests.factories import all_shards, make_job, make_schedule, make_worker
from tests.support.books import assert_balanced
from tests.workers.stage import end_threads, expire_lease, status, story, until
from workers import scheduler as schedulers
from workers.scheduler import BLOCKED_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, Scheduler

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("profile")]


def due_in(seconds: float, **fields) -> Job:
    return make_job(due_at=database_now() + timedelta(seconds=seconds), **fields)


def idle_worker(**fields):
    """A worker that is never found silent, however long the test takes."""
    return make_worker(last_seen_at=database_now() + timedelta(hours=1), **fields)


def pauses(scheduler: Scheduler, turns: int) -> list[float]:
    return [scheduler.run_once().pause for _ in range(turns)]


def test_a_turn_publishes_what_is_due_and_then_sleeps_if_that_was_all():
    idle_worker()
    jobs = [make_job(request_key=f"k{n}") for n in range(3)]
    later = due_in(3600)
    turn = Scheduler(shards=all_shards()).run_once()
    assert (turn.published, turn.lost, turn.expired) == (3, 0, 0)
    assert 0.9 * conf().tick_seconds <= turn.pause <= conf().tick_seconds
    assert {lease.job_id for lease in Lease.objects.published()} == {job.pk for job in jobs}
    assert status(later.pk) == "scheduled"


def test_a_turn_comes_back_at_once_when_it_had_no_room_for_all():
    idle_worker(slots=2)
    for n in range(3):
        make_job(request_key=f"k{n}")
    turn = Scheduler(shards=all_shards()).run_once()
    assert turn.published == 2
    assert turn.pause == FIRST_PAUSE_SECONDS


def test_a_turn_after_which_work_is_due_comes_back_at_once(monkeypatch):
    idle_worker()
    make_job()
    monkeypatch.setattr(schedulers, "seconds_to_next_due", lambda **_: -0.001)
    assert Scheduler(shards=all_shards()).run_once().pause == FIRST_PAUSE_SECONDS


def test_each_turn_publishes_in_its_own_name():
    idle_worker()
    job = make_job()
    scheduler = Scheduler(shards=all_shards())
    scheduler.run_once()
    leased = JobEvent.objects.get(job=job, kind="leased")
    assert leased.actor == f"scheduler:{scheduler.id}"


def test_kf11_a_turn_makes_the_jobs_of_schedules_and_publishes_what_fired_in_an_outage():
    idle_worker()
    noon = database_now().replace(minute=0, second=0, microsecond=0)
    schedule = make_schedule(cron="0 * * * *", now=noon - timedelta(hours=3, minutes=30))
    scheduler = Scheduler(shards=all_shards())
    scheduler.run_once()
    ledger = Occurrence.objects.filter(schedule=schedule, fire_at__lte=noon).order_by("fire_at")
    assert [row.verdict for row in ledger] == ["skipped", "skipped", "skipped", "pending"]
    (last,) = ledger.filter(verdict="pending")
    assert {lease.job_id for lease in Lease.objects.published()} == {last.job_id}
    scheduler._expand_at = 0.0  # as a tick later
    scheduler.run_once()
    last.refresh_from_db()
    assert last.verdict in ("ran", "late")  # by the minutes since the hour


def test_f31_an_expansion_that_is_not_done_goes_on_in_the_next_turn(settings):
    settings.JOBS = {**settings.JOBS, "expand_firings": 5}
    conf.cache_clear()
    idle_worker()
    began = database_now() - timedelta(hours=2)
    schedule = make_schedule(cron="*/10 * * * *", misfire="skip", now=began)
    scheduler = Scheduler(shards=all_shards())
    for _ in range(10):
        if scheduler.run_once().pause > 0:
            break
    schedule.refresh_from_db()
    assert schedule.expanded_until > database_now()


def test_with_nothing_waiting_it_sleeps_a_tick_and_not_longer():
    idle_worker()
    scheduler = Scheduler(shards=all_shards())
    for pause in pauses(scheduler, 5):
        assert 0.9 * conf().tick_seconds <= pause <= conf().tick_seconds


def test_it_sleeps_until_the_next_due_time_when_that_comes_first(settings):
    settings.JOBS = {"tick_seconds": 60.0}
    conf.cache_clear()
    idle_worker()
    due_in(10)
    assert 1 < Scheduler(shards=all_shards()).run_once().pause <= 10.0005


def test_a_far_due_time_does_not_lengthen_the_tick():
    idle_worker()
    due_in(3600)
    assert Scheduler(shards=all_shards()).run_once().pause <= conf().tick_seconds


def test_due_work_that_nobody_can_run_is_looked_at_ever_less_down_to_the_tick():
    due_in(-5)  # no live worker knows its handler
    found = pauses(Scheduler(shards=all_shards()), 12)
    assert found[0] == 2 * FIRST_PAUSE_SECONDS
    assert found == sorted(found)
    assert found[-1] == conf().tick_seconds


def test_a_full_pool_is_looked_at_again_soon():
    idle_worker(slots=1)
    make_job(request_key="k1", place=Place.PUBLISHED)
    make_job(request_key="k2")
    found = pauses(Scheduler(shards=all_shards()), 12)
    assert found[-1] == BLOCKED_PAUSE_SECONDS
    assert Lease.objects.count() == 1


def test_work_for_a_handler_advertised_only_now_is_found_by_the_next_turns():
    job = make_job(handler="reports.weekly")
    idle_worker(handlers=("billing.charge",))
    scheduler = Scheduler(shards=all_shards())
    assert scheduler.run_once().published == 0
    idle_worker(handlers=("reports.weekly",))
    assert sum(scheduler.run_once().published for _ in range(2)) == 1
    assert status(job.pk) == "leased"


def test_it_leaves_shards_alone_that_it_does_not_own():
    idle_worker()
    job = make_job()
    other = Scheduler(shards=[number for number in all_shards() if number != job.shard])
    assert other.run_once().published == 0
    assert Scheduler(shards=[job.shard]).run_once().published == 1


def test_a_turn_takes_back_what_expired_once_a_tick():
    idle_worker()
    scheduler = Scheduler(shards=all_shards())
    began = time.monotonic()
    scheduler.run_once()
    assert scheduler._reap_at >= began + conf().tick_seconds
    job = make_job(place=Place.RUNNING)
    expire_lease(job.pk)
    scheduler._reap_at = time.monotonic() + 3600  # the tick is not over
    assert scheduler.run_once().expired == 0
    scheduler._reap_at = 0.0  # a tick later
    turn = scheduler.run_once()
    assert turn.expired == 1
    assert story(job.pk) == ["created", "leased", "started", "failed"]
    assert_balanced()


def test_the_first_turn_owns_its_shards_and_has_partitions_made():
    alone = Scheduler(shards=all_shards())
    alone.run_once()
    assert Shard.objects.filter(owner=alone.id).count() == conf().shards
    assert SchedulerNode.objects.filter(pk=alone.id).exists()
    made = rows(
        "select count(*) from pg_inherits where inhparent = 'jobs_jobevent'::regclass", {}
    )[0][0]
    assert made >= conf().partition_days_ahead + 2  # today, the days ahead, and the default


def test_a_missing_partition_is_made_by_the_turn_that_looks():
    name, *_ = rows(
        "select 'jobs_jobevent_' || to_char((now() at time zone 'UTC')::date + 3, 'YYYYMMDD')", {}
    )[0]
    with connection.cursor() as cursor:
        cursor.execute(f"drop table {name}")
    Scheduler(shards=all_shards()).run_once()
    assert rows("select to_regclass(%(name)s) is not null", {"name": name}) == [(True,)]


class Running:
    """A scheduler that runs in a thread until the end of the test."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.scheduler.run()
        finally:
            connection.close()

    def end(self) -> None:
        self.scheduler.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def run(committed):
    """Start a scheduler in a thread; all are ended before the tables are emptied."""
    started: list[Running] = []

    def start(**options) -> Running:
        started.append(Running(Scheduler(shards=all_shards(), **options)))
        return started[-1]

    yield start
    for one in started:
        one.end()
    end_threads()


def test_a_job_is_published_when_its_time_comes_and_never_before(run):
    idle_worker(slots=50)
    run()
    jobs = [due_in(0.1 + n / 20, request_key=f"k{n}") for n in range(10)]
    until(lambda: Lease.objects.count() == 10, "all are published")
    for job in jobs:
        at = JobEvent.objects.get(job=job, kind="leased").at
        assert 0 <= (at - job.due_at).total_seconds() <= 2.0
    assert_balanced()


def test_new_work_wakes_it_before_its_tick(run, settings):
    settings.JOBS = {"tick_seconds": 60.0, "shard_lease_seconds": 600.0}
    conf.cache_clear()
    idle_worker()
    run()
    until(lambda: Shard.objects.unowned().count() == 0, "it is at work")
    job = make_job()
    until(lambda: status(job.pk) == "leased", "it is published", within=10)


def test_a_failing_turn_does_not_end_it(run, monkeypatch):
    failures: list[Exception] = [OperationalError("gone"), ValueError("a bug")]

    def failing(**given):
        if failures:
            raise failures.pop()
        return dispatch(**given)

    monkeypatch.setattr("workers.scheduler.dispatch", failing)
    idle_worker()
    job = make_job()
    run()
    until(lambda: status(job.pk) == "leased", "it is published all the same")
    assert not failures


def test_once_publishes_what_is_due_and_ends(run):
    idle_worker(slots=100)
    jobs = [make_job(request_key=f"k{n}") for n in range(30)]
    later = due_in(3600, request_key="later")
    forget()  # a process that starts has read nothing yet
    running = run(once=True)
    running.thread.join(20)
    assert not running.thread.is_alive()
    assert not DueEntry.objects.filter(job__in=jobs).exists()
    assert status(later.pk) == "scheduled"


def test_a_stop_frees_its_shards_at_once(run):
    running = run()
    until(lambda: Shard.objects.unowned().count() == 0, "it owns everything")
    running.end()
    assert not Shard.objects.exclude(owner=None).exists()
    assert not SchedulerNode.objects.exists()


def test_two_schedulers_share_and_publish_each_job_once(run):
    idle_worker(slots=500)
    run()
    run()
    until(lambda: SchedulerNode.objects.count() == 2, "both are registered")
    jobs = [due_in(0.3 + n % 5 / 10, request_key=f"k{n}") for n in range(50)]
    until(lambda: Lease.objects.count() == 50, "all are published")
    assert JobEvent.objects.filter(job__in=jobs, kind="leased").count() == 50
    owners = set(Shard.objects.values_list("owner", flat=True))
    until(
        lambda: len(set(Shard.objects.values_list("owner", flat=True))) == 2, f"shared: {owners}"
    )
    assert_balanced()


def test_a_turn_takes_away_pauses_whose_time_is_over_and_tells_of_them(caplog):
    now = database_now()
    for lane, end in (("low", now - timedelta(seconds=1)), ("high", now + timedelta(hours=1))):
        Pause.objects.create(
            kind="lane", target=lane, reason="billing run", paused_by="user:anna", resume_at=end
        )
    scheduler = Scheduler(shards=all_shards())
    with caplog.at_level(logging.INFO):
        scheduler.run_once()
    assert [pause.target for pause in Pause.objects.all()] == ["high"]
    told = [(one.kind, one.target, one.paused_by) for one in caplog.records
            if one.getMessage() == telemetry.PAUSE_ENDED]  # fmt: skip
    assert told == [("lane", "low", "user:anna")]
    Pause.objects.update(resume_at=now)
    scheduler._ownership.give_up()
    Scheduler(shards=all_shards()[1:]).run_once()  # whoever has shard 0 does it
    assert Pause.objects.exists()
