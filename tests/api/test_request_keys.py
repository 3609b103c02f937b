"""Request keys: the same request makes one job, however often and however concurrently it is sent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import OperationalError, connections

from jobs.api import views_jobs
from jobs.models import DueEntry, Job, JobEvent
from jobs.queries.catalog import forget
from jobs.transitions.finish import complete_jobs
from tests.api.caller import JOBS, Answer, Caller, assert_problem, pointers, stored
from tests.factories import WORKER, lease_of, make_pool, publish, take


def at_once(owner: Caller, bodies: list[bytes]) -> list[Answer]:
    """All bodies at the same moment, each from a thread with a connection of its own."""
    barrier = Barrier(len(bodies), timeout=30)

    def send(body: bytes) -> Answer:
        try:
            barrier.wait()
            return owner.call("POST", JOBS, body)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(send, bodies))


def assert_one_job(answers: list[Answer]) -> None:
    """One 201, the others 200 with the same id; one row of each kind."""
    assert sorted(answer.status for answer in answers) == [200] * (len(answers) - 1) + [201]
    for answer in answers:
        assert (answer.headers.get("Idempotent-Replayed") == "true") == (answer.status == 200)
    assert len({answer.body["id"] for answer in answers}) == 1
    assert (Job.objects.count(), DueEntry.objects.count()) == (1, 1)
    assert [event.kind for event in JobEvent.objects.all()] == ["created"]


@pytest.mark.race
def test_kf44_the_same_key_at_the_same_time_makes_one_job(committed_owner):
    body = b'{"handler": "billing.charge", "payload": {"invoice": 1}, "request_key": "k-44"}'
    for number in range(3):  # with the catalogue read before and not
        assert_one_job(at_once(committed_owner, [body.replace(b"k-44", b"k-44-%d" % number)] * 20))
        Job.objects.all().delete()
        DueEntry.objects.all().delete()
        JobEvent.objects.all().delete()
        forget()


@pytest.mark.race
def test_kf44_new_labels_at_the_same_time_make_one_route(committed_owner):
    make_pool("gpu", labels={"gpu": "a100"})
    body = b'{"handler": "billing.charge", "labels": {"gpu": "a100"}, "request_key": "k"}'
    assert_one_job(at_once(committed_owner, [body] * 20))


@pytest.mark.race
def test_f20_sixteen_at_once_and_two_different_bodies_make_one_job(committed_owner):
    bodies = [
        b'{"handler": "billing.charge", "payload": %d, "request_key": "k"}' % (n % 2)
        for n in range(16)
    ]
    answers = at_once(committed_owner, bodies)
    statuses = sorted(answer.status for answer in answers)
    assert statuses == [200] * 7 + [201] + [422] * 8
    assert {a.body["code"] for a in answers if a.status == 422} == {"request_key_reused"}
    assert (Job.objects.count(), JobEvent.objects.count()) == (1, 1)


@pytest.mark.race
def test_f20_sixteen_at_once_make_one_job(committed_owner):
    body = b'{"handler": "billing.charge", "payload": null, "request_key": "k"}'
    assert_one_job(at_once(committed_owner, [body] * 16))


def test_f20_a_repeat_after_a_lost_answer_finds_the_job(committed_owner, monkeypatch):

    def lost(**arguments):
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(views_jobs, "job_detail", lost)  # after the commit, before the answer
        answer = committed_owner.create(request_key="k")
        assert_problem(answer, 503, "database_unavailable")
    again = committed_owner.create(request_key="k")
    assert (again.status, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert Job.objects.get().pk.hex == again.body["id"].replace("-", "")


def test_f20_another_body_under_the_key_is_refused_with_the_job_and_what_differs(committed_owner):
    first = committed_owner.create(request_key="k", reference="cus_1").body
    before = stored()
    answer = committed_owner.create(
        request_key="k", reference="cus_1", payload={"invoice": 2}, priority=5
    )
    body = assert_problem(answer, 422, "request_key_reused")
    assert body["job"]["id"] == first["id"]
    assert pointers(answer) >= {"/payload", "/priority"}
    assert "/reference" not in pointers(answer)
    assert stored() == before


def test_kf45_same_key_and_other_body_is_refused_and_the_first_stays(owner):
    first = owner.create(request_key="k", payload={"a": 1, "b": [1.0, 2]}, lane="high")
    assert first.status == 201
    assert_problem(
        owner.create(request_key="k", payload={"a": 2}, lane="high"), 422, "request_key_reused"
    )
    reordered = b'{"lane":"high","request_key":"k","payload":{"b":[1,2e0],"a":1.0},"handler":"billing.charge"}'
    again = owner.call("POST", JOBS, reordered)
    assert (again.status, again.body) == (200, first.body)
    assert stored()[:3] == (1, 1, 1)


def test_kf45_the_key_holds_after_the_job_has_finished(owner):
    first = owner.create(request_key="k").body
    job = Job.objects.get()
    publish(job.pk, job.shard)
    take(job.pk)
    complete_jobs(shards=[job.shard], worker_id=WORKER, results={lease_of(job).pk: {"ok": True}})
    again = owner.create(request_key="k")
    assert (again.status, again.body["id"]) == (200, first["id"])
    assert (again.body["status"], again.body["result"]) == ("succeeded", {"ok": True})
    assert_problem(owner.create(request_key="k", payload=7), 422, "request_key_reused")
    assert Job.objects.count() == 1


def test_the_same_moment_in_another_zone_is_the_same_request(owner):
    owner.create(request_key="k", due_at="2099-12-01T00:00:00+01:00")
    assert owner.create(request_key="k", due_at="2099-11-30T23:00:00Z").status == 200


def test_a_delay_is_compared_as_it_was_sent(owner):
    first = owner.create(request_key="k", delay_seconds=60)
    again = owner.create(request_key="k", delay_seconds=60)
    assert (again.status, again.body["due_at"]) == (200, first.body["due_at"])
    assert_problem(owner.create(request_key="k", delay_seconds=61), 422, "request_key_reused")


@pytest.mark.parametrize(
    "refused",
    [
        {"handler": "nobody.knows"},
        {"priority": 1_000},
        {"labels": {"gpu": "a100"}},
        {"lane": "no"},
    ],
)
def test_a_refusal_does_not_use_up_the_key(owner, refused):
    assert owner.create(request_key="k", **refused).status == 422
    assert owner.create(request_key="k").status == 201


def test_no_key_means_a_new_job_each_time(owner):
    assert owner.create().body["id"] != owner.create().body["id"]
    assert Job.objects.count() == 2


def test_a_cancelled_job_still_holds_its_key(owner):
    first = owner.create(request_key="k").body
    owner.cancel(first["id"])
    again = owner.create(request_key="k")
    assert (again.status, again.body["status"]) == (200, "cancelled")
    assert not DueEntry.objects.exists()
