"""F12: the name of a host identifies nobody; each start of a worker is an owner of its own."""

from __future__ import annotations

import pytest

from jobs.states import Place
from jobs.transitions.finish import complete_jobs
from jobs.transitions.lease import extend_leases
from tests.factories import lease_of, make_job, make_pool
from workers.executors.threads import ThreadSlots
from workers.worker import Worker

pytestmark = pytest.mark.django_db


def test_f12_a_worker_that_starts_on_the_same_host_neither_keeps_nor_ends_what_the_other_held():
    before, after = (
        Worker(pool=make_pool(), handlers={}, executor=ThreadSlots(1), drain_seconds=1.0)
        for _ in range(2)
    )
    for one in (before, after):
        one.executor.close()  # nothing runs here: their threads may end
    job = make_job(place=Place.RUNNING, worker_id=before.id)
    lease, shards = lease_of(job).pk, [job.shard]
    assert extend_leases(shards=shards, worker_id=after.id, lease_ids=[lease]) == {}
    assert complete_jobs(shards=shards, worker_id=after.id, results={lease: None}) == set()
    assert extend_leases(shards=shards, worker_id=before.id, lease_ids=[lease]) == {lease: False}
