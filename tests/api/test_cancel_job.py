"""POST /api/v1/jobs/{id}/cancel."""

from __future__ import annotations

import pytest

from jobs.errors import TransitionRefused
from jobs.models import DueEntry, Job, JobEvent, Lease
from jobs.policies.sharding import new_job_id
from jobs.states import JobStatus, Place
from tests.api.caller import JOBS, Caller, assert_problem, call, pointers
from tests.factories import lease_of, make_job


@pytest.mark.parametrize("place", [Place.DUE_ENTRY, Place.PUBLISHED])
def test_a_job_that_nobody_runs_is_cancelled_at_once(owner, place):
    job = make_job(place=place)
    answer = owner.cancel(job.pk)
    assert (answer.status, answer.body) == (200, {"outcome": "cancelled"})
    job.refresh_from_db()
    assert (job.status, job.cancel_reason) == (JobStatus.CANCELLED, "order withdrawn")
    assert job.cancel_requested_by == owner.actor
    assert not DueEntry.objects.exists()
    assert not Lease.objects.exists()
    event = JobEvent.objects.order_by("-seq")[0]
    assert (event.kind, event.actor) == ("cancelled", owner.actor)
    assert (event.detail or {})["reason"] == "order withdrawn"


def test_the_worker_of_a_running_job_is_asked(owner):
    job = make_job(place=Place.RUNNING)
    answer = owner.cancel(job.pk)
    assert (answer.status, answer.body) == (202, {"outcome": "cancel_requested"})
    assert lease_of(job).cancel_requested
    assert owner.get(job.pk).body["phase"] == "cancelling"


@pytest.mark.parametrize(
    ("place", "status", "outcome"),
    [(Place.DUE_ENTRY, 200, "cancelled"), (Place.RUNNING, 202, "cancel_requested")],
)
def test_a_repeated_cancel_says_that_it_was_done_already(owner, place, status, outcome):
    job = make_job(place=place)
    owner.cancel(job.pk)
    events = JobEvent.objects.count()
    again = owner.cancel(job.pk, reason="once more")
    assert (again.status, again.body) == (status, {"outcome": outcome, "already": True})
    assert JobEvent.objects.count() == events
    assert Job.objects.get().cancel_reason == "order withdrawn"


@pytest.mark.parametrize(
    ("place", "status"), [(Place.FINISHED, "succeeded"), (Place.DEAD_LETTER, "dead")]
)
def test_a_finished_job_is_refused_and_shown(owner, place, status):
    job = make_job(place=place)
    body = assert_problem(owner.cancel(job.pk), 409, "already_finished")
    assert body["job"] == owner.get(job.pk).body
    assert body["job"]["status"] == status
    assert Job.objects.get().cancel_requested_at is None


def test_the_job_in_a_refusal_is_masked_like_everywhere(owner):
    job = make_job(place=Place.FINISHED, payload={"card": "4111"})
    body = assert_problem(Caller(scopes=["jobs:cancel"]).cancel(job.pk), 409, "already_finished")
    assert body["job"]["payload"] == {"card": "***"}


def test_a_caller_can_refuse_to_disturb_a_running_job(owner):
    job = make_job(place=Place.RUNNING)
    body = assert_problem(owner.cancel(job.pk, "?if_running=refuse"), 409, "not_cancellable_state")
    assert body["job"]["phase"] == "running"
    assert not lease_of(job).cancel_requested
    assert owner.cancel(job.pk, "?if_running=ask").status == 202


@pytest.mark.parametrize("place", [Place.DUE_ENTRY, Place.PUBLISHED])
def test_refusing_to_disturb_does_not_matter_when_nobody_runs_it(owner, place):
    assert owner.cancel(make_job(place=place).pk, "?if_running=refuse").body == {
        "outcome": "cancelled"
    }


def test_a_job_that_kept_moving_is_a_conflict(owner, monkeypatch):
    def moving(**arguments):
        raise TransitionRefused("The job kept moving.", current="moving")

    monkeypatch.setattr("jobs.api.views_jobs.cancel_job", moving)
    assert_problem(owner.cancel(make_job().pk), 409, "not_cancellable_state")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/reason"),
        ({"reason": ""}, "/reason"),
        ({"reason": "  "}, "/reason"),
        ({"reason": None}, "/reason"),
        ({"reason": 5}, "/reason"),
        ({"reason": "x" * 1_001}, "/reason"),
        ({"reason": "x", "status": "cancelled"}, "/status"),
        ([], ""),
    ],
)
def test_a_body_that_breaks_the_rules_is_refused_and_changes_nothing(owner, body, pointer):
    job = make_job()
    answer = owner.call("POST", f"{JOBS}/{job.pk}/cancel", body)
    assert_problem(answer, 422, "validation_failed")
    assert pointers(answer) == {pointer}
    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_a_reason_that_cannot_be_stored_is_refused(owner):
    job = make_job()
    for text in (rb'{"reason": "a\u0000b"}', rb'{"reason": "\ud800"}'):
        answer = owner.call("POST", f"{JOBS}/{job.pk}/cancel", text)
        assert_problem(answer, 400, "malformed_json")
        assert pointers(answer) == {"/reason"}
    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_a_reason_of_any_script_is_kept(owner):
    job = make_job()
    assert owner.cancel(job.pk, reason="הוזמן בטעות 🙈").status == 200
    assert owner.get(job.pk).body["cancel"]["reason"] == "הוזמן בטעות 🙈"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?if_running=kill", "invalid_parameter"),
        ("?if_running=", "invalid_parameter"),
        ("?if_running=ask,refuse", "invalid_parameter"),
        ("?if_running=ask&if_running=refuse", "invalid_parameter"),
        ("?force=1", "unknown_parameter"),
        ("?include=events", "unknown_parameter"),
    ],
)
def test_a_query_parameter_that_is_not_known_is_refused(owner, query, code):
    job = make_job()
    assert_problem(owner.cancel(job.pk, query), 400, code)
    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_s05_a_foreign_job_cannot_be_cancelled_and_looks_like_none(owner, stranger):
    job = make_job(tenant=owner.tenant)
    unknown = new_job_id(shard=job.shard, unix_ms=1, rand_b=1)
    bodies = [
        {**assert_problem(stranger.cancel(name), 404, "not_found"), "instance": None}
        for name in (job.pk, unknown, "x")
    ]
    assert bodies[0] == bodies[1] == bodies[2]
    job.refresh_from_db()
    assert (job.status, job.cancel_requested_at) == (JobStatus.SCHEDULED, None)


def test_without_a_token_or_the_scope_nothing_is_cancelled(owner):
    job = make_job()
    path = f"{JOBS}/{job.pk}/cancel"
    assert_problem(call("POST", path, {"reason": "x"}), 401, "token_missing")
    others = Caller(scopes=["jobs:read", "jobs:write", "payload:read"])
    assert assert_problem(others.cancel(job.pk), 403, "scope_missing")["scope"] == "jobs:cancel"
    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_any_other_media_type_is_refused(owner):
    path = f"{JOBS}/{make_job().pk}/cancel"
    answer = owner.call(
        "POST", path, b"reason=x", content_type="application/x-www-form-urlencoded"
    )
    assert_problem(answer, 415, "unsupported_media_type")
