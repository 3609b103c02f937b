"""Limits that two schedulers could pass together: each claims jobs of its own shards, for the last place of a tenant."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest

from jobs.models import DueEntry, Lease, StartBucket
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.transitions.claim import Claimed, claim_batch
from jobs.transitions.limits import Limits, Rate
from tests.factories import SCHEDULER, all_shards, make_handler, make_pool, make_tenant
from tests.support.books import assert_balanced
from tests.support.race import RACES, ROUNDS, Team

pytestmark = RACES

CLAIMERS, LIMIT = 6, 2


def claim(job_id: UUID, limits: Limits) -> Claimed:
    return claim_batch(
        shards=all_shards(), job_ids=[job_id], pool=make_pool(), actor=SCHEDULER, limits=limits
    )


@pytest.mark.parametrize("what", ["running", "keyed", "rates"])
def test_many_claimers_of_the_last_places_do_not_pass_a_limit_together(what):
    """Each has another job of one tenant, in a shard of its own."""
    make_handler()
    pool, tenant = make_pool(), make_tenant("spread", shard_spread=64)
    with Team(CLAIMERS) as team:
        for number in range(max(3, ROUNDS // 10)):
            fields = {"handler": "billing.charge"}
            if what == "keyed":
                fields["concurrency_key"] = f"k{number}"
            request = parse_request(fields)
            made = submit_jobs(
                tenant=tenant, requests=[request] * CLAIMERS, actor="token:test0001"
            )
            jobs = [one.job_id for one in made]
            of_tenant = dict.fromkeys(jobs, tenant.pk)
            limits = {
                "running": Limits(running={tenant.pk: LIMIT}, tenants=of_tenant),
                "keyed": Limits(tenants=of_tenant, keyed=frozenset(jobs)),
                "rates": Limits(
                    rates={f"tenant:{number}": Rate(1e-6, LIMIT)},
                    buckets=dict.fromkeys(jobs, (f"tenant:{number}",)),
                ),
            }[what]
            answers = team.together(*[partial(claim, job, limits) for job in jobs])
            allowed = 1 if what == "keyed" else LIMIT
            assert sum(answer.published for answer in answers) == allowed
            assert sum(answer.refused for answer in answers) == CLAIMERS - allowed
            assert Lease.objects.filter(pool=pool).count() == allowed
            if number == 0:
                assert_balanced()
            Lease.objects.all().delete()  # for the next round; their jobs are of no interest
            DueEntry.objects.all().delete()
    if what == "rates":
        assert {int(bucket.tokens) for bucket in StartBucket.objects.all()} == {0}
