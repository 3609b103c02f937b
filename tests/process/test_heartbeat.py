"""The heartbeat keeps live work, and a worker that was frozen past its lease changes nothing when it wakes up."""

from __future__ import annotations

import time

import pytest
from django.db.models import F
from django.db.models.functions import Now

from jobs.models import Job, Lease
from tests.process.stories import (
    assert_at_rest,
    events,
    finished,
    happened,
    result_of,
    story,
    submit,
)
from tests.support.process import PROFILE

pytestmark = pytest.mark.process

TTL = PROFILE["lease_ttl_seconds"]


def test_kf23_a_job_longer_than_three_leases_runs_once_while_an_idle_worker_looks_on(fleet, probe):
    """Even one whose progress no database would store as it stands."""
    fleet.scheduler(), fleet.worker("--slots", "1"), fleet.worker("--slots", "1")
    fleet.ready()
    job = submit(seconds=3.2 * TTL, odd_progress=True)
    left = Lease.objects.filter(job=job).annotate(left=F("expires_at") - Now())
    samples: list[float] = []
    progress: list[object] = []

    def sampled_to_the_end() -> bool:
        for seconds, note in left.values_list("left", "progress"):
            samples.append(seconds.total_seconds())
            progress.append(note)
        return finished(job)

    fleet.until(sampled_to_the_end, "the job is finished")

    assert len(samples) > 20  # two or more between two beats, also where a look takes long
    assert min(samples) > 0, "the lease had run out in a sample"
    assert progress[-1] == {"fraction": 0.0, "note": "half\ufffdway \ufffd"}
    assert story(job) == ["created", "leased", "started", "succeeded"]
    assert [note.what for note in probe.notes(job)] == ["began", "ended"]
    assert Job.objects.get(pk=job).attempt == 1
    assert_at_rest()


def test_kf23_a_heartbeat_rarer_than_a_third_of_the_lease_is_refused_at_the_start(fleet):
    too_rare = TTL / 3 + 0.01
    for process in (
        fleet.scheduler(heartbeat_seconds=too_rare),
        fleet.worker(heartbeat_seconds=too_rare),
    ):
        process.may_end = True
        assert process.exit_code() == 78, fleet.tell("another exit code")
        assert "heartbeat_seconds" in process.log.read_text()


def test_kf25_f06_late_reports_of_a_frozen_worker_are_refused_and_the_new_owners_result_stays(
    fleet, probe
):
    """Three jobs meet the freeze: two end only after it, one of them while its new owner still runs it."""
    fleet.scheduler(), fleet.worker("--slots", "3")
    fleet.ready()
    ended, running = submit(gate="ended"), submit(gate="running")
    told = submit("probe.heed", gate="told")
    jobs = [ended, running, told]
    frozen = fleet.holder(ended)
    fleet.until(lambda: len(probe.notes(what="began")) == 3, "all three run")
    frozen.freeze()
    fleet.worker("--slots", "3")
    fleet.until(lambda: all(happened(one, "started", times=2) for one in jobs), "takeover")
    probe.open("ended", attempt=2)
    probe.open("told", attempt=2)
    fleet.until(lambda: finished(ended, told), "their new owner has ended two of them")
    fleet.until(lambda: probe.notes(running, "began")[1:], "it runs the third")
    woken_at = time.time()
    frozen.thaw()

    stop = fleet.until(lambda: probe.notes(told, "stop seen"), "the frozen handler is told")
    assert stop[0].attempt == 1
    assert stop[0].at - woken_at <= 1.0
    probe.open("ended", attempt=1)
    probe.open("running", attempt=1)
    fleet.until(lambda: all(happened(one, "completion_rejected") for one in jobs), "refusals")
    assert Job.objects.get(pk=running).status == "leased"
    probe.open("running", attempt=2)
    fleet.until(lambda: finished(*jobs), "all are finished")

    for job, reported in ((ended, "succeeded"), (running, "succeeded"), (told, "released")):
        (refused,) = events(job, "completion_rejected")
        first, second = events(job, "started")
        assert (refused.actor, refused.token, refused.lease) == (first.actor, 1, first.lease)
        assert refused.detail["current_token"] == 2
        assert refused.detail["reported"] == reported
        current = str(second.lease) if job == running else None
        assert refused.detail["current_lease"] == current
        assert len(events(job, "succeeded")) == 1
        assert Job.objects.get(pk=job).attempt == result_of(job)["attempt"] == 2
    assert Lease.objects.count() == 0
    assert_at_rest()
