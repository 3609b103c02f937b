"""The search box: by id, by the beginning of an id, by request key."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from jobs.queries.lookup import find_jobs
from tests.console.rows import clone
from tests.factories import make_job, make_tenant

JOBS = reverse("console:jobs")


@pytest.mark.parametrize(
    "write", [str, lambda i: i.hex, lambda i: str(i).upper(), lambda i: f" {{{i}}} "]
)
def test_an_id_in_any_spelling_opens_its_job(staff: Client, write) -> None:
    job = make_job()
    answer = staff.get(JOBS, {"q": write(job.pk)})
    assert answer["Location"] == reverse("console:job", args=[job.pk])


@pytest.mark.parametrize("digits", [8, 13, 18, 35])
def test_the_beginning_of_an_id_opens_the_only_job_that_has_it(staff: Client, digits: int) -> None:
    job = make_job()
    answer = staff.get(JOBS, {"q": str(job.pk)[:digits]})
    assert answer["Location"] == reverse("console:job", args=[job.pk])


def test_several_hits_are_listed(staff: Client) -> None:
    job = make_job()
    ids = [job.pk, *clone(job, 3)]
    page = staff.get(JOBS, {"q": str(job.pk)[:8]}).content.decode()
    assert "4 jobs answer to" in page
    for found in ids:
        assert str(found) in page


@pytest.mark.parametrize("spread", [1, 64])
def test_a_request_key_opens_its_job(staff: Client, spread: int) -> None:
    job = make_job(tenant=make_tenant("wide", shard_spread=spread), request_key="invoice 8812 / é")
    make_job(tenant=make_tenant("other"), request_key="invoice 8812")
    answer = staff.get(JOBS, {"q": "invoice 8812 / é"})
    assert answer["Location"] == reverse("console:job", args=[job.pk])


def test_a_request_key_that_looks_like_an_id_is_found_too(staff: Client) -> None:
    job = make_job(request_key="deadbeef01")
    assert staff.get(JOBS, {"q": "deadbeef01"})["Location"] == reverse(
        "console:job", args=[job.pk]
    )


def test_one_key_of_two_tenants_lists_both(staff: Client) -> None:
    jobs = [make_job(tenant=make_tenant(name), request_key="same") for name in ("one", "two")]
    page = staff.get(JOBS, {"q": "same"}).content.decode()
    for job in jobs:
        assert str(job.pk) in page


@pytest.mark.parametrize(
    ("sought", "tried"),
    [
        ("01a22b0f-4674-7027-b071-287eef999590", ["as the id", "request key"]),
        ("01a22b0f", ["as the beginning", "request key"]),
        ("01a22b0", ["request key"]),
        ("no such <b>thing</b>", ["request key"]),
    ],
)
def test_no_hit_says_what_was_tried(staff: Client, sought: str, tried: list[str]) -> None:
    make_tenant()
    answer = staff.get(JOBS, {"q": sought})
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "No job found" in page
    assert "<b>thing" not in page
    listed = page[page.index("<ul>") : page.index("</ul>")]
    for words in tried:
        assert words in listed
    assert listed.count("<li>") == len(tried)


@pytest.mark.parametrize("sought", ["\0", "x" * 256, "a\0b"])
def test_s22_a_text_that_cannot_be_stored_is_refused_by_name(staff: Client, sought: str) -> None:
    answer = staff.get(JOBS, {"q": sought})
    assert answer.status_code == 400
    assert "<strong>Find:</strong>" in answer.content.decode()


def test_an_empty_search_shows_the_list(staff: Client) -> None:
    assert staff.get(JOBS, {"q": "  "})["Location"] == JOBS


@pytest.mark.django_db
def test_nothing_is_found_where_there_is_no_tenant() -> None:
    assert find_jobs("some key", tenants=[]).job_ids == []
