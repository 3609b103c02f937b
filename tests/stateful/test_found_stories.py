"""Stories in which the state machine has found a fault, each in its shortest form."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.clock import database_now
from jobs.conf import conf
from jobs.policies.history import check_history
from jobs.queries.histories import histories
from jobs.states import Place
from jobs.transitions.edit import edit_job
from jobs.transitions.finish import retry_jobs
from tests.factories import BOOM, WORKER, lease_of, make_job, publish

pytestmark = pytest.mark.django_db


def test_i10_a_retry_that_a_person_brings_forward_is_no_violation():
    """The checker took the claim for one before the end of the backoff."""
    job = make_job(place=Place.RUNNING)
    failure = {"delay": 10.0, "cause": "error", "error": BOOM}
    retry_jobs(shards=[job.shard], worker_id=WORKER, failures={lease_of(job).pk: failure})
    past = database_now() - timedelta(seconds=1)
    edit_job(shard=job.shard, job_id=job.pk, actor="user:anna", due_at=past)
    publish(job.pk, job.shard)
    (history,) = histories(shards=[job.shard], job_id=job.pk)
    assert [event.kind for event in history.events][-3:] == ["failed", "edited", "leased"]
    tolerance = conf().clock_tolerance_seconds
    assert check_history(history.events, history.facts, tolerance_seconds=tolerance) == []
