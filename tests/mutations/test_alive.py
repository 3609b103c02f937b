"""A story without any trouble: it works as long as the program works at all, whatever fault is in it."""

from __future__ import annotations

from importlib import import_module

import pytest

from jobs.states import Place
from jobs.transitions.lease import extend_leases
from tests.factories import WORKER, lease_of, make_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "name",
    [
        *("workers.worker", "workers.scheduler", "workers.heartbeat", "workers.execution"),
        *("workers.intake", "workers.outbox", "workers.upkeep", "workers.executors.factory"),
        *("jobs.services.dispatch", "jobs.services.reaping", "jobs.services.outcomes"),
        *("jobs.policies.history", "jobs.api.views_jobs", "jobs.transitions.edit"),
    ],
)
def test_every_part_can_be_loaded(name):
    assert import_module(name)


def test_a_job_is_stored_claimed_taken_kept_alive_and_finished():
    running = make_job(place=Place.RUNNING)
    lease = lease_of(running)
    beat = extend_leases(shards=[running.shard], worker_id=WORKER, lease_ids=[lease.pk])
    assert beat == {lease.pk: False}
    assert make_job(place=Place.FINISHED).status == "succeeded"
    assert make_job(place=Place.DEAD_LETTER).status == "dead"
