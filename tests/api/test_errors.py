"""Every refusal below /api/ is a problem document, whoever refused, and none tells about the inside."""

from __future__ import annotations

import logging

import pytest
from django.db import DataError, InterfaceError, OperationalError

from jobs import errors as domain
from jobs.api.errors import KINDS, Problem, problem_of
from jobs.errors import JobError
from jobs.policies.tokens import mint
from jobs.states import Place
from tests.api.caller import JOBS, REQUEST, assert_problem, call
from tests.factories import make_job

SECRET = "select secret_hash from jobs_apitoken /srv/app/jobs/api.py"


def failing(error):
    def fail(*arguments, **named):
        raise error

    return fail


@pytest.mark.parametrize("debug", [False, True])
def test_s31_a_route_that_is_not_there_is_a_problem(owner, settings, debug):
    settings.DEBUG = debug
    for path in (
        "/api/v1/nothing",
        "/api/",
        "/api/v1/jobs/",
        "/api/v2/jobs",
        "/api/v1/jobs/a/b/c",
    ):
        for method in ("GET", "POST", "DELETE"):
            assert_problem(owner.call(method, path), 404, "not_found")
        assert_problem(call("GET", path), 404, "not_found")  # says the same to everyone


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_s31_a_method_that_is_not_there_is_a_problem(owner, method):
    answer = owner.call(method, JOBS)
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"


def test_s31_what_the_framework_refuses_by_itself_is_a_problem(owner):
    assert_problem(call("GET", JOBS, HTTP_HOST="evil.example"), 400, "bad_request")
    many = "&".join(f"a{n}=1" for n in range(1_001))
    assert_problem(owner.call("POST", f"{JOBS}?{many}", REQUEST), 400, "bad_request")


@pytest.mark.parametrize("debug", [False, True])
def test_s31_a_failure_in_a_view_is_500_without_details_and_logged_with_the_request_id(
    owner, monkeypatch, caplog, settings, debug
):
    settings.DEBUG = debug
    monkeypatch.setattr("jobs.api.views_jobs.submit_job", failing(RuntimeError(SECRET)))
    with caplog.at_level(logging.ERROR):
        answer = owner.create(headers={"X-Request-ID": "call-7"})
    body = assert_problem(answer, 500, "internal")
    assert body["instance"] == "call-7"
    for word in ("select", "jobs_apitoken", "Traceback", ".py", "RuntimeError"):
        assert word.encode() not in answer.content
    (record,) = [record for record in caplog.records if record.getMessage() == "api.failed"]
    assert record.request_id == "call-7"
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        "django.middleware.common.CommonMiddleware.process_request",
        "rest_framework.renderers.JSONRenderer.render",
        "jobs.api.parsers.parse_json",
        "jobs.api.authentication.tokens.parse",
    ],
)
def test_s31_a_failure_anywhere_is_500_without_details(
    owner, monkeypatch, caplog, settings, place, debug
):
    settings.DEBUG = debug
    error = RuntimeError(SECRET)
    monkeypatch.setattr(place, failing(error))
    with caplog.at_level(logging.ERROR):
        answer = owner.create(headers={"X-Request-ID": "call-8"})
    assert_problem(answer, 500, "internal")
    for word in ("select", "jobs_apitoken", "Traceback", ".py", "RuntimeError"):
        assert word.encode() not in answer.content
    logged = [record for record in caplog.records if record.getMessage() == "api.failed"]
    assert [record.request_id for record in logged] == ["call-8"]


def test_s31_a_value_the_database_refuses_is_500_without_its_words(owner, monkeypatch):
    monkeypatch.setattr("jobs.api.views_jobs.submit_job", failing(DataError(SECRET)))
    assert b"select" not in owner.create().content
    assert_problem(owner.create(), 500, "internal")


@pytest.mark.parametrize("error", [OperationalError(SECRET), InterfaceError(SECRET)])
def test_s31_a_database_that_is_away_is_503_with_a_time_to_wait(
    committed, monkeypatch, caplog, error
):
    monkeypatch.setattr("jobs.api.authentication.ApiToken.objects.select_related", failing(error))
    headers = {"Authorization": f"Bearer {mint('live').text}"}
    answer = call("POST", JOBS, REQUEST, headers=headers)
    body = assert_problem(answer, 503, "database_unavailable")
    assert answer.headers["Retry-After"] == str(body["retry_after_seconds"])
    assert b"select" not in answer.content
    (record,) = [record for record in caplog.records if record.getMessage() == "api.unavailable"]
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)


