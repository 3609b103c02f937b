"""/calendars: closed days that schedules follow; and what they do to a preview and to the next runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from django.db import connection

from jobs.models import Calendar
from jobs.policies.recurrence import expand
from jobs.queries.schedule_lists import read_schedules
from jobs.services.preview import run_document
from jobs.services.timings import defaults, timing_of
from jobs.services.upcoming import upcoming
from tests.api.caller import Answer, Caller, assert_problem
from tests.factories import make_schedule

CALENDARS, PREVIEW = "/api/v1/calendars", "/api/v1/schedules/preview"
WORKS = {"name": "works", "days": {"2027-12-24": "Christmas Eve"}, "weekend": ["sat", "sun"]}
ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
SUMMARY:May Day
DTSTART;VALUE=DATE:20270501
RRULE:FREQ=YEARLY;COUNT=3
END:VEVENT
END:VCALENDAR
"""


def create(owner: Caller, **fields: Any) -> Answer:
    return owner.call("POST", CALENDARS, {**WORKS, **fields})


def test_a_calendar_is_created_read_listed_replaced_and_deleted(owner):
    made = create(owner)
    path = made.headers["Location"]
    assert (made.status, made.headers["ETag"], path) == (201, '"v1"', f"{CALENDARS}/works")
    read = owner.call("GET", path)
    assert (read.body, read.headers["ETag"]) == (made.body, '"v1"')
    assert read.body["days"] == WORKS["days"]
    assert (read.body["number"], read.body["created_by"]) == (1, owner.actor)
    (line,) = owner.call("GET", CALENDARS).body["items"]
    assert (line["name"], line["day_count"], "days" in line) == ("works", 1, False)
    tag = {"If-Match": '"v1"'}
    new = owner.call("PUT", path, {"days": {}, "weekend": ["fri"]}, headers=tag)
    assert (new.status, new.headers["ETag"]) == (200, '"v2"')
    assert (new.body["days"], new.body["weekend"]) == ({}, ["fri"])
    assert_problem(owner.call("DELETE", path, headers=tag), 412, "version_mismatch")
    gone = owner.call("DELETE", path, headers={"If-Match": '"v2"'})
    assert gone.status == 204
    assert_problem(owner.call("GET", path), 404, "not_found")


def test_a_calendar_is_read_from_a_file(owner):
    made = create(owner, ics=ICS, days={"2027-05-01": "Labour Day"})
    assert made.body["days"] == {
        "2027-05-01": "Labour Day",
        "2028-05-01": "May Day",
        "2029-05-01": "May Day",
    }


def test_kf14_a_replacement_needs_the_edition_that_was_seen(owner):
    path = create(owner).headers["Location"]
    body: dict[str, Any] = {"days": {}}
    assert_problem(owner.call("PUT", path, body), 428, "version_required")
    for tag in ('"v2"', "*", "v1"):
        stale = owner.call("PUT", path, body, headers={"If-Match": tag})
        assert assert_problem(stale, 412, "version_mismatch")["current"] == '"v1"'
    other = owner.call("PUT", path, {**body, "name": "x"}, headers={"If-Match": '"v1"'})
    assert_problem(other, 422, "validation_failed")
    assert Calendar.objects.count() == 1


def test_a_calendar_that_a_schedule_follows_is_not_deleted(owner):
    path = create(owner).headers["Location"]
    body = {"name": "n", "cron": "0 9 * * *", "calendar": "works"}
    owner.call("POST", "/api/v1/schedules", {**body, "job": {"handler": "billing.charge"}})
    refused = owner.call("DELETE", path, headers={"If-Match": '"v1"'})
    assert "n" in assert_problem(refused, 409, "calendar_in_use")["detail"]
    assert owner.call("GET", path).status == 200


@pytest.mark.parametrize("name", ["a/b", "a b", "ö", "a%2Fb", "..", "x" * 100])
def test_any_name_has_an_address(owner, name):
    made = create(owner, name=name)
    assert owner.call("GET", made.headers["Location"]).body["name"] == name


@pytest.mark.parametrize("name", ["other", "%00", "%ff", "works/", "x" * 3000])
def test_a_name_that_is_none_is_not_found(owner, name):
    create(owner)
    assert_problem(owner.call("GET", f"{CALENDARS}/{name}"), 404, "not_found")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"days": {"2027-02-30": "x"}}, "/days/2027-02-30"),
        ({"days": []}, "/days"),
        ({"weekend": ["saturday"]}, "/weekend"),
        ({"ics": "no calendar"}, "/ics"),
        ({"ics": 5}, "/ics"),
        ({"zone": "UTC"}, "/zone"),
    ],
)
def test_a_bad_calendar_is_refused_by_field(owner, fields, pointer):
    problem = assert_problem(create(owner, **fields), 422, "validation_failed")
    assert pointer in [one["pointer"] for one in problem["errors"]]
    assert not Calendar.objects.exists()


def test_a_name_in_use_is_refused_and_a_file_that_is_too_large(owner):
    create(owner)
    assert_problem(create(owner), 422, "validation_failed")
    large = create(owner, name="large", ics=ICS + "X" * (1 << 20))
    assert_problem(large, 413, "payload_too_large")


