"""submit: a request becomes one durable job, in the caller's transaction, or is refused with nothing stored."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from django.db import connection, transaction

from jobs.errors import NoMatchingPool, RequestKeyReused, UnknownHandler, ValidationFailed
from jobs.models import DueEntry, Handler, Job, JobEvent, Lane, Pool, Route
from jobs.policies.sharding import shard_of_id
from jobs.queries.candidates import due_rows
from jobs.queries.catalog import forget
from jobs.services.requests import parse_request
from jobs.services.submit import submit_job, submit_jobs
from tests.factories import all_shards, make_handler, make_job, make_pool, make_tenant
from tests.support.places import Start, stand, unchanged, watching

pytestmark = pytest.mark.django_db

ACTOR = "token:ab12cd34"
CHARGE = {
    "handler": "billing.charge",
    "payload": {"invoice": 8812, "lines": [1, {"a": 2, "b": 3}]},
}


@pytest.fixture(autouse=True)
def fleet():
    make_handler()
    make_pool()


def submit(tenant=None, **fields):
    request = parse_request({**CHARGE, **fields})
    return submit_job(tenant=tenant or make_tenant(), request=request, actor=ACTOR)


def roll_back(*requests):
    """Submit in one transaction, see each stored, and undo it."""
    with transaction.atomic():
        for fields in requests:
            made = submit(**fields)
            assert Job.objects.filter(pk=made.job_id).exists()
        transaction.set_rollback(True)


def test_a_request_without_options_takes_the_handlers_and_the_fleets_defaults():
    Handler.objects.filter(pk="billing.charge").update(
        max_attempts=9, timeout_seconds=77, retry={"kind": "linear", "base_seconds": 3}
    )
    forget()
    made = submit()
    job = Job.objects.get(pk=made.job_id)
    assert made.created
    assert (job.max_attempts, job.timeout_seconds) == (9, 77)
    assert job.retry == {"kind": "linear", "base_seconds": 3}
    assert (job.lane.name, job.priority, job.request_key) == ("normal", 0, None)
    assert job.created_by == ACTOR
    assert (job.shard, shard_of_id(job.pk)) == (made.shard, made.shard)


def test_a_request_with_options_keeps_them():
    due_at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = submit(
        due_at="2030-01-02T04:04:05+01:00",
        lane="urgent",
        priority=-3,
        max_attempts=2,
        timeout_seconds=1.5,
        retry={"kind": "list", "delays": [1, 2]},
        tags=["vip"],
        reference="cus_431",
        concurrency_key="account-7",
    )
    job = Job.objects.get(pk=made.job_id)
    assert (job.due_at, job.lane.name, job.priority) == (due_at, "urgent", -3)
    assert (job.max_attempts, job.timeout_seconds) == (2, 1.5)
    assert job.retry["delays"] == [1.0, 2.0]
    assert (job.tags, job.reference, job.concurrency_key) == (["vip"], "cus_431", "account-7")
    assert DueEntry.objects.get(pk=job.pk).due_at == due_at


@pytest.mark.parametrize(
    ("priority", "lane"),
    [
        (100, "urgent"),
        (75, "urgent"),
        (74, "high"),
        (25, "high"),
        (24, "normal"),
        (-24, "normal"),
        (-25, "low"),
        (-74, "low"),
        (-75, "background"),
        (-100, "background"),
    ],
)
def test_without_a_lane_the_priority_chooses_one(priority, lane):
    made = submit(priority=priority)
    assert Job.objects.get(pk=made.job_id).lane.name == lane


def test_a_priority_below_every_floor_falls_into_the_lowest_lane():
    Lane.objects.filter(name="background").delete()
    forget()
    made = submit(priority=-100)
    assert Job.objects.get(pk=made.job_id).lane.name == "low"


def test_an_unknown_lane_is_refused_by_name_of_the_field():
    with unchanged(), pytest.raises(ValidationFailed) as refused:
        submit(lane="express")
    (fault,) = refused.value.errors
    assert fault.pointer == "/lane"
    assert "urgent" in fault.reason


def test_an_unknown_handler_is_refused_and_one_that_was_just_advertised_is_not():
    with unchanged(), pytest.raises(UnknownHandler):
        submit(handler="os.system")
    Handler.objects.create(name="os.system", max_attempts=1, timeout_seconds=1, retry={})
    assert submit(handler="os.system").created  # though the reading before did not have it


# Labels, routes, pools


def test_jobs_with_the_same_labels_in_any_order_share_a_route():
    make_pool("eu", labels={"region": "eu", "gpu": "a100"})
    one = submit(labels={"region": "eu", "gpu": "a100"})
    other = submit(labels={"gpu": "a100", "region": "eu"})
    third = submit(labels={"region": "eu"})
    routes = {Job.objects.get(pk=made.job_id).route_id for made in (one, other)}
    (route,) = Route.objects.filter(pk__in=routes)
    assert (route.handler, route.labels_text) == ("billing.charge", "gpu=a100,region=eu")
    assert Job.objects.get(pk=third.job_id).route_id != route.pk


def test_labels_that_no_stored_pool_offers_are_refused_and_name_what_is_missing():
    make_pool("eu", labels={"region": "eu"})
    with unchanged(), pytest.raises(NoMatchingPool) as refused:
        submit(labels={"region": "eu", "gpu": "a100"})
    assert "gpu=a100" in refused.value.detail
    assert not Route.objects.exists()


def test_before_the_first_pool_is_stored_nothing_is_accepted_and_the_answer_says_why():
    Pool.objects.all().delete()
    forget()
    with unchanged(), pytest.raises(NoMatchingPool) as refused:
        submit()
    assert "No pool is stored yet" in refused.value.detail


def test_a_stored_pool_is_enough_even_if_no_worker_of_it_lives():
    with pytest.raises(NoMatchingPool):
        submit(labels={"region": "mars"})
    Pool.objects.create(name="mars", labels={"region": "mars"})
    assert submit(labels={"region": "mars"}).created  # though the reading before did not have it


def test_a_pool_that_came_back_serves_a_route_that_was_refused_without_it():
    make_pool("eu", labels={"region": "eu"})
    submit(labels={"region": "eu"})
    Pool.objects.filter(name="eu").delete()
    forget()
    with pytest.raises(NoMatchingPool):
        submit(labels={"region": "eu"})
    Pool.objects.create(name="eu-2", labels={"region": "eu"})
    assert submit(labels={"region": "eu"}).created


def test_plain_work_is_refused_when_every_pool_is_exclusive():
    Pool.objects.update(labels={"gpu": "a100"}, exclusive_labels={"gpu": "a100"})
    forget()
    with pytest.raises(NoMatchingPool) as refused:
        submit()
    assert "exclusive" in refused.value.detail
    assert submit(labels={"gpu": "a100"}).created


def test_a_route_that_was_rolled_back_is_not_used_again():
    make_pool("eu", labels={"region": "eu", "size": "xl"})
    # The second one reads the catalog again, with the uncommitted route of the first in it.
    roll_back({"labels": {"region": "eu"}}, {"labels": {"size": "xl"}, "lane": "low"})
    made = submit(labels={"region": "eu"})
    assert Route.objects.filter(pk=Job.objects.get(pk=made.job_id).route_id).exists()


# Shards


def test_a_spread_beyond_the_number_of_shards_uses_all_of_them():
    tenant = make_tenant("huge", shard_spread=4096)
    made = submit_jobs(
        tenant=tenant,
        requests=[parse_request({**CHARGE, "request_key": f"k{n}"}) for n in range(128)],
        actor=ACTOR,
    )
    assert {job.shard for job in made} == set(all_shards())


def test_a_tenant_of_spread_one_has_all_its_jobs_in_one_shard():
    made = [submit(request_key=key) for key in ("a", "b", None, None) if key] + [submit()]
    assert len({job.shard for job in made}) == 1


# The request key


def test_kf45_the_same_key_with_the_same_request_is_the_same_job():
    first = submit(request_key="invoice-8812")
    with unchanged():
        again = submit(request_key="invoice-8812")
    assert again == (first.job_id, first.shard, False)


def test_kf45_the_order_and_the_spelling_of_numbers_do_not_make_another_request():
    first = submit(request_key="k", payload={"a": 1, "b": {"c": 2.0, "d": [1e2]}}, priority=1)
    again = parse_request(
        {
            "priority": 1.0,
            "payload": {"b": {"d": [100], "c": 2}, "a": 1.0},
            "request_key": "k",
            "handler": "billing.charge",
        }
    )
    with unchanged():
        found = submit_job(tenant=make_tenant(), request=again, actor=ACTOR)
    assert found.job_id == first.job_id


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"payload": {"invoice": 8813}}, ["payload"]),
        ({"payload": None}, ["payload"]),
        ({"lane": "urgent"}, ["lane"]),
        ({"priority": 30}, ["lane", "priority"]),  # without a lane the priority chooses it
        ({"tags": ["vip"]}, ["tags"]),
        ({"reference": "cus_431"}, ["reference"]),
        ({"max_attempts": 1}, ["max_attempts"]),
        ({"timeout_seconds": 1}, ["timeout_seconds"]),
        ({"retry": {"kind": "fixed", "base_seconds": 1}}, ["retry"]),
        ({"concurrency_key": "account-7"}, ["concurrency_key"]),
        ({"labels": {"region": "eu"}}, ["labels"]),
        ({"handler": "billing.refund"}, ["handler"]),
        ({"delay_seconds": 60}, ["delay_seconds"]),
        ({"due_at": "2030-01-01T00:00:00Z"}, ["due_at"]),
    ],
)
def test_kf45_the_same_key_with_another_request_is_refused_and_names_the_difference(
    change, differs
):
    make_handler("billing.refund")
    make_pool("eu", labels={"region": "eu"})
    first = submit(request_key="invoice-8812")
    with unchanged(), pytest.raises(RequestKeyReused) as refused:
        submit(request_key="invoice-8812", **change)
    assert refused.value.job_id == first.job_id
    assert refused.value.differs == differs


@pytest.mark.parametrize("start", [Start.SUCCEEDED, Start.CANCELLED, Start.DEAD, Start.DISCARDED])
def test_kf45_a_key_stays_taken_after_its_job_has_finished(start):
    it = stand(start, payload={"invoice": 1})
    with unchanged():
        again = submit(request_key=it.request_key, payload={"invoice": 1})
        with pytest.raises(RequestKeyReused):
            submit(request_key=it.request_key, payload={"invoice": 2})
    assert again == (it.job_id, it.shard, False)


def test_kf45_a_changed_default_of_the_server_does_not_turn_a_repeat_into_a_conflict():
    first = submit(request_key="k")
    Handler.objects.update(max_attempts=99, timeout_seconds=1, retry={"kind": "fixed"})
    forget()
    assert submit(request_key="k").job_id == first.job_id


def test_kf45_the_same_moment_in_another_zone_is_the_same_request():
    first = submit(request_key="k", due_at="2030-01-01T00:00:00+01:00")
    moment = datetime(2029, 12, 31, 23, tzinfo=UTC)
    assert submit(request_key="k", due_at="2029-12-31T23:00:00Z").job_id == first.job_id
    assert submit(request_key="k", due_at=moment).job_id == first.job_id


def test_kf45_each_tenant_has_keys_of_its_own():
    first = submit(request_key="k")
    other = submit(request_key="k", tenant=make_tenant("globex"))
    assert other.created
    assert other.job_id != first.job_id


def test_equal_requests_with_one_key_in_one_batch_share_a_job():
    requests = [parse_request({**CHARGE, "request_key": "k"}) for _ in range(3)]
    made = submit_jobs(tenant=make_tenant(), requests=requests, actor=ACTOR)
    assert [job.created for job in made].count(True) == 1
    assert len({job.job_id for job in made}) == 1
    assert Job.objects.count() == 1


def test_different_requests_with_one_key_in_one_batch_are_refused_whole():
    requests = [
        parse_request({**CHARGE, "request_key": "k", "payload": {"n": n}}) for n in range(2)
    ]
    with unchanged(), pytest.raises(RequestKeyReused):
        submit_jobs(tenant=make_tenant(), requests=requests, actor=ACTOR)


# The transaction


def test_kf48_a_job_of_a_transaction_that_rolls_back_never_existed():
    with unchanged():
        roll_back({"request_key": "k"})
    assert submit(request_key="k").created


def test_kf48_five_hundred_jobs_come_in_one_piece():
    requests = [parse_request({**CHARGE, "request_key": f"k{n}"}) for n in range(500)]
    with watching() as change:
        made = submit_jobs(tenant=make_tenant(), requests=requests, actor=ACTOR)
    assert len({job.job_id for job in made}) == len(change.events) == 500


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"handler": "nobody.knows"}, UnknownHandler),
        ({"lane": "express"}, ValidationFailed),
        ({"labels": {"region": "mars"}}, NoMatchingPool),
        ({"request_key": "taken"}, RequestKeyReused),
    ],
)
def test_kf48_one_bad_item_of_five_hundred_stores_nothing(bad, error):
    make_job(request_key="taken", payload={"of": "another"})
    fields = [{**CHARGE, "request_key": f"k{n}"} for n in range(500)]
    fields[377] |= bad
    requests = [parse_request(each) for each in fields]
    with unchanged(), pytest.raises(error):
        submit_jobs(tenant=make_tenant(), requests=requests, actor=ACTOR)


def test_kf48_a_job_of_a_held_transaction_shows_at_its_commit_and_once(committed):
    written, may_commit = threading.Event(), threading.Event()
    tenant = make_tenant()
    first = submit(tenant=tenant)
    made = []

    def hold():
        try:
            with transaction.atomic():
                made.append(submit(tenant=tenant, request_key="held"))
                written.set()
                assert may_commit.wait(30)
        finally:
            connection.close()

    def seen():
        due = [row.job_id for row in due_rows(shards=all_shards(), limit=10)]
        return due, Job.objects.count(), DueEntry.objects.count(), JobEvent.objects.count()

    events = JobEvent.objects.count()
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert written.wait(30)
        meanwhile = seen()
    finally:
        may_commit.set()
        thread.join(30)
    assert meanwhile == ([first.job_id], 1, 1, events)
    assert seen() == ([first.job_id, made[0].job_id], 2, 2, events + 1)


def test_the_number_of_statements_does_not_grow_with_the_batch(django_assert_max_num_queries):
    make_pool("eu", labels={"region": "eu"})
    fields = [{**CHARGE, "labels": {"region": "eu"}}, CHARGE] * 50
    requests = [parse_request(each) for each in fields]
    tenant = make_tenant()
    with django_assert_max_num_queries(20):  # two new routes among them
        submit_jobs(tenant=tenant, requests=requests, actor=ACTOR)
