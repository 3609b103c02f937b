"""Lists of schedules, of firings and of versions: pages, filters, and what each line says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.clock import database_now
from jobs.models import Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.policies.times import format_time
from jobs.queries.schedules import lock_schedule
from jobs.services.revision import revise, staleness
from jobs.services.schedules import pause_schedule
from jobs.services.timings import defaults
from tests.api.caller import Answer, Caller, assert_problem
from tests.factories import make_schedule

SCHEDULES = "/api/v1/schedules"


def names(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [one["name"] for one in answer.body["items"]]


def listed(owner: Caller, **query: Any) -> Answer:
    return owner.call("GET", f"{SCHEDULES}?{urlencode(query)}")


def all_pages(owner: Caller, path: str, **query: Any) -> list[Any]:
    """Every item, by following the links; each page is as long as was asked."""
    found: list[Any] = []
    at: str | None = f"{path}?{urlencode(query)}"
    while at is not None:
        answer = owner.call("GET", at)
        assert answer.status == 200, answer
        found += answer.body["items"]
        link = answer.headers.get("Link")
        assert (link is not None) == answer.body["has_more"]
        at = None if link is None else link.removeprefix("<").removesuffix('>; rel="next"')
        if at is not None:
            assert quote(answer.body["next_cursor"]) in at
            assert len(answer.body["items"]) == query["limit"]
    return found


def test_schedules_are_listed_by_name_in_pages_that_neither_lose_nor_repeat(owner, stranger):
    wanted = [f"s{number:02}" for number in range(7)]
    for name in reversed(wanted):
        make_schedule(owner.tenant, name=name)
    make_schedule(stranger.tenant, name="s03")
    shown = [one["name"] for one in all_pages(owner, SCHEDULES, limit=3)]
    assert shown == wanted
    assert names(stranger.call("GET", SCHEDULES)) == ["s03"]
    first = listed(owner, limit=3)
    Schedule.objects.filter(name="s00").update(deleted_at=database_now())  # shifts no page
    rest = owner.call("GET", first.headers["Link"].split(">")[0].removeprefix("<"))
    assert names(rest) == ["s03", "s04", "s05"]


def test_the_filters_say_what_is_wanted(owner):
    make_schedule(owner.tenant, name="digest: berlin", timezone="Europe/Berlin")
    make_schedule(owner.tenant, name="digest: rome", timezone="Europe/Rome")
    paused = make_schedule(owner.tenant, name="held")
    pause_schedule(tenant=owner.tenant, schedule_id=paused.pk, actor="user:anna", reason="x")
    broken = make_schedule(owner.tenant, name="broken")
    Schedule.objects.filter(pk=broken.pk).update(fault={"code": "x", "detail": "password=hunter2"})
    over = make_schedule(owner.tenant, name="over")
    past = database_now() - timedelta(days=1)
    Schedule.objects.filter(pk=over.pk).update(look_at=None, expanded_until=past)
    assert names(listed(owner, state="active")) == ["digest: berlin", "digest: rome"]
    assert names(listed(owner, state="paused")) == ["held"]
    assert names(listed(owner, state="ended")) == ["over"]
    faulty = listed(owner, state="faulty")
    assert names(faulty) == ["broken"]
    assert b"hunter2" not in faulty.content
    assert names(listed(owner, timezone="Europe/Rome")) == ["digest: rome"]
    assert names(listed(owner, name="digest:")) == ["digest: berlin", "digest: rome"]
    assert names(listed(owner, name="digest%")) == []
    assert len(names(listed(owner, handler="billing.charge"))) == 5
    assert names(listed(owner, handler="billing.charge", name="he", state="paused")) == ["held"]
    assert names(listed(owner, handler="other")) == []
    states = {one["name"]: one["state"] for one in owner.call("GET", SCHEDULES).body["items"]}
    assert states == {
        "broken": "faulty",
        "digest: berlin": "active",
        "digest: rome": "active",
        "held": "paused",
        "over": "ended",
    }


def test_a_filter_by_handler_and_zone_looks_at_the_version_in_force_only(owner):
    made = make_schedule(owner.tenant, timezone="Europe/Rome")
    wanted = {"timezone": "Europe/Berlin", "job": {"handler": "billing.charge"}}
    owner.call("PATCH", f"{SCHEDULES}/{made.pk}", wanted, headers={"If-Match": '"v1"'})
    assert names(listed(owner, timezone="Europe/Rome")) == []
    assert names(listed(owner, timezone="Europe/Berlin", handler="billing.charge")) == ["nightly"]


@pytest.mark.parametrize(
    ("query", "code", "parameter"),
    [
        ("state=broken", "invalid_parameter", "state"),
        ("state=", "invalid_parameter", "state"),
        ("state=active&state=paused", "invalid_parameter", "state"),
        ("timezone=Mars", "invalid_parameter", "timezone"),
        ("handler=", "invalid_parameter", "handler"),
        ("handler=%00", "invalid_parameter", "handler"),
        ("name=" + "x" * 201, "invalid_parameter", "name"),
        ("limit=0", "invalid_parameter", "limit"),
        ("limit=201", "invalid_parameter", "limit"),
        ("limit=%D9%A3", "invalid_parameter", "limit"),
        ("limit=" + "9" * 5000, "invalid_parameter", "limit"),
        ("limit=1&limit=2", "invalid_parameter", "limit"),
        ("offset=3", "unknown_parameter", "offset"),
        ("cursor=", "invalid_cursor", "cursor"),
        ("cursor=abc", "invalid_cursor", "cursor"),
        ("cursor=%00", "invalid_cursor", "cursor"),
        ("cursor=" + "x" * 5000, "invalid_cursor", "cursor"),
    ],
)
def test_a_parameter_that_cannot_be_accepted_is_named(owner, query, code, parameter):
    make_schedule(owner.tenant)
    problem = assert_problem(owner.call("GET", f"{SCHEDULES}?{query}"), 400, code)
    assert [fault["parameter"] for fault in problem["errors"]] == [parameter]


def test_a_cursor_belongs_to_one_list_with_one_set_of_filters(owner):
    for name in "abc":
        schedule = make_schedule(owner.tenant, name=name)
    cursor = listed(owner, limit=1, state="active").body["next_cursor"]
    assert names(listed(owner, limit=2, state="active", cursor=cursor)) == ["b", "c"]
    for query in ({"cursor": cursor}, {"cursor": cursor, "state": "paused"}):
        assert_problem(listed(owner, **query), 400, "invalid_cursor")
    other = f"{SCHEDULES}/{schedule.pk}/occurrences?state=active&cursor={quote(cursor)}"
    assert owner.call("GET", other).status == 400


def test_a_line_is_the_schedule_as_it_is_shown_alone_and_the_list_reads_as_often_for_many(owner):
    make_schedule(owner.tenant, name="a", job={"handler": "billing.charge", "payload": {"pin": 1}})
    with CaptureQueriesContext(connection) as few:
        (line,) = owner.call("GET", SCHEDULES).body["items"]
    alone = owner.call("GET", f"{SCHEDULES}/{line['id']}").body
    assert line["next_runs"] == alone["next_runs"][:1]
    assert {**line, "next_runs": alone["next_runs"]} == alone
    for number in range(20):
        make_schedule(owner.tenant, name=f"b{number}")
    with CaptureQueriesContext(connection) as many:
        assert len(owner.call("GET", SCHEDULES).body["items"]) == 21
    assert len(many) == len(few)


def test_f65_a_row_that_cannot_be_read_keeps_no_other_from_the_list(owner):
    make_schedule(owner.tenant, name="a")
    bad = make_schedule(owner.tenant, name="b")
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_scheduleversion set template = ('{\"priority\": 1' || repeat('0', 5000) || '}')::jsonb, "
            "cron = 'never' where schedule_id = %s",
            [bad.pk],
        )
        cursor.execute(
            "update jobs_schedule set fault = ('1' || repeat('0', 5000))::jsonb where id = %s",
            [bad.pk],
        )
    items = owner.call("GET", SCHEDULES).body["items"]
    assert [(one["name"], one["words"]) for one in items] == [("a", "Every hour"), ("b", "")]
    assert items[1]["next_runs"] == []
    versions = owner.call("GET", f"{SCHEDULES}/{bad.pk}/versions").body["items"]
    assert [one["cron"] for one in versions] == ["never"]


def ledger(schedule: Schedule, begin: datetime, count: int, **columns: Any) -> list[Occurrence]:
    return Occurrence.objects.bulk_create(
        Occurrence(
            schedule=schedule,
            shard=schedule.shard,
            version=1,
            fire_at=(at := begin + timedelta(hours=number)),
            known_at=at,
            due_at=at,
            slot=f"{at:%Y-%m-%dT%H:%M:%S}",
            number=1,
            resolution="plain",
            timezone="UTC",
            on_gap="skip",
            on_overlap="first",
            zone_data="2026a",
            **{"verdict": "ran", **columns},
        )
        for number in range(count)
    )


BEGIN = datetime(2026, 5, 1, tzinfo=UTC)


def test_the_ledger_is_read_in_pages_behind_those_to_come(owner):
    made = make_schedule(owner.tenant, cron="*/10 * * * *")
    ledger(made, BEGIN, 7)
    path = f"{SCHEDULES}/{made.pk}/occurrences"
    first = owner.call("GET", f"{path}?limit=3").body
    verdicts = [one["verdict"] for one in first["items"]]
    assert verdicts == ["pending"] * 6 + ["ran"] * 3
    times = [one["known_at"] for one in first["items"]]
    assert times == sorted(times, reverse=True)
    cursor = quote(first["next_cursor"])
    second = owner.call("GET", f"{path}?limit=3&cursor={cursor}").body
    assert [one["known_at"][11:13] for one in second["items"]] == ["03", "02", "01"]
    everything = all_pages(owner, path, limit=4, until="2030-01-01T00:00:00Z")
    assert len(everything) == 13
    assert len({one["known_at"] for one in everything}) == 13


def test_rows_of_one_instant_are_each_on_one_page(owner):
    made = make_schedule(owner.tenant)
    ledger(made, BEGIN, 9, verdict="superseded")
    Occurrence.objects.filter(verdict="superseded").update(known_at=BEGIN)
    found = all_pages(owner, f"{SCHEDULES}/{made.pk}/occurrences", limit=2, verdict="superseded")
    slots = [one["slot"] for one in found]
    assert slots == sorted(set(slots), reverse=True)
    assert len(slots) == 9


def test_the_ledger_is_narrowed_by_verdict_and_time(owner):
    made = make_schedule(owner.tenant)
    ledger(made, BEGIN, 3)
    ledger(made, BEGIN + timedelta(days=1), 2, verdict="skipped", reason="misfire")
    path = f"{SCHEDULES}/{made.pk}/occurrences"

    def seen(**query: str) -> list[str]:
        items = owner.call("GET", f"{path}?{urlencode(query)}").body["items"]
        return [one["fire_at"] for one in items]

    assert seen(verdict="skipped") == ["2026-05-02T01:00:00Z", "2026-05-02T00:00:00Z"]
    assert len(seen(verdict="ran,skipped")) == 5
    window = {"from": "2026-05-01T01:00:00Z", "until": "2026-05-02T01:00:00Z"}
    assert seen(**window)[0] == "2026-05-02T00:00:00Z"
    assert len(seen(**window)) == 3
    assert len(seen(**window, verdict="ran")) == 2
    for query in ("verdict=lost", "from=2026-05-01", "from=x&from=y"):
        assert_problem(owner.call("GET", f"{path}?{query}"), 400, "invalid_parameter")
    plus = owner.call("GET", f"{path}?from=2026-05-01T00:00:00+01:00")
    assert "%2B" in assert_problem(plus, 400, "invalid_parameter")["detail"]


def test_kf02_the_ledger_tells_in_words_what_a_gap_an_overlap_and_a_closed_day_did(owner):
    made = make_schedule(owner.tenant)
    (gap,) = ledger(made, datetime(2025, 3, 9, 7, tzinfo=UTC), 1)
    row = Occurrence.objects.filter(pk=gap.pk)
    path = f"{SCHEDULES}/{made.pk}/occurrences?until=2025-12-31T00:00:00Z"

    def words(**columns: Any) -> str:
        row.update(**columns)
        (item,) = owner.call("GET", path).body["items"]
        return str(item["words"])

    assert words() == ""
    here = {"timezone": "America/New_York", "slot": "2025-03-09T02:30:00"}
    day = "02:30 did not exist on 9 March 2025 in America/New_York"
    assert words(**here, resolution="after_gap") == f"{day}; ran at 03:00"
    assert words(verdict="late") == f"{day}; ran late, due at 03:00"
    assert words(verdict="dropped") == f"{day}; did not run, was due at 03:00"
    gone = {"verdict": "skipped", "reason": "gap", "fire_at": None, "due_at": None}
    assert words(**gone, resolution="in_gap") == f"{day}; did not run"
    twice = {"slot": "2025-11-02T01:30:00", "resolution": "second_pass", "reason": ""}
    at = datetime(2025, 11, 2, 6, 30, tzinfo=UTC)
    assert words(**twice, fire_at=at, due_at=at, known_at=at, verdict="ran").endswith(
        "came twice on 2 November 2025 in America/New_York; this was the second time"
    )
    closed = {"slot": "2025-11-02T01:30:00", "resolution": "plain", "verdict": "skipped"}
    assert words(**closed, reason="calendar", due_at=None) == (
        "Sunday 2 November 2025 was closed; did not run"
    )
    assert words(slot="nonsense") == ""


def test_the_versions_say_who_changed_what_and_when(owner):
    body = {
        "name": "n", "cron": "@daily",
        "job": {"handler": "billing.charge", "payload": {"password": "hunter2", "n": 1}},
    }  # fmt: skip
    made = owner.call("POST", SCHEDULES, body)
    path = f"{SCHEDULES}/{made.body['id']}"
    job = {"handler": "billing.charge", "payload": {"password": "hunter3", "n": 1}}
    owner.call("PATCH", path, {"cron": "@weekly"}, headers={"If-Match": '"v1"'})
    owner.call("PATCH", path, {"job": job}, headers={"If-Match": '"v2"'})
    Tenant.objects.filter(pk=owner.tenant.pk).update(on_gap="skip")
    stored = lock_schedule(schedule_id=made.body["id"], defaults=defaults(), now=None)
    assert stored is not None
    revise(stored, staleness(stored), actor="scheduler:1", now=None)
    items = owner.call("GET", f"{path}/versions").body["items"]
    assert [one["number"] for one in items] == [4, 3, 2, 1]
    assert [one["why"] for one in items] == ["policy", "edited", "edited", "created"]
    assert items[0]["changes"] == {"effective.on_gap": ["next_valid", "skip"]}
    assert items[0]["created_by"] == "scheduler:1"
    assert items[2]["changes"] == {"cron": ["@daily", "@weekly"]}
    assert items[3]["changes"] == {}
    assert items[3]["created_by"] == owner.actor
    assert items[1]["changes"]["job"][1] == job
    seen = Caller(scopes=["schedules:read"]).call("GET", f"{path}/versions")
    assert b"hunter" not in seen.content
    masked = seen.body["items"][1]["changes"]["job"]
    assert masked[0] == masked[1]  # it is told that something changed, not what
    pages = all_pages(owner, f"{path}/versions", limit=1)
    assert pages == items


def test_what_is_in_force_is_what_its_version_was_made_with(owner):
    made = make_schedule(owner.tenant)
    ScheduleVersion.objects.filter(schedule=made).update(in_timezone="Asia/Tokyo")
    body = owner.call("GET", f"{SCHEDULES}/{made.pk}").body
    assert (body["timezone"], body["effective"]["timezone"]) == (None, "Asia/Tokyo")
    assert {one["local"][-6:] for one in body["next_runs"]} == {"+09:00"}


def test_next_runs_end_with_the_bounds_of_the_schedule(owner):
    end = database_now() + timedelta(hours=2)
    path = f"{SCHEDULES}/{make_schedule(owner.tenant, name='a', ends_at=format_time(end)).pk}"
    assert len(owner.call("GET", path).body["next_runs"]) == 2
    soon = make_schedule(owner.tenant, name="c", cron="*/10 * * * *", max_runs=3)
    assert Schedule.objects.get(pk=soon.pk).look_at is None  # all its jobs are made, and to come
    body = owner.call("GET", f"{SCHEDULES}/{soon.pk}").body
    assert (body["state"], len(body["next_runs"])) == ("active", 3)
    assert "c" in names(listed(owner, state="active"))
    assert names(listed(owner, state="ended")) == []
    few = make_schedule(owner.tenant, name="b", max_runs=3)
    shown = owner.call("GET", f"{SCHEDULES}/{few.pk}").body["next_runs"]
    assert len(shown) == 3


def test_kf50_a_page_of_a_long_ledger_reads_an_index_in_its_order(owner):
    made = make_schedule(owner.tenant)
    (row,) = ledger(made, BEGIN, 1)
    columns: list[str] = [
        str(field.column) for field in Occurrence._meta.concrete_fields if field.column not in (
            "id", "fire_at", "known_at", "due_at", "slot",
        )
    ]  # fmt: skip
    copied = ", ".join(columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"insert into jobs_occurrence (fire_at, known_at, due_at, slot, {copied}) "
            f"select at, at, at, to_char(at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS'), {copied} "
            "from jobs_occurrence, generate_series(1, 20000) as series(minutes), "
            "lateral (select known_at - minutes * interval '1 minute' as at) moved where id = %s",
            [row.pk],
        )
        cursor.execute("analyze jobs_occurrence")
    path = f"{SCHEDULES}/{made.pk}/occurrences"
    with CaptureQueriesContext(connection) as queries:
        first = owner.call("GET", path).body
        owner.call("GET", f"{path}?cursor={quote(first['next_cursor'])}")
        owner.call("GET", f"{path}?verdict=ran&until=2026-04-25T00:00:00Z")
    read = [
        one["sql"] for one in queries if 'ORDER BY "jobs_occurrence"."known_at" DESC' in one["sql"]
    ]
    assert len(read) == 3
    for sql in read:
        with connection.cursor() as cursor:
            cursor.execute("explain " + sql)
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "occurrence_newest" in plan, plan
        assert "Sort" not in plan, plan