def test_every_answer_has_a_request_id_and_a_sane_one_is_kept(owner):
    job = make_job()
    for answer in (owner.create(), owner.get(job.pk), owner.get("x"), call("GET", "/api/nothing")):
        assert len(answer.headers["X-Request-ID"]) == 32
    assert owner.create().headers["X-Request-ID"] != owner.create().headers["X-Request-ID"]
    sane = "Trace_1.2-3" + "x" * 117
    assert owner.get(job.pk).status == 200
    assert owner.create(headers={"X-Request-ID": sane}).headers["X-Request-ID"] == sane


@pytest.mark.parametrize("odd", ["", " ", "a b", "x" * 129, "é", "a\tb", "<script>", "a;b"])
def test_an_odd_request_id_is_replaced(owner, odd):
    answer = owner.create(headers={"X-Request-ID": odd})
    assert answer.status == 201
    assert answer.headers["X-Request-ID"] != odd
    assert len(answer.headers["X-Request-ID"]) == 32


def test_pages_that_are_not_of_the_api_have_a_request_id_and_stay_html(db):
    answer = call("GET", "/admin/nothing", headers={"X-Request-ID": "call-9"})
    assert answer.headers["X-Request-ID"] == "call-9"
    missing = call("GET", "/nothing")
    assert missing.status == 404
    assert missing.headers["Content-Type"].startswith("text/html")


def test_problems_are_not_kept_by_caches_and_have_the_security_headers(owner):
    for answer in (
        owner.get("x"),
        call("GET", "/api/nothing"),
        call("GET", JOBS, HTTP_HOST="evil.example"),
    ):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "ETag" not in answer.headers


def domain_errors(base: type[JobError] = JobError) -> set[type[JobError]]:
    return {error for child in base.__subclasses__() for error in {child, *domain_errors(child)}}


def test_every_domain_error_that_an_operation_can_meet_has_a_status():
    """Those without one belong to processes, not to callers, and would be answered 500."""
    own = {error for error in domain_errors() if error.__module__ == "jobs.errors"}
    without = {error.__name__ for error in own if error.code not in KINDS}
    assert without <= {"PoolMismatch"}
    assert len(own) > 10


def test_an_unexpected_domain_error_is_internal():
    assert problem_of(JobError("inside")).kind.status == 500
    assert "inside" not in problem_of(JobError("inside")).detail


def test_every_code_of_a_problem_says_what_it_is():
    for code, kind in KINDS.items():
        assert 400 <= kind.status < 600
        assert Problem(code).body("r")["title"] == kind.title != ""


def test_several_faults_are_counted_in_the_sentence():
    faults = [domain.InvalidField(f"/{n}", "wrong", "is wrong") for n in range(3)]
    assert problem_of(domain.ValidationFailed(faults)).detail == "/0: is wrong (2 more)"


def test_a_cancel_refused_for_any_reason_carries_the_job(owner):
    job = make_job(place=Place.FINISHED)
    assert assert_problem(owner.cancel(job.pk), 409, "already_finished")["job"]["id"] == str(
        job.pk
    )


def only_fault(answer):
    (fault,) = answer.body["errors"]
    return fault


@pytest.mark.parametrize(
    ("path", "code", "fault_code"),
    [
        ("?includes=events", "unknown_parameter", "unknown"),
        ("?include=everything", "invalid_parameter", "invalid"),
    ],
)
def test_a_refused_query_parameter_is_named_among_the_errors(owner, path, code, fault_code):
    answer = owner.get(make_job().pk, path)
    assert_problem(answer, 400, code)
    fault = only_fault(answer)
    assert (fault["pointer"], fault["code"]) == ("", fault_code)
    assert fault["parameter"] == path[1:].partition("=")[0]
    assert answer.body["detail"].endswith(f"{fault['detail']}.")


def test_a_refused_content_type_is_named_among_the_errors(owner):
    answer = owner.call("POST", JOBS, REQUEST, content_type="text/plain")
    assert_problem(answer, 415, "unsupported_media_type")
    assert only_fault(answer)["pointer"] == ""
    assert "Content-Type" in only_fault(answer)["detail"]


def test_a_request_key_that_differs_from_the_header_is_named_among_the_errors(owner):
    answer = owner.create(headers={"Idempotency-Key": "one"}, request_key="two")
    assert_problem(answer, 400, "request_key_mismatch")
    assert only_fault(answer)["pointer"] == "/request_key"
    assert "Idempotency-Key" in only_fault(answer)["detail"]
