"""GET /schedules/transitions: which schedules the next changes of their clocks touch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from jobs.clock import database_now
from jobs.models import Schedule, ScheduleVersion
from jobs.policies.times import format_time
from tests.api.caller import Caller, assert_problem
from tests.factories import make_schedule

PATH = "/api/v1/schedules/transitions"
BERLIN: dict[str, Any] = {"timezone": "Europe/Berlin"}


def report(owner: Caller, days: int = 500, query: str = "") -> dict[str, Any]:
    until = format_time(database_now() + timedelta(days=days))
    answer = owner.call("GET", f"{PATH}?until={until}{query}")
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.body
    return body


def test_kf02_each_change_names_the_schedules_it_touches_and_what_their_policy_does(owner):
    make_schedule(owner.tenant, name="gap", cron="30 2 * * *", **BERLIN)
    make_schedule(owner.tenant, name="skips", cron="30 2 * * *", on_gap="skip", **BERLIN)
    make_schedule(owner.tenant, name="merged", cron="0 2,3 * * *", **BERLIN)
    make_schedule(owner.tenant, name="noon", cron="0 12 * * *", **BERLIN)
    make_schedule(owner.tenant, name="hourly", cron="30 * * * *", **BERLIN)
    make_schedule(owner.tenant, name="seconds", cron="* * * * * *", **BERLIN)
    make_schedule(owner.tenant, name="elapsed", every="90m", anchor="2026-01-01T00:00:00Z", cron=None, **BERLIN)  # fmt: skip
    make_schedule(owner.tenant, name="twice", cron="15 2 * * *", on_overlap="both", on_gap="skip", **BERLIN)  # fmt: skip
    make_schedule(owner.tenant, name="elsewhere", cron="30 2 * * *", timezone="Asia/Tokyo")
    found = report(owner)["transitions"]
    assert {one["zone"] for one in found} == {"Europe/Berlin"}
    assert {one["kind"] for one in found} == {"gap", "overlap"}
    gap = next(one for one in found if one["kind"] == "gap")
    assert gap["words"] == "the clock goes from 02:00 ahead to 03:00"
    lines = {one["name"]: one for one in gap["schedules"]}
    assert set(lines) == {"gap", "skips", "merged", "twice"}
    (moved,) = lines["gap"]["runs"]
    assert (moved["fire_at"], moved["local"][11:16]) == (gap["at"], "03:00")
    assert lines["gap"]["policy"] == {"on_gap": "next_valid"}
    (skipped,) = lines["skips"]["runs"]
    assert (skipped["fire_at"], skipped["resolution"]) == (None, "in_gap")
    (merged,) = lines["merged"]["runs"]
    assert (merged["fire_at"], merged["resolution"]) == (gap["at"], "plain")
    overlap = next(one for one in found if one["kind"] == "overlap")
    runs = {one["name"]: one["runs"] for one in overlap["schedules"]}
    assert [run["resolution"] for run in runs["twice"]] == ["first_pass", "second_pass"]
    assert [run["resolution"] for run in runs["gap"]] == ["first_pass"]
    assert [one["at"] for one in found] == sorted(one["at"] for one in found)


def test_a_schedule_that_has_ended_by_then_is_not_touched(owner):
    soon = format_time(database_now() + timedelta(days=2))
    make_schedule(owner.tenant, name="a", cron="30 2 * * *", ends_at=soon, **BERLIN)
    assert report(owner)["transitions"] == []


def test_many_slots_are_cut_and_pages_look_at_so_many_schedules(owner):
    make_schedule(owner.tenant, name="a", cron="*/10 * 2 * * *", **BERLIN)
    make_schedule(owner.tenant, name="b", cron="30 2 * * *", **BERLIN)
    first = report(owner, query="&limit=1")
    assert (first["schedules_looked_at"], first["has_more"]) == (1, True)
    (line,) = next(one for one in first["transitions"] if one["kind"] == "overlap")["schedules"]
    assert (line["name"], len(line["runs"]), line["cut"]) == ("a", 20, True)
    until = first["until"]
    rest = owner.call(
        "GET", f"{PATH}?until={until}&limit=1&cursor={quote(first['next_cursor'])}"
    ).body
    assert {line["name"] for one in rest["transitions"] for line in one["schedules"]} == {"b"}
    assert rest["has_more"] is False


def test_f65_a_schedule_that_cannot_be_read_is_named_and_hides_no_other(owner):
    bad = make_schedule(owner.tenant, name="a", cron="30 2 * * *", **BERLIN)
    ScheduleVersion.objects.filter(schedule=bad).update(cron="never")
    make_schedule(owner.tenant, name="b", cron="30 2 * * *", **BERLIN)
    told = report(owner)
    assert told["unreadable"] == [str(bad.pk)]
    assert [line["name"] for line in told["transitions"][0]["schedules"]] == ["b"]


def test_s05_only_the_own_tenant_is_looked_at_and_nothing_that_was_deleted(owner, stranger):
    made = make_schedule(owner.tenant, name="a", cron="30 2 * * *", **BERLIN)
    assert report(stranger)["schedules_looked_at"] == 0
    Schedule.objects.filter(pk=made.pk).update(deleted_at=database_now())
    assert report(owner)["transitions"] == []


@pytest.mark.parametrize("until", ["2020-01-01T00:00:00Z", "2090-01-01T00:00:00Z", "soon", ""])
def test_a_time_that_is_past_or_too_far_is_refused(owner, until):
    answer = owner.call("GET", f"{PATH}?until={until}")
    assert_problem(answer, 400, "invalid_parameter")


def test_it_looks_60_days_ahead_by_itself(owner):
    make_schedule(owner.tenant)
    until = owner.call("GET", PATH).body["until"]
    ahead = format_time(database_now() + timedelta(days=60))
    assert until[:10] in (ahead[:10], format_time(database_now() + timedelta(days=60))[:10])
