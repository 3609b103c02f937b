"""/schedules: try out, create, read, edit by version, pause, resume, run now, delete, and the ledger."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs.clock import database_now
from jobs.models import Job, Occurrence, Schedule
from jobs.policies.times import format_time
from tests.api.caller import Answer, Caller, assert_problem

SCHEDULES = "/api/v1/schedules"
FIELDS = {"name": "nightly", "cron": "*/20 * * * *", "job": {"handler": "billing.charge"}}


def create(owner: Caller, **fields: Any) -> Answer:
    return owner.call("POST", SCHEDULES, {**FIELDS, **fields})


def of(answer: Answer, rest: str = "") -> str:
    return f"{SCHEDULES}/{answer.body['id']}{rest}"


def waiting() -> int:
    return Job.objects.filter(schedule_id__isnull=False, status="scheduled").count()


def test_a_schedule_is_created_with_its_first_jobs_and_read_back(owner):
    made = create(owner, timezone="Europe/Berlin", on_gap="skip")
    assert made.status == 201
    assert made.headers["Location"] == of(made)
    assert made.headers["ETag"] == '"v1"'
    assert waiting() == 3
    read = owner.call("GET", of(made))
    assert (read.status, read.headers["ETag"]) == (200, '"v1"')
    body = read.body
    assert (body["name"], body["version"], body["cron"]) == ("nightly", 1, "*/20 * * * *")
    assert (body["timezone"], body["on_gap"], body["on_overlap"]) == (
        "Europe/Berlin",
        "skip",
        None,
    )
    assert body["effective"] == {
        "timezone": "Europe/Berlin",
        "on_gap": "skip",
        "on_overlap": "first",
    }
    assert body["words"] == "Every 20 minutes"
    assert len(body["next_runs"]) == 5
    assert (body["misfire"], body["paused"], body["fault"]) == ("latest", None, None)
    assert body["created_by"] == owner.actor


def test_kf14_an_edit_needs_the_version_that_was_seen_and_keeps_what_it_does_not_name(owner):
    made = create(owner, job={"handler": "billing.charge", "payload": {"n": 1}}, misfire="skip")
    assert_problem(owner.call("PATCH", of(made), {"cron": "@daily"}), 428, "version_required")
    old = owner.call("PATCH", of(made), {"cron": "@daily"}, headers={"If-Match": '"v2"'})
    assert assert_problem(old, 412, "version_mismatch")["current"] == '"v1"'
    for tag in ("*", "v1", 'W/"v1"', '"v01"', '"v٣"'):
        wrong = owner.call(
            "PATCH", of(made), {}, headers={"If-Match": tag.encode().decode("latin-1")}
        )
        assert_problem(wrong, 412, "version_mismatch")
    edited = owner.call("PATCH", of(made), {"cron": "*/30 * * * *"}, headers={"If-Match": '"v1"'})
    assert (edited.status, edited.headers["ETag"]) == (200, '"v2"')
    assert (edited.body["cron"], edited.body["misfire"]) == ("*/30 * * * *", "skip")
    assert edited.body["job"] == {"handler": "billing.charge", "payload": {"n": 1}}
    assert waiting() == 2
    rule = {"every": "1h", "anchor": "2026-01-01T00:30:00Z"}
    other = owner.call("PATCH", of(made), rule, headers={"If-Match": '"v2"'})
    assert (other.body["cron"], other.body["every"]) == (None, "1h")
    assert waiting() == 1


def test_kf15_pause_and_resume(owner):
    made = create(owner)
    assert_problem(owner.call("POST", of(made, "/pause"), {}), 422, "validation_failed")
    assert_problem(owner.call("POST", of(made, "/resume"), {}), 409, "not_paused")
    end = format_time(database_now() + timedelta(hours=2))
    paused = owner.call("POST", of(made, "/pause"), {"reason": "billing run", "resume_at": end})
    assert paused.status == 200
    assert (paused.body["paused"]["reason"], paused.body["paused"]["by"]) == (
        "billing run",
        owner.actor,
    )
    assert paused.body["next_runs"] == []
    assert waiting() == 0
    past = {"reason": "x", "resume_at": "2020-01-01T00:00:00Z"}
    assert_problem(owner.call("POST", of(made, "/pause"), past), 422, "validation_failed")
    resumed = owner.call("POST", of(made, "/resume"), {})
    assert (resumed.status, resumed.body["paused"]) == (200, None)
    assert waiting() == 3


def test_a_catch_up_makes_what_did_not_run_once(owner):
    made = create(owner, cron="0 * * * *")
    path, day = of(made, "/catch-up"), {"from": "2026-01-05T00:00:00Z"}
    done = owner.call("POST", path, {**day, "until": "2026-01-05T03:00:00Z"})
    assert (done.status, done.body) == (202, {"made": 4, "known": 0, "closed": 0})
    again = owner.call("POST", path, {**day, "until": "2026-01-05T04:00:00Z"})
    assert again.body == {"made": 1, "known": 4, "closed": 0}
    rows = owner.call("GET", of(made, "/occurrences?until=2026-01-06T00:00:00Z")).body["items"]
    assert [row["caught_up"] for row in rows] == [True] * 5
    job = owner.get(rows[0]["job"]).body
    assert (job["schedule"], job["fire_at"]) == (made.body["id"], "2026-01-05T04:00:00Z")


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({}, "/from", "required"),
        ({"from": "2026-01-05"}, "/from", "invalid_time"),
        ({"from": "2026-01-05T00:00:00Z"}, "/until", "required"),
        ({"from": "2026-01-05T00:00:00Z", "until": "2026-01-04T00:00:00Z"}, "/until", "out_of_range"),
        ({"from": "2026-01-05T00:00:00Z", "until": "2099-01-04T00:00:00Z"}, "/until", "out_of_range"),
        ({"from": "2020-01-05T00:00:00Z", "until": "2026-01-04T00:00:00Z"}, "/until", "out_of_range"),
        ({"reason": "x"}, "/reason", "unknown"),
    ],
)  # fmt: skip
def test_a_range_that_cannot_be_caught_up_is_refused_by_field(owner, fields, pointer, code):
    made = create(owner)
    problem = assert_problem(
        owner.call("POST", of(made, "/catch-up"), fields), 422, "schedule_invalid"
    )
    assert (pointer, code) in [(one["pointer"], one["code"]) for one in problem["errors"]]
    assert waiting() == 3


def test_a_job_that_no_schedule_made_names_none(owner):
    body = owner.create().body
    assert (body["schedule"], body["fire_at"]) == (None, None)


def test_a_run_now_is_one_job_by_its_key(owner):
    made = create(owner)
    first = owner.call("POST", of(made, "/trigger"), {"request_key": "now-1"})
    again = owner.call("POST", of(made, "/trigger"), {}, headers={"Idempotency-Key": "now-1"})
    assert (first.status, again.status) == (201, 200)
    assert first.body == again.body
    assert owner.call("GET", first.headers["Location"]).body["request_key"] == "now-1"
    assert owner.call("POST", of(made, "/trigger"), {}).body != first.body


def test_delete_needs_the_version_and_withdraws_what_is_to_come(owner):
    made = create(owner)
    assert_problem(owner.call("DELETE", of(made)), 428, "version_required")
    gone = owner.call("DELETE", of(made), headers={"If-Match": '"v1"'})
    assert (gone.status, gone.content) == (204, b"")
    assert waiting() == 0
    assert_problem(owner.call("GET", of(made)), 404, "not_found")
    assert create(owner).status == 201  # the name is free


def test_the_ledger_names_what_became_of_each_firing(owner):
    made = create(owner, timezone="Asia/Kolkata")
    rows = owner.call("GET", of(made, "/occurrences")).body["items"]
    assert [row["verdict"] for row in rows] == ["pending"] * 3
    assert rows[0]["fire_at"] > rows[-1]["fire_at"]
    assert {row["timezone"] for row in rows} == {"Asia/Kolkata"}
    assert owner.get(rows[0]["job"]).status == 200


def test_an_unknown_handler_is_named_where_it_stands(owner):
    answer = create(owner, job={"handler": "gone.handler"})
    (fault,) = assert_problem(answer, 422, "handler_unknown")["errors"]
    assert fault["pointer"] == "/job/handler"


def test_the_ledger_shows_what_was_and_a_little_of_what_comes(owner):
    made = create(owner, cron="* * * * *")
    past = database_now() - timedelta(minutes=90)
    rows = Occurrence.objects.filter(schedule_id=made.body["id"]).order_by("slot")
    for number, row in enumerate(rows[:30]):
        moment = past + timedelta(minutes=number)
        Occurrence.objects.filter(pk=row.pk).update(due_at=moment, verdict="ran")
    items = owner.call("GET", of(made, "/occurrences")).body["items"]
    verdicts = [row["verdict"] for row in items]
    assert verdicts == ["pending"] * 20 + ["ran"] * 30


def test_kf02_a_preview_stores_nothing_and_says_what_a_gap_does(owner):
    rule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}
    shown = owner.call("POST", f"{SCHEDULES}/preview", {**rule, "after": "2027-03-26T00:00:00Z"})
    assert shown.status == 200
    assert [run["fire_at"] for run in shown.body["runs"]][-1] == "2027-03-28T01:00:00Z"
    assert shown.body["runs"][-1]["words"].endswith("runs at 03:00")
    assert shown.body["shifts"][0]["would_run"]["skip"] == []
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({"cron": "0 0 30 2 *"}, "/cron", "impossible_date"),
        ({"cron": "0 0 * 2 1#5", "timezone": "Europe/Madrid "}, "/timezone", "unknown_timezone"),
        ({"timezone": "UTC+3"}, "/timezone", "unknown_timezone"),
        ({"cron": 5}, "/cron", "wrong_type"),
        ({"every": "5m", "anchor": "2026-01-01T00:00:00Z"}, "/cron", "required"),
        ({"on_gap": "guess"}, "/on_gap", "bad_policy"),
        ({"surprise": 1}, "/surprise", "unknown"),
    ],
)
def test_kf07_kf16_a_bad_rule_is_refused_by_field_before_anything_is_stored(
    owner, fields, pointer, code
):
    rule = {
        name: value for name, value in {**FIELDS, **fields}.items() if name not in ("name", "job")
    }
    for path, body in ((SCHEDULES, {**FIELDS, **fields}), (f"{SCHEDULES}/preview", rule)):
        problem = assert_problem(owner.call("POST", path, body), 422, "schedule_invalid")
        assert (pointer, code) in [(one["pointer"], one["code"]) for one in problem["errors"]]
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("body", [[], "x", None, {"job": []}, {"job": {"handler": None}}])
def test_kf09_a_body_of_another_shape_is_refused(owner, body):
    for path in (SCHEDULES, f"{SCHEDULES}/preview"):
        answer = owner.call("POST", path, body)
        assert 400 <= answer.status < 500, answer


def test_s05_the_schedules_of_another_tenant_are_not_found(owner, stranger):
    made = create(owner)
    tag = {"If-Match": '"v1"'}
    for method, rest, body in (
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/pause", {"reason": "x"}),
        ("POST", "/resume", {}),
        ("POST", "/trigger", {}),
        ("GET", "/occurrences", None),
        ("GET", "/versions", None),
        ("POST", "/catch-up", {"from": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z"}),
    ):
        missing = stranger.call(method, of(made, rest), body, headers=tag)
        assert_problem(missing, 404, "not_found")
        unknown = stranger.call(method, f"{SCHEDULES}/{uuid4()}{rest}", body, headers=tag)
        assert {**missing.body, "instance": ""} == {**unknown.body, "instance": ""}
    assert waiting() == 3


def test_s05_each_operation_needs_its_scope(owner):
    made = create(owner)
    reader = Caller(scopes=["schedules:read"])
    assert reader.call("GET", of(made)).status == 200
    assert_problem(create(reader, name="other"), 403, "scope_missing")
    assert_problem(reader.call("POST", of(made, "/trigger"), {}), 403, "scope_missing")
    writer = Caller(scopes=["schedules:write"])
    assert_problem(writer.call("GET", of(made)), 403, "scope_missing")


def test_secrets_of_the_payload_are_masked_without_the_scope(owner):
    job = {"handler": "billing.charge", "payload": {"password": "hunter2", "n": 1}}
    made = create(owner, job=job)
    seen = Caller(scopes=["schedules:read"]).call("GET", of(made))
    assert b"hunter2" not in seen.content
    assert seen.body["job"]["payload"]["n"] == 1
    assert b"hunter2" in owner.call("GET", of(made)).content


def test_kf44_the_same_request_key_is_the_same_schedule(owner, stranger):
    keyed = {"headers": {"Idempotency-Key": "nightly-1"}}
    made = owner.call("POST", SCHEDULES, FIELDS, **keyed)
    again = owner.call("POST", SCHEDULES, FIELDS, **keyed)
    in_body = create(owner, request_key="nightly-1")
    assert [one.status for one in (made, again, in_body)] == [201, 200, 200]
    assert {one.body["id"] for one in (made, again, in_body)} == {made.body["id"]}
    assert again.headers["ETag"] == '"v1"'
    other = owner.call("POST", SCHEDULES, {**FIELDS, "cron": "@daily"}, **keyed)
    assert assert_problem(other, 422, "request_key_reused")["schedule"] == {"id": made.body["id"]}
    assert stranger.call("POST", SCHEDULES, FIELDS, **keyed).status == 201
    assert Schedule.objects.count() == 2


@pytest.mark.parametrize("key", ["", "x" * 256, 5, "a\nb"])
def test_kf44_a_request_key_that_is_none_stores_nothing(owner, key):
    assert_problem(create(owner, request_key=key), 422, "validation_failed")
    assert not Schedule.objects.exists()
