"""GET /jobs/{id}/why and ?include=why: the reasons, to the job's own tenant, and nothing about others but counts."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from jobs.models import DueEntry, Pause
from jobs.queries.catalog import forget
from jobs.services.pausing import pause
from jobs.states import Place
from tests.api.caller import JOBS, assert_problem
from tests.factories import WORKER, make_job, make_scheduler, make_tenant, make_worker


def test_a_waiting_job_says_why_in_a_sentence_and_in_reasons(owner):
    job = make_job()
    answer = owner.get(job.pk, "/why")
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert answer.body["job"] == str(job.pk)
    first = answer.body["reasons"][0]
    assert first.keys() == {"code", "class", "sentence", "evidence"}
    assert (first["code"], first["class"]) == ("no_live_worker", "ineligible")
    assert answer.body["sentence"] == first["sentence"]
    included = owner.get(job.pk, "?include=events,why").body
    assert included["why"]["sentence"] == first["sentence"]
    assert len(included["events"]) == 1
    assert "why" not in owner.get(job.pk).body


@pytest.mark.parametrize("place", list(Place)[1:])
def test_a_job_in_any_place_answers(owner, place):
    assert owner.get(make_job(place=place).pk, "/why").body["reasons"]


def test_s05_the_reasons_of_another_tenants_job_are_not_found(owner, stranger):
    job = make_job()
    missing = stranger.get(job.pk, "/why")
    assert_problem(missing, 404, "not_found")
    unknown = stranger.get(uuid4(), "/why")
    assert {**missing.body, "instance": ""} == {**unknown.body, "instance": ""}
    assert_problem(stranger.get("x", "/why"), 404, "not_found")
    assert_problem(owner.call("POST", f"{JOBS}/{job.pk}/why", {}), 405, "method_not_allowed")
    assert_problem(owner.get(job.pk, "/why?include=events"), 400, "unknown_parameter")


def test_s03_a_tenant_learns_counts_of_others_and_no_id_name_host_or_person(owner):
    make_scheduler()
    other = make_tenant("secretive")
    worker = make_worker(id=WORKER, slots=2, host="host-hidden")
    hidden = [make_job(tenant=other, place=Place.RUNNING) for _ in range(2)]
    hidden += [make_job(tenant=other, lane="urgent", request_key=f"hidden-{n}") for n in range(3)]
    job = make_job(lane="low")
    DueEntry.objects.filter(pk=job.pk).update(due_at=Now() - timedelta(seconds=10))
    pause(
        kind=Pause.Kind.LANE, target="background", actor="user:anna", reason="because of secretive"
    )
    waiting = make_job(lane="background")
    forget()
    told = owner.get(job.pk, "/why")
    assert told.body["reasons"][0]["evidence"]["overtaking_by_lane"] == {"urgent": 3}
    paused = owner.get(waiting.pk, "/why")
    assert paused.body["reasons"][0]["code"] == "lane_paused"
    running = owner.get(make_job(place=Place.RUNNING).pk, "/why")
    for answer in (told, paused, running):
        text = str(answer.body)
        for secret in ("secretive", "hidden", "anna", str(worker.pk), worker.host):
            assert secret not in text
        assert not [one for one in hidden if str(one.pk) in text]
