"""POST /api/v1/jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import transaction

from jobs.api import views_jobs
from jobs.models import Job, JobEvent
from jobs.policies.sharding import shard_of_id
from jobs.queries.history import job_detail
from tests.api.caller import JOBS, REQUEST, Caller, assert_problem, call, pointers, stored
from tests.factories import make_pool

JOB_MEMBERS = set(
    """id tenant handler status phase due_at lane priority labels attempt max_attempts request_key idempotency_token
    reference tags schedule fire_at payload result last_error cancel lease created_at started_at finished_at start_lag_seconds
    links""".split()  # noqa: SIM905
)


def test_a_new_job_is_answered_with_201_its_address_and_all_members(owner):
    answer = owner.create(
        request_key="invoice-8812",
        due_at="2099-12-01T00:00:00+01:00",
        lane="urgent",
        priority=80,
        reference="cus_431",
        tags=["winter"],
        max_attempts=7,
    )
    job = answer.body
    assert answer.status == 201
    assert answer.headers["Location"] == f"{JOBS}/{job['id']}" == job["links"]["self"]
    assert "Idempotent-Replayed" not in answer.headers
    assert job.keys() == JOB_MEMBERS
    assert job | REQUEST == job
    assert job["tenant"] == "acme"
    assert (job["status"], job["phase"]) == ("scheduled", "upcoming")
    assert job["due_at"] == "2099-11-30T23:00:00Z"
    assert (job["lane"], job["priority"], job["max_attempts"]) == ("urgent", 80, 7)
    assert (job["reference"], job["tags"], job["labels"]) == ("cus_431", ["winter"], {})
    assert job["idempotency_token"] == "acme/invoice-8812"
    assert (job["attempt"], job["lease"], job["cancel"], job["result"]) == (0, None, None, None)


def test_the_job_is_stored_for_the_tenant_of_the_token_in_the_shard_of_its_id(owner):
    job_id = UUID(owner.create().body["id"])
    job = Job.objects.get()
    assert (job.pk, job.shard, job.tenant) == (job_id, shard_of_id(job_id), owner.tenant)
    assert job.created_by == owner.actor
    event = JobEvent.objects.get()
    assert (event.kind, event.actor, event.seq) == ("created", owner.actor, 1)


def test_what_was_answered_can_be_read_at_the_address_given(owner):
    answer = owner.create()
    assert owner.call("GET", answer.headers["Location"]).body == answer.body


def test_a_job_without_a_time_is_due_now(owner):
    job = owner.create().body
    assert job["phase"] == "due"
    assert job["due_at"] == job["created_at"]


def test_a_delay_counts_from_the_creation(owner):
    job = owner.create(delay_seconds=90).body
    due, created = (datetime.fromisoformat(job[name]) for name in ("due_at", "created_at"))
    assert (due - created).total_seconds() == 90
    assert due.tzinfo == UTC


def test_a_job_with_its_payload_elsewhere_shows_the_address_instead(owner):
    body = {"handler": "billing.charge", "payload_ref": "s3://bucket/key?signature=abc"}
    answer = owner.call("POST", JOBS, body)
    assert answer.status == 201
    assert answer.body["payload_ref"] == body["payload_ref"]
    assert "payload" not in answer.body


def test_a_creator_without_the_right_to_payloads_gets_a_masked_answer(owner):
    creator = Caller(scopes=["jobs:write"])
    answer = creator.create(payload={"card": "4111", "amount": 12})
    assert answer.body["payload"] == {"card": "***", "amount": 12}
    assert Job.objects.get().payload == {"card": "4111", "amount": 12}
    ref = creator.call("POST", JOBS, {"handler": "billing.charge", "payload_ref": "s3://b/k?s=1"})
    assert ref.body["payload_ref"] == "***"


def test_the_header_is_the_same_as_the_field(owner):
    first = owner.create(headers={"Idempotency-Key": "k-1"})
    again = owner.create(request_key="k-1")
    both = owner.create(request_key="k-1", headers={"Idempotency-Key": "k-1"})
    assert [first.status, again.status, both.status] == [201, 200, 200]
    assert first.body["id"] == again.body["id"] == both.body["id"]
    assert first.body["request_key"] == "k-1"


def test_header_and_field_that_differ_are_refused(owner):
    answer = owner.create(request_key="k-1", headers={"Idempotency-Key": "k-2"})
    assert_problem(answer, 400, "request_key_mismatch")
    assert stored() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "key", ["", "k" * 256, "tab\there", "Ren\xe9", "\xff\xfe", "non\xc2\xa0breaking"]
)
def test_a_header_is_held_to_the_rules_of_the_field(owner, key):
    answer = owner.create(headers={"Idempotency-Key": key})
    assert_problem(answer, 422, "validation_failed")
    assert pointers(answer) == {"/request_key"}
    assert "Idempotency-Key" in answer.body["errors"][0]["detail"]
    assert stored() == (0, 0, 0, 0)


def test_a_header_in_utf_8_means_the_same_key_as_the_field(owner):
    on_the_wire = "Rechnung-ü-🧾".encode().decode("latin-1")  # as a WSGI server hands it over
    first = owner.create(headers={"Idempotency-Key": on_the_wire})
    assert first.body["request_key"] == "Rechnung-ü-🧾"
    assert owner.create(request_key="Rechnung-ü-🧾").status == 200


def test_two_tenants_can_use_the_same_key(owner, stranger):
    mine, theirs = owner.create(request_key="k-1"), stranger.create(request_key="k-1")
    assert [mine.status, theirs.status] == [201, 201]
    assert mine.body["id"] != theirs.body["id"]


def test_an_unknown_handler_is_refused_by_name(owner):
    answer = owner.create(handler="billing.refund")
    body = assert_problem(answer, 422, "handler_unknown")
    assert pointers(answer) == {"/handler"}
    assert "billing.refund" in body["detail"]
    assert stored() == (0, 0, 0, 0)


def test_labels_that_no_pool_offers_are_refused(owner):
    answer = owner.create(labels={"gpu": "a100"})
    body = assert_problem(answer, 422, "no_pool_matches")
    assert pointers(answer) == {"/labels"}
    assert "gpu=a100" in body["detail"]
    assert stored() == (0, 0, 0, 0)


def test_labels_that_a_pool_offers_are_kept(owner):
    make_pool("gpu", labels={"gpu": "a100"})
    assert owner.create(labels={"gpu": "a100"}).body["labels"] == {"gpu": "a100"}


def test_an_unknown_lane_is_refused_with_the_known_ones(owner):
    answer = owner.create(lane="express")
    body = assert_problem(answer, 422, "validation_failed")
    assert pointers(answer) == {"/lane"}
    assert "urgent" in body["detail"]
    assert stored()[:3] == (0, 0, 0)


def test_every_faulty_field_is_named_at_once(owner):
    answer = owner.create(priority=101, tags="x", due_at="tomorrow", hander="x", delay_seconds=-1)
    assert_problem(answer, 422, "validation_failed")
    assert pointers(answer) == {"/priority", "/tags", "/due_at", "/hander", "/delay_seconds"}


def test_a_body_that_is_no_object_is_refused(owner):
    for body in (b"[]", b'"x"', b"null", b"17"):
        assert_problem(owner.call("POST", JOBS, body), 422, "validation_failed")
    empty = owner.call("POST", JOBS, b"", CONTENT_TYPE="application/json")
    assert_problem(empty, 400, "malformed_json")
    assert_problem(owner.call("POST", JOBS, b'{"handler":'), 400, "malformed_json")


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/jsonx",
    ],
)
def test_any_other_media_type_is_refused(owner, content_type):
    answer = owner.call("POST", JOBS, REQUEST, content_type=content_type)
    assert_problem(answer, 415, "unsupported_media_type")
    assert stored() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"']
)
def test_the_media_type_may_name_its_charset(owner, content_type):
    assert owner.call("POST", JOBS, REQUEST, content_type=content_type).status == 201


def test_an_unknown_query_parameter_is_refused(owner):
    body = assert_problem(
        owner.call("POST", f"{JOBS}?dry_run=1", REQUEST), 400, "unknown_parameter"
    )
    assert "dry_run" in body["detail"]
    assert stored() == (0, 0, 0, 0)


def test_without_a_token_or_the_scope_nothing_is_stored(owner, viewer):
    assert_problem(call("POST", JOBS, REQUEST), 401, "token_missing")
    body = assert_problem(viewer.create(), 403, "scope_missing")
    assert body["scope"] == "jobs:write"
    assert "jobs:write" in body["detail"]
    assert stored() == (0, 0, 0, 0)


def test_201_is_answered_after_the_commit(committed_owner, monkeypatch):
    seen = []

    def look(**arguments):
        seen.append(transaction.get_connection().in_atomic_block)
        return job_detail(**arguments)

    monkeypatch.setattr(views_jobs, "job_detail", look)
    assert committed_owner.create().status == 201
    assert seen == [False]
