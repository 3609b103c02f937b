"""A running job's lease is written by its worker and by others at once: no write of one undoes that of another."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.db.models import F
from django.db.models.functions import Now

from jobs.models import Job, Lease
from jobs.transitions.cancel import CancelOutcome, cancel_job
from tests.process.stories import assert_at_rest, finished, story, submit
from tests.support.process import PROFILE

pytestmark = pytest.mark.process

TTL, BEAT = PROFILE["lease_ttl_seconds"], PROFILE["heartbeat_seconds"]
WRITE_SECONDS = 0.2
WRITES = int(3 * TTL / WRITE_SECONDS)


def test_kf27_heartbeats_progress_and_cancels_of_one_lease_do_not_undo_each_other(fleet, probe):
    """The flag is flipped by hand for a while, then a cancel is asked again and again; the handler only counts on."""
    fleet.scheduler(), fleet.worker("--slots", "1"), fleet.worker("--slots", "1")
    fleet.ready()
    job = submit("probe.counts", gate="end")
    fleet.until(lambda: probe.notes(job, "began"), "the handler runs")
    shard, lease = Job.objects.get(pk=job).shard, Lease.objects.filter(job=job)
    samples: list[Lease] = []
    left: list[timedelta] = []
    answers: list[CancelOutcome] = []
    written = False

    def written_often_enough() -> bool:
        nonlocal written
        samples.append(lease.get())
        left.append(lease.values_list(F("expires_at") - Now(), flat=True).get())
        assert samples[-1].cancel_requested == written, "a heartbeat has undone the flag"
        if len(samples) < WRITES / 2:
            written = not written
            lease.update(cancel_requested=written)
        else:
            if not answers:
                lease.update(cancel_requested=False)
            answers.append(cancel_job(shard=shard, job_id=job, actor="user:7", reason="kf27"))
            written = True
        return len(samples) >= WRITES

    fleet.until(written_often_enough, "three leases long", poll_seconds=WRITE_SECONDS)
    probe.open("end")
    fleet.until(lambda: finished(job), "the job is finished")

    assert min(left) > timedelta(0), "the lease had run out in a sample"
    beats = [one.heartbeat_at for one in samples if one.heartbeat_at]
    assert beats == sorted(beats), "an older beat came back"
    ends = [one.expires_at for one in samples]
    assert ends == sorted(ends), "the lease became shorter again"
    # A missed beat is one less than the time has room for. A busy machine may delay one, and no later one catches up.
    seen, room = len(set(beats)), (beats[-1] - beats[0]).total_seconds() / BEAT
    assert seen >= 0.8 * room, f"{room:.1f} beats were due, {seen} came"
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(set(beats)))]
    assert max(gaps) < TTL, f"the lease hung on one beat: {gaps}"
    counts = [int(one.progress["note"]) for one in samples if one.progress]
    assert counts == sorted(counts), "older progress came back"
    assert counts[-1] > counts[0]
    assert answers[0] == CancelOutcome("cancel_requested")
    assert set(answers[1:]) == {CancelOutcome("cancel_requested", already=True)}
    assert story(job) == ["created", "leased", "started", "cancel_requested", "succeeded"]
    assert [note.what for note in probe.notes(job)] == ["began", "ended"]
    assert Job.objects.get(pk=job).cancel_reason == "kf27"
    assert_at_rest()
