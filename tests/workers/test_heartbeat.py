"""The heartbeat: keeps leases, hears of cancels, and stops what this worker can no longer be sure of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from jobs.clock import database_now
from jobs.conf import conf
from jobs.models import Lease
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.lease import extend_leases
from tests.factories import OTHER_WORKER, WORKER, all_shards, make_job, take
from tests.workers.attempts import execution
from tests.workers.stage import until
from workers.execution import Execution, trusted_until
from workers.heartbeat import Heartbeat

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("profile")]


class Held:
    """Attempts that this worker believes to hold, and its heartbeat."""

    def __init__(self, count: int = 1) -> None:
        self.held: dict[UUID, Execution] = {}
        self.alive = 0
        for number in range(count):
            job = make_job(place=Place.PUBLISHED, request_key=f"k{number}")
            taken = take(job.pk)
            # As if its take had been long ago: what a beat confirms shows.
            self.held[taken.lease_id] = execution(of=taken, sent_at=time.monotonic() - 1.0)
        self.heartbeat = Heartbeat(
            worker_id=WORKER, held=self.held, shards=all_shards(), report_alive=self.report
        )

    def report(self) -> None:
        self.alive += 1

    @property
    def one(self) -> Execution:
        return next(iter(self.held.values()))

    def lease(self) -> Lease:
        return Lease.objects.get(pk=self.one.taken.lease_id)

    def reasons(self) -> list[str | None]:
        return [one.stop.reason for one in self.held.values()]


def test_a_beat_extends_every_lease_held_and_the_trust_in_it():
    it = Held(3)
    Lease.objects.update(expires_at=Now() + timedelta(milliseconds=300))
    began, beaten_from = time.monotonic(), database_now()
    it.heartbeat.run_once()
    ttl = timedelta(seconds=conf().lease_ttl_seconds)
    for lease in Lease.objects.all():
        assert beaten_from + ttl <= lease.expires_at <= database_now() + ttl
    for one in it.held.values():
        assert trusted_until(began) <= one.stop.trusted_until <= trusted_until(time.monotonic())
    assert it.reasons() == [None] * 3
    assert it.alive == 1


def test_a_beat_with_nothing_held_says_only_that_the_worker_lives():
    it = Held(0)
    it.heartbeat.run_once()
    assert it.alive == 1


def test_progress_is_stored_with_the_beat_and_kept_by_the_next():
    it = Held()
    it.one.context.progress(0.5, "half way")
    it.heartbeat.run_once()
    assert it.lease().progress == {"fraction": 0.5, "note": "half way"}
    it.heartbeat.run_once()
    assert it.lease().progress == {"fraction": 0.5, "note": "half way"}


def test_kf31_a_beat_brings_the_wish_to_cancel_to_its_attempt_alone():
    it = Held(2)
    cancelled, other = it.held.values()
    cancel_job(
        shard=cancelled.taken.shard,
        job_id=cancelled.taken.job_id,
        actor="user:anna",
        reason="withdrawn",
    )
    it.heartbeat.run_once()
    assert cancelled.context.cancelled
    assert it.reasons() == ["cancel", None]
    assert other.context.lease_remaining() > 1.0
    assert Lease.objects.filter(pk=cancelled.taken.lease_id).exists()  # kept until it stops


@pytest.mark.parametrize(
    "loses",
    [
        lambda lease: lease.delete(),
        lambda lease: lease.update(worker=OTHER_WORKER),
    ],
    ids=["ended", "somebody else's"],
)
def test_kf25_a_lease_that_does_not_come_back_is_lost_and_its_attempt_told(loses):
    it = Held(2)
    lost, kept = it.held
    loses(Lease.objects.filter(pk=lost))
    it.heartbeat.run_once()
    assert it.reasons() == ["lease_lost", None]
    assert it.held[kept].context.lease_remaining() > 1.0


def test_a_lease_whose_report_was_accepted_during_the_beat_is_no_loss(monkeypatch):
    it = Held()
    one = it.one

    def and_meanwhile_reported(**given):
        Lease.objects.all().delete()
        answer = extend_leases(**given)
        it.held.clear()  # the loop heard that its report was accepted
        return answer

    monkeypatch.setattr("workers.heartbeat.extend_leases", and_meanwhile_reported)
    it.heartbeat.run_once()
    assert one.stop.reason is None


def test_an_attempt_is_stopped_when_its_lease_can_no_longer_be_trusted():
    it = Held(2)
    silent, fresh = it.held.values()
    silent.stop.trusted_until = time.monotonic() - 0.001
    it.heartbeat.distrust()
    assert it.reasons() == ["lease_lost", None]
    assert fresh.context.lease_remaining() > 0


def beaten(one: Beating, times: int) -> bool:
    return len(one.beats) >= times


class Beating:
    """A heartbeat that runs in its own thread until the end of the test."""

    def __init__(self, monkeypatch, beat: Callable[[int], None]) -> None:
        self.beats: list[float] = []
        self.it = Held(0)
        monkeypatch.setattr(self.it.heartbeat, "run_once", self._once)
        self._beat = beat

    def _once(self) -> None:
        self.beats.append(time.monotonic())
        self._beat(len(self.beats))


@pytest.fixture
def rarely(settings) -> None:
    """Ten minutes between beats: whichever comes while a test is patient does not come by the interval."""
    settings.JOBS = {**settings.JOBS, "heartbeat_seconds": 600.0, "lease_ttl_seconds": 1800.0}
    conf.cache_clear()


@pytest.fixture
def beating(monkeypatch):
    """Start a heartbeat whose beats are the given function of their number."""
    started: list[Beating] = []

    def start(beat: Callable[[int], None] = lambda number: None) -> Beating:
        started.append(Beating(monkeypatch, beat))
        started[-1].it.heartbeat.start()
        return started[-1]

    yield start
    for one in started:
        one.it.heartbeat.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_it_beats_at_its_interval(beating):
    began = time.monotonic()
    one = beating()
    until(lambda: len(one.beats) >= 4, "four beats")
    # Of single gaps nothing is promised: a beat that came late makes the next one seem early.
    assert one.beats[3] - began >= 3 * conf().heartbeat_seconds


def test_a_missed_beat_is_tried_again_much_sooner(rarely, beating):
    def away(number: int) -> None:
        if number <= 2:
            raise OperationalError("connection refused")

    one = beating(away)
    until(lambda: len(one.beats) >= 3, "two more tries, long before the next beat is due")


def test_a_hurry_beats_at_once(rarely, beating):
    one = beating()
    until(lambda: len(one.beats) == 1, "the first beat")
    for number in (2, 3):
        one.it.heartbeat.hurry()
        until(partial(beaten, one, number), "the next beat, long before it is due")


def test_without_an_answer_it_stops_its_attempts_after_four_fifths_of_the_lease(beating, settings):
    settings.JOBS = {
        **settings.JOBS,
        "lease_ttl_seconds": 60.0,
    }  # a fifth of it is longer than any stall
    conf.cache_clear()

    def away(number: int) -> None:
        raise OperationalError("no route to host")

    one = beating(away)
    attempt = execution(sent_at=time.monotonic() - 0.8 * 60.0 + 1.0)  # heard of last a while ago
    assert not attempt.context.cancelled
    one.it.held[attempt.taken.lease_id] = attempt
    until(lambda: attempt.context.cancelled, "the attempt is told to stop")
    assert attempt.stop.reason == "lease_lost"
    late = time.monotonic() - attempt.stop.trusted_until
    assert 0 <= late < 0.2 * conf().lease_ttl_seconds  # before anybody else may have the job
