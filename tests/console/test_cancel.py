"""Cancelling from the job page: what was committed is what is said."""

from __future__ import annotations

from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from jobs.console import views_jobs
from jobs.console.words import member
from jobs.errors import TransitionRefused
from jobs.models import DueEntry, Job, JobEvent, Lease
from jobs.policies.sharding import new_job_id
from jobs.states import Place
from tests.factories import make_job


def cancel(staff: Client, job: Job, **fields: str) -> str:
    """The text of the page that follows."""
    words = {"reason": "order withdrawn", **fields}
    answer = staff.post(reverse("console:cancel", args=[job.pk]), words, follow=True)
    assert answer.redirect_chain == [(reverse("console:job", args=[job.pk]), 302)]
    return unescape(answer.content.decode())


@pytest.mark.parametrize("place", [Place.DUE_ENTRY, Place.PUBLISHED])
def test_a_job_that_nobody_runs_is_cancelled(staff: Client, place: Place) -> None:
    job = make_job(place=place)
    page = cancel(staff, job)
    assert "Cancelled. No worker had the job; it will not run." in page
    assert not DueEntry.objects.exists()
    assert not Lease.objects.exists()
    event = JobEvent.objects.get(job=job, kind="cancelled")
    assert (event.actor, member(event.detail, "reason")) == ("user:anna", "order withdrawn")
    assert "Cancelled by anna while it was" in page


def test_a_running_job_is_asked_to_stop(staff: Client) -> None:
    job = make_job(place=Place.RUNNING)
    page = cancel(staff, job)
    assert "Cancel requested. A worker has the job and was told to stop" in page
    assert Lease.objects.get(job=job).cancel_requested
    assert Job.objects.get(pk=job.pk).cancel_requested_by == "user:anna"
    again = cancel(staff, job)
    assert "A cancel had been requested before" in again
    assert JobEvent.objects.filter(job=job, kind="cancel_requested").count() == 1


def test_a_second_cancel_says_that_it_changed_nothing(staff: Client) -> None:
    job = make_job()
    cancel(staff, job)
    assert "It had been cancelled before; nothing was changed." in cancel(staff, job)


@pytest.mark.parametrize(
    ("place", "status"), [(Place.FINISHED, "succeeded"), (Place.DEAD_LETTER, "dead")]
)
def test_a_finished_job_stays_as_it_is(staff: Client, place: Place, status: str) -> None:
    job = make_job(place=place)
    assert f"the job had already finished ({status})" in cancel(staff, job)
    assert Job.objects.get(pk=job.pk).status == status
    assert not JobEvent.objects.filter(job=job, actor="user:anna").exists()


def test_a_worker_is_left_alone_on_request(staff: Client) -> None:
    running, waiting = make_job(place=Place.RUNNING), make_job()
    assert "Nothing was changed: a worker has the job." in cancel(staff, running, only_waiting="1")
    assert not Lease.objects.get(job=running).cancel_requested
    assert "Cancelled. No worker had the job" in cancel(staff, waiting, only_waiting="1")


def test_a_job_that_keeps_moving_is_a_message(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moving(**_: object) -> None:
        raise TransitionRefused("The job kept moving.", current="moving")

    monkeypatch.setattr(views_jobs, "cancel_job", moving)
    assert "Nothing was changed: The job kept moving." in cancel(staff, make_job())


def test_an_unknown_job_is_a_message(staff: Client) -> None:
    url = reverse("console:cancel", args=[new_job_id(shard=1, unix_ms=1, rand_b=1)])
    answer = staff.post(url, {"reason": "x"}, follow=True)
    assert "There is no job" in answer.content.decode()


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\0b"])
def test_s10_a_cancel_needs_a_reason_that_can_be_kept(staff: Client, reason: str) -> None:
    job = make_job()
    answer = staff.post(reverse("console:cancel", args=[job.pk]), {"reason": reason})
    assert answer.status_code == 400
    assert "Reason: " in answer.content.decode()
    assert Job.objects.get(pk=job.pk).status == "scheduled"
    assert JobEvent.objects.filter(job=job).count() == 1