def test_s05_the_calendars_of_another_tenant_are_not_found(owner, stranger):
    path = create(owner).headers["Location"]
    for method in ("GET", "PUT", "DELETE"):
        missing = stranger.call(method, path, {"days": {}}, headers={"If-Match": '"v1"'})
        assert_problem(missing, 404, "not_found")
    assert stranger.call("GET", CALENDARS).body["items"] == []
    rule = {"cron": "0 9 * * *", "calendar": "works"}
    assert_problem(stranger.call("POST", PREVIEW, rule), 422, "schedule_invalid")


def test_f65_a_calendar_that_cannot_be_read_hides_no_other_and_can_be_replaced(owner):
    path = create(owner).headers["Location"]
    create(owner, name="other")
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_calendar set days = ('1' || repeat('0', 5000))::jsonb, weekend = '7' where name = 'works'"
        )
    items = owner.call("GET", CALENDARS).body["items"]
    assert [(one["name"], one["day_count"]) for one in items] == [("other", 1), ("works", 0)]
    mended = owner.call("PUT", path, {"weekend": ["sun"]}, headers={"If-Match": '"v1"'})
    assert (mended.status, owner.call("GET", path).body["weekend"]) == (200, ["sun"])


RULE = {
    "cron": "0 9 24 12 *",
    "timezone": "Europe/Berlin",
    "calendar": "works",
    "after": "2027-12-01T00:00:00Z",
    "count": 1,
}
FRIDAY = "Friday 24 December 2027 is closed"


@pytest.mark.parametrize(
    ("moves", "due_at", "words"),
    [
        ("skip", None, f"{FRIDAY}; does not run"),
        (
            "next_business_day",
            "2027-12-27T08:00:00Z",
            f"{FRIDAY}; runs on Monday 27 December 2027 at 09:00",
        ),
        (
            "previous_business_day",
            "2027-12-23T08:00:00Z",
            f"{FRIDAY}; runs on Thursday 23 December 2027 at 09:00",
        ),
    ],
)
def test_a_preview_says_what_a_closed_day_does(owner, moves, due_at, words):
    create(owner)
    (run,) = owner.call("POST", PREVIEW, {**RULE, "on_holiday": moves}).body["runs"]
    assert run["fire_at"] == "2027-12-24T08:00:00Z"
    assert (run["due_at"], run["words"]) == (due_at, words)


def test_a_preview_says_when_another_run_takes_the_place(owner):
    create(owner)
    daily = {**RULE, "cron": "0 9 * * *", "on_holiday": "next_business_day", "count": 4}
    runs = owner.call("POST", PREVIEW, {**daily, "after": "2027-12-22T23:00:00Z"}).body["runs"]
    assert [run["due_at"] for run in runs] == ["2027-12-23T08:00:00Z", None, None, None]
    assert runs[1]["words"] == f"{FRIDAY}; another run takes its place"


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({"calendar": "none"}, "/calendar", "unknown"),
        ({"calendar": 5}, "/calendar", "wrong_type"),
        ({"calendar": None, "on_holiday": "next_business_day"}, "/on_holiday", "conflict"),
        ({"on_holiday": "guess"}, "/on_holiday", "bad_policy"),
        ({"cron": "0 * * * *", "on_holiday": "next_business_day"}, "/on_holiday", "conflict"),
    ],
)
def test_a_preview_with_a_bad_calendar_is_refused_by_field(owner, fields, pointer, code):
    create(owner)
    problem = assert_problem(
        owner.call("POST", PREVIEW, {**RULE, **fields}), 422, "schedule_invalid"
    )
    assert [(one["pointer"], one["code"]) for one in problem["errors"]] == [(pointer, code)]


def test_the_next_runs_of_a_schedule_follow_its_calendar_as_a_preview_does(owner):
    create(owner, weekend=["mon", "tue", "wed", "thu", "sat"], days={})
    rule = {"cron": "0 9 * * *", "calendar": "works", "on_holiday": "next_business_day"}
    job = {"handler": "billing.charge"}
    made = owner.call("POST", "/api/v1/schedules", {**rule, "name": "n", "job": job})
    foreseen = owner.call("POST", PREVIEW, {**rule, "count": 5}).body["runs"]
    assert made.body["next_runs"] == foreseen
    assert any(one["words"] for one in foreseen)
    (line,) = owner.call("GET", "/api/v1/schedules").body["items"]
    runs = [one for one in foreseen if one["due_at"]]
    assert line["next_runs"] == runs[:1]  # of a list only one that runs


@pytest.mark.parametrize("moves", ["skip", "next_business_day", "previous_business_day"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("cron", ["*/30 9-17 * * *", "30 2 * * *", "0 0 1,15 * *"])
def test_the_next_run_of_a_list_is_the_first_that_runs_of_all(owner, moves, zone, cron):
    create(owner, weekend=["sat", "sun"], days={f"2027-03-{day:02}": "" for day in range(20, 32)})
    made = make_schedule(
        owner.tenant, cron=cron, timezone=zone, calendar="works", on_holiday=moves
    )
    (stored,) = read_schedules([made.pk], defaults=defaults()).values()
    timing = timing_of(stored)
    for day in (18, 20, 26, 27, 28, 31):
        after = datetime(2027, 3, 1, 22, tzinfo=UTC) + timedelta(days=day)
        found = upcoming(stored, after=after, count=2, running=True).runs
        whole = expand(timing.recurrence, after, after + timedelta(days=200))
        runs = (run_document(timing, one) for one in whole if timing.due_at(one) is not None)
        assert found == list(islice(runs, 2))
