"""Maintenance is done between dispatches and never instead of them."""

from __future__ import annotations

import time

import pytest
from django.db import OperationalError, ProgrammingError

from jobs.conf import conf
from jobs.models import Lease
from tests.factories import make_job, make_worker
from workers import scheduler as module
from workers.scheduler import Scheduler

pytestmark = pytest.mark.django_db


def failing(error: Exception):
    def fail(*args: object, **named: object) -> None:
        raise error

    return fail


@pytest.fixture
def scheduler() -> Scheduler:
    make_worker()
    return Scheduler(shards=list(range(conf().shards)))


@pytest.mark.parametrize("error", [ProgrammingError("permission denied"), ValueError("a bug")])
@pytest.mark.parametrize("work", ["reap", "_ensure_partitions"])
def test_a_failing_maintenance_does_not_stop_dispatch(monkeypatch, scheduler, work, error):
    target = module if work == "reap" else Scheduler
    monkeypatch.setattr(target, work, failing(error))
    job = make_job()
    assert scheduler.run_once().published == 1
    assert Lease.objects.filter(job=job).exists()


def test_a_database_that_is_away_ends_the_turn(monkeypatch, scheduler):
    monkeypatch.setattr(module, "reap", failing(OperationalError("server closed the connection")))
    with pytest.raises(OperationalError):
        scheduler.run_once()


def test_partitions_that_could_not_be_made_are_tried_again_later_and_not_every_turn(
    monkeypatch, scheduler
):
    tries: list[str] = []

    def fail(self: Scheduler) -> None:
        tries.append("tried")
        raise ProgrammingError("permission denied")

    monkeypatch.setattr(Scheduler, "_ensure_partitions", fail)
    scheduler.run_once()
    scheduler.run_once()
    assert len(tries) == 1
    assert scheduler._partitions_at - time.monotonic() <= module.PARTITION_RETRY_SECONDS
    scheduler._partitions_at = 0.0  # a minute later
    scheduler.run_once()
    assert len(tries) == 2
