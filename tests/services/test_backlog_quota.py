"""max_backlog: a tenant with as many waiting jobs as it may have gets no more accepted, and nothing is stored."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs.errors import QuotaExceeded, RequestKeyReused
from jobs.models import DueEntry, Job, Tenant
from jobs.policies.sharding import shards_of
from jobs.queries.backlog import count_waiting
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from jobs.states import Place
from tests.factories import all_shards, make_handler, make_job, make_pool, make_tenant
from tests.support.places import unchanged

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fleet():
    make_handler()
    make_pool()


def submit(tenant, *requests):
    parsed = [parse_request({"handler": "billing.charge", **fields}) for fields in requests]
    return submit_jobs(tenant=tenant, requests=parsed, actor="token:test0001")


def limited(limit, **fields):
    return make_tenant("limited", max_backlog=limit, **fields)


@pytest.mark.parametrize("spread", [1, 3, 64])
def test_s15_the_job_that_would_be_one_too_many_is_refused(spread):
    tenant = limited(3, shard_spread=spread)
    for _ in range(3):
        submit(tenant, {})
    with unchanged(), pytest.raises(QuotaExceeded) as refused:
        submit(tenant, {})
    assert (refused.value.used, refused.value.limit, refused.value.code) == (3, 3, "backlog_quota")
    submit(make_tenant(), {})  # others go on


def test_jobs_of_the_future_of_any_kind_and_parked_ones_count_and_owned_and_finished_ones_do_not():
    make_handler("mail.send")
    tenant = limited(4)
    for place in (Place.PUBLISHED, Place.RUNNING, Place.FINISHED, Place.DEAD_LETTER):
        make_job(tenant=tenant, place=place)
    submit(tenant, {"delay_seconds": 3600}, {"lane": "urgent", "priority": 5})
    submit(tenant, {"handler": "mail.send"}, {"concurrency_key": "k"})
    DueEntry.objects.filter(concurrency_key="k").update(parked=True)
    with pytest.raises(QuotaExceeded):
        submit(tenant, {})


def test_a_batch_is_all_or_nothing():
    tenant = limited(3)
    submit(tenant, {})
    with unchanged(), pytest.raises(QuotaExceeded) as refused:
        submit(tenant, {}, {}, {})
    assert refused.value.asked == 3
    assert len(submit(tenant, {}, {})) == 2


def test_a_replay_is_no_new_job_and_is_answered_at_the_limit():
    tenant = limited(2)
    first, second = submit(tenant, {"request_key": "a"}, {"request_key": "b"})
    again, other = submit(tenant, {"request_key": "b"}, {"request_key": "a"})
    assert (again.job_id, other.job_id) == (second.job_id, first.job_id)
    assert not again.created
    with unchanged(), pytest.raises(RequestKeyReused):
        submit(tenant, {"request_key": "a", "payload": 1})
    with unchanged(), pytest.raises(QuotaExceeded):
        submit(tenant, {"request_key": "a"}, {"request_key": "c"})


def test_a_key_that_is_twice_in_a_batch_counts_once():
    one, other = submit(limited(1), {"request_key": "a"}, {"request_key": "a"})
    assert one.job_id == other.job_id


def test_not_even_a_route_is_stored_when_refused():
    make_pool("eu", labels={"region": "eu"})
    tenant = limited(0)
    with unchanged(), pytest.raises(QuotaExceeded):
        submit(tenant, {"labels": {"region": "eu"}})


def test_refused_inside_a_callers_transaction_that_goes_on():
    tenant = limited(1)
    with transaction.atomic():
        submit(tenant, {})
        with pytest.raises(QuotaExceeded):
            submit(tenant, {})
    assert Job.objects.filter(tenant=tenant).count() == 1


def test_nothing_is_counted_for_a_tenant_without_a_quota():
    tenant = make_tenant()
    with CaptureQueriesContext(connection) as queries:
        submit(tenant, {})
    assert not [
        one for one in queries if "count(*)" in one["sql"] or "for no key update" in one["sql"]
    ]


def test_no_more_is_counted_than_the_limit_and_only_in_the_tenants_own_shards():
    tenant = make_tenant("spread", shard_spread=5)
    submit(tenant, *[{"priority": n % 3} for n in range(30)])
    submit(make_tenant(), *[{} for _ in range(10)])
    own = shards_of(tenant_id=tenant.pk, spread=5, shards=64)
    assert set(DueEntry.objects.filter(tenant=tenant).values_list("shard", flat=True)) <= set(own)
    for limit, counted in ((1, 1), (7, 7), (30, 30), (100, 30)):
        assert count_waiting(tenant_id=tenant.pk, shards=own, limit=limit) == counted
    assert count_waiting(tenant_id=tenant.pk, shards=all_shards(), limit=100) == 30


@pytest.mark.race
def test_s15_submitters_at_one_moment_do_not_share_the_last_place(committed):
    tenant = limited(3)
    barrier, outcomes = threading.Barrier(8), []

    def one() -> None:
        try:
            barrier.wait(20)
            submit(Tenant.objects.get(pk=tenant.pk), {})
            outcomes.append("accepted")
        except QuotaExceeded:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["accepted"] * 3 + ["refused"] * 5
    assert DueEntry.objects.filter(tenant=tenant).count() == 3
