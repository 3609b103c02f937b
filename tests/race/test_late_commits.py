"""KF-19: rows become visible late and arrive with old times; whoever scans must not have moved on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.clock import database_now
from jobs.models import Lease
from jobs.queries.catalog import forget
from jobs.transitions.edit import edit_job
from tests.factories import all_shards, make_job, make_pool, make_worker
from tests.support.race import RACES, pass_by
from workers.scheduler import Scheduler

pytestmark = RACES


@pytest.fixture
def scheduler() -> Scheduler:
    """One that has published a job before, so that whatever it remembers is remembered."""
    make_worker(make_pool(), slots=50)
    make_job(request_key="before")
    forget()  # its route is new
    scheduler = Scheduler(shards=all_shards())
    assert scheduler.run_once().published == 1
    return scheduler


def published(job) -> bool:
    return Lease.objects.filter(job_id=job.pk).exists()


def test_kf19_a_job_whose_commit_comes_late_is_published_by_the_next_turn(scheduler):
    prompt = make_job(request_key="prompt", due_at=database_now() - timedelta(seconds=1))

    def submit_late():
        return make_job(request_key="late", due_at=database_now() - timedelta(minutes=10))

    late, (turn,) = pass_by(submit_late, scheduler.run_once)
    assert turn.published == 1
    assert published(prompt)
    assert not published(late)  # it could not be seen yet
    assert scheduler.run_once().published == 1
    assert published(late)


def test_kf19_a_job_that_an_edit_puts_into_the_past_is_published_by_the_next_turn(scheduler):
    later = make_job(request_key="later", delay_seconds=3600)
    prompt = make_job(request_key="prompt", due_at=database_now() - timedelta(seconds=1))
    assert scheduler.run_once().published == 1
    assert published(prompt)
    past = database_now() - timedelta(days=1)
    edit_job(shard=later.shard, job_id=later.pk, actor="user:anna", due_at=past)
    assert scheduler.run_once().published == 1
    assert published(later)
