"""F20, KF-44 and KF-21: the same request many times at once, and bulks that want the same keys in opposite order."""

from __future__ import annotations

import itertools
from functools import partial
from uuid import uuid4

import pytest

from jobs.errors import RequestKeyReused
from jobs.models import Job, JobEvent, Route
from jobs.services.requests import parse_request
from jobs.services.submit import Submitted, submit_job, submit_jobs
from jobs.transitions.finish import complete_jobs
from tests.factories import all_shards, make_handler, make_pool, make_tenant
from tests.support.books import assert_balanced
from tests.support.crowd import HANDLER, publish_all, take_all
from tests.support.race import RACES, ROUNDS, Team, overtake, undone

pytestmark = RACES

CLIENTS = 16


@pytest.fixture
def tenant():
    """A tenant that uses all shards, with the handler and pool that its jobs need."""
    make_handler(HANDLER)
    make_pool()
    return make_tenant(shard_spread=64)


def submit(tenant, key, amount=100):
    request = parse_request(
        {"handler": HANDLER, "payload": {"amount": amount}, "request_key": key}
    )
    return submit_job(tenant=tenant, request=request, actor="token:test0001")


def assert_one_job(answers, key):
    job = Job.objects.get(request_key=key)
    assert {answer.job_id for answer in answers} == {job.pk}
    assert [answer.created for answer in answers].count(True) <= 1
    assert JobEvent.objects.filter(job_id=job.pk).values_list("kind", flat=True).get() == "created"


def test_f20_kf44_one_key_from_sixteen_clients_at_once_makes_one_job(tenant):
    with Team(CLIENTS) as team:
        for number in range(ROUNDS // 3):
            key = f"order-{number}"
            answers = team.together(*[partial(submit, tenant, key)] * CLIENTS)
            assert_one_job(answers, key)
            assert [answer.created for answer in answers].count(True) == 1
    assert Job.objects.count() == ROUNDS // 3
    assert_balanced()


def test_kf44_twenty_first_requests_for_a_handler_share_its_route_too(tenant):
    """The route of a handler and its labels is stored by the first request for it, which all of these are."""
    make_pool("eu", labels={"region": "eu"})

    def submit_labelled(number):
        fields = {"handler": HANDLER, "labels": {"region": "eu"}, "request_key": f"k{number % 2}"}
        return submit_job(tenant=tenant, request=parse_request(fields), actor="token:test0001")

    with Team(20) as team:
        answers = team.together(*[partial(submit_labelled, number) for number in range(20)])
    assert len({answer.job_id for answer in answers}) == 2
    assert [answer.created for answer in answers].count(True) == 2
    assert Route.objects.filter(handler=HANDLER).count() == 1


def test_f20_clients_wait_for_a_first_submission_that_is_not_committed_yet(tenant):
    submit(tenant, "another")  # the route is there: nothing but the key is waited for
    first, answers = overtake(
        partial(submit, tenant, "order-8812"),
        *[partial(submit, tenant, "order-8812")] * (CLIENTS - 1),
    )
    assert first.created
    assert answers == [Submitted(first.job_id, first.shard, created=False)] * (CLIENTS - 1)
    assert_one_job([first, *answers], "order-8812")
    assert_balanced()


def test_f20_another_body_waits_too_and_is_refused(tenant):
    submit(tenant, "another")
    first, (refusal,) = overtake(
        partial(submit, tenant, "order-8812", 100), partial(submit, tenant, "order-8812", 200)
    )
    assert isinstance(refusal, RequestKeyReused)
    assert refusal.job_id == first.job_id
    assert refusal.differs == ["payload"]
    assert_one_job([first], "order-8812")


def test_f20_when_the_first_submission_is_undone_one_of_the_others_makes_the_job(tenant):
    submit(tenant, "another")
    answers = undone(
        partial(submit, tenant, "order-8812"), *[partial(submit, tenant, "order-8812")] * CLIENTS
    )
    assert [answer.created for answer in answers].count(True) == 1
    assert_one_job(answers, "order-8812")
    assert_balanced()


def test_kf21_bulks_in_opposite_order_and_a_worker_finishing_them_never_deadlock(tenant):
    """Two clients create k1 … k200 forwards and backwards while a worker finishes what they made."""
    worker_id, rounds = uuid4(), max(10, ROUNDS // 10)

    def bulk(number, step):
        keys = [f"r{number}-k{n}" for n in range(1, 201)][::step]
        requests = [parse_request({"handler": HANDLER, "request_key": key}) for key in keys]
        return submit_jobs(tenant=tenant, requests=requests, actor="token:test0001")

    def work():
        waiting = list(Job.objects.filter(status="scheduled").values_list("pk", flat=True))
        publish_all(waiting)
        results = {taken.lease_id: None for taken in take_all(worker_id=worker_id)}
        done = complete_jobs(shards=all_shards(), worker_id=worker_id, results=results)
        assert done == results.keys()

    with Team(3) as team:
        for number in range(rounds):
            one, other, _ = team.together(
                partial(bulk, number, 1), partial(bulk, number, -1), work
            )
            assert [job.job_id for job in one] == [job.job_id for job in reversed(other)]
            made = [job.created for job in itertools.chain(one, other)]
            assert made.count(True) == 200
    work()
    assert Job.objects.count() == Job.objects.filter(status="succeeded").count() == 200 * rounds
    assert_balanced()
