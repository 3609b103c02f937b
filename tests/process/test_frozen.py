"""Processes frozen beyond what they own: what they still do when they wake up is refused, or changes nothing."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from uuid import UUID

import psutil
import pytest
from django.db.models.functions import Now

from jobs.database import rows
from jobs.models import Job, Lease, SchedulerNode, Shard
from tests.process.probes.notes import Probe
from tests.process.stories import (
    assert_at_rest,
    finished,
    happened,
    histories,
    result_of,
    submit,
    submit_many,
)
from tests.process.test_snapshots import LOCKED, PUBLISH_TEXT
from tests.support.process import PROFILE, Fleet, Process
from tests.support.proxy import Proxy
from tests.support.receivers import Fencing

pytestmark = pytest.mark.process

# Workers are frozen all at once, in rounds; so are the schedulers. 20 of them are promised (PROCESS_KILLS=200).
FROZEN_WORKERS, WORKER_ROUNDS = 10, 5
FROZEN_SCHEDULERS, SCHEDULER_ROUNDS = 5, 4 if os.environ.get("PROCESS_KILLS") else 1
FREEZE_SECONDS = PROFILE["lease_ttl_seconds"] + 1.5
STOP_SECONDS = 1.0
LATE_FREEZES = 10 if os.environ.get("PROCESS_KILLS") else 2  # of each kind, one after the other
LATE_CLAIM = "claim.claim_batch:before=stop"
SHOPS = [f"shop-{number}" for number in range(64)]  # in all shards


@pytest.mark.timeout(240)
def test_f06_i17_what_frozen_workers_report_late_is_refused_and_their_late_effects_are_fenced(
    fleet, probe
):
    """Each is frozen with two jobs. One reports as soon as it wakes up, the other goes on until it is told to stop."""
    fleet.scheduler()
    frozen = [fleet.worker("--slots", "2") for _ in range(FROZEN_WORKERS)]
    fleet.ready()
    heir = fleet.worker("--slots", str(2 * FROZEN_WORKERS))
    fleet.ready()
    jobs = [
        job
        for number in range(WORKER_ROUNDS)
        for job in _freeze(fleet, probe, frozen, heir, f"round-{number}")
    ]

    sleepers = {one.pid for one in frozen}
    for job, story in histories(jobs).items():
        *_, stale, current = (one for one in story if one.kind == "started")
        (refused,) = (one for one in story if one.kind == "completion_rejected")
        (succeeded,) = (one for one in story if one.kind == "succeeded")
        assert refused[2:5] == stale[2:5], "not the actor, lease and token that were lost"
        assert refused.detail["current_token"] == current.token == succeeded.token
        assert current.token == (stale.token or 0) + 1
        assert refused.detail["current_lease"] in (None, str(current.lease))
        assert succeeded.actor == current.actor != stale.actor
        assert result_of(job)["pid"] == heir.pid
        stale_note = next(one for one in probe.notes(job, "began") if one.attempt == stale.attempt)
        assert stale_note.pid in sleepers
    deliveries = Fencing(fleet.folder / "fencing.log")
    for job in jobs:
        sent = deliveries.deliveries(job)
        assert [one.applied for one in sent] == [True, False]
        assert sent[0].lease_token > sent[1].lease_token
    assert not Lease.objects.exists()
    assert_at_rest()


def _freeze(
    fleet: Fleet, probe: Probe, frozen: list[Process], heir: Process, gate: str
) -> list[UUID]:
    """Freeze them while they run two jobs each, let the heir do all of it, and wake them up."""
    count = FROZEN_WORKERS
    heir.freeze()  # only so long that the others have all the jobs
    late = submit_many(count, "probe.stubborn", gate=f"{gate}-late")
    told = submit_many(count, "probe.stubborn", gate=f"{gate}-told")
    jobs = [*late, *told]
    running = Lease.objects.running().filter(job__in=jobs)
    fleet.until(
        lambda: (
            running.count()
            == len({n.job_id for n in probe.notes(what="began")} & {*jobs})
            == len(jobs)
        ),
        "all of them run",
        poll_seconds=0.05,
    )
    for one in frozen:
        one.freeze()
    frozen_at = time.monotonic()
    heir.thaw()
    probe.open(f"{gate}-late")
    probe.open(f"{gate}-told", heir.pid)
    fleet.until(lambda: finished(*jobs), "the heir has done all of them", poll_seconds=0.05)
    fleet.until(lambda: time.monotonic() > frozen_at + FREEZE_SECONDS, "the freeze is over")
    woken_at = time.time()
    for one in frozen:
        one.thaw()
    fleet.until(
        lambda: all(happened(job, "completion_rejected") for job in jobs),
        "all late reports are refused",
        poll_seconds=0.05,
    )
    stops = [note for note in probe.notes(what="stop seen") if note.job_id in told]
    assert {note.job_id for note in stops} == {*told}
    assert max(note.at for note in stops) - woken_at <= STOP_SECONDS
    return jobs


@pytest.mark.timeout(60 + 60 * SCHEDULER_ROUNDS)
def test_f07_what_schedulers_claim_after_they_lost_their_shards_is_claimed_once(fleet, probe):
    """Each stops with a batch in its hands, and wakes up while its heir claims the same jobs."""
    heir = fleet.scheduler()
    fleet.worker("--slots", "4")
    fleet.ready()
    jobs = [job for _ in range(SCHEDULER_ROUNDS) for job in _freeze_schedulers(fleet, heir)]

    for job, story in histories(jobs).items():
        assert [one.kind for one in story] == ["created", "leased", "started", "succeeded"]
        assert len(probe.notes(job, "began")) == 1
    assert_at_rest()


def _freeze_schedulers(fleet: Fleet, heir: Process) -> list[UUID]:
    frozen = [fleet.scheduler(failpoints=LATE_CLAIM) for _ in range(FROZEN_SCHEDULERS)]
    fleet.ready()
    jobs = [job for shop in SHOPS for job in submit_many(4, tenant=shop, seconds=0.05)]
    fleet.until(lambda: all(map(_is_stopped, frozen)), "all have a batch and are frozen")
    # The server ends their transactions after 3 s and the heir would have all jobs: on a slow machine there is no time
    # for the leases of the shards to run out by themselves.
    for node in SchedulerNode.objects.filter(pid__in=[one.pid for one in frozen]):
        Shard.objects.filter(owner=node.pk).update(expires_at=Now() - timedelta(seconds=1))
        SchedulerNode.objects.filter(pk=node.pk).update(expires_at=Now() - timedelta(seconds=1))
    fleet.until(lambda: _owns_all_shards(heir), "the heir has all shards")
    waiting = Job.objects.filter(pk__in=jobs, status="scheduled")
    assert waiting.exists(), "nothing is left to claim twice"
    for one in frozen:
        one.thaw()
    fleet.until(lambda: finished(*jobs), "all jobs are finished")
    fleet.ready()  # they have gone on past the batch, and own shards again
    for one in frozen:
        one.kill()
    return jobs


@pytest.mark.timeout(60 + 30 * LATE_FREEZES)
@pytest.mark.parametrize("moment", ["before its claim", "in the middle of its claim"])
def test_f07_what_a_scheduler_claims_after_its_heir_has_claimed_it_all_is_refused(
    fleet, database_url, moment
):
    """Its ownership runs out by itself; so does its transaction, with the locks of the claim."""
    heir = fleet.scheduler()
    fleet.worker("--slots", "8")
    fleet.ready()
    actor = f"scheduler:{SchedulerNode.objects.get(pid=heir.pid).pk}"
    jobs = [
        job for _ in range(LATE_FREEZES) for job in _freeze_one(fleet, heir, moment, database_url)
    ]

    for story in histories(jobs).values():
        assert [one.kind for one in story] == ["created", "leased", "started", "succeeded"]
        assert story[1].actor == actor, "a late claim was accepted"
    assert_at_rest()


def _freeze_one(fleet: Fleet, heir: Process, moment: str, database_url: str) -> list[UUID]:
    """Freeze a scheduler that is about to claim, or has locked what it claims, until its heir is through with all."""
    with Proxy(database_url) as proxy:
        if moment == "before its claim":
            frozen = fleet.scheduler(failpoints=LATE_CLAIM)
            fleet.ready()
            jobs = [submit(tenant=shop) for shop in SHOPS]
            fleet.until(lambda: _is_stopped(frozen), "it has a batch and is frozen")
        else:
            frozen = fleet.scheduler(DATABASE_URL=proxy.url)
            fleet.ready()
            proxy.hold_link_at(PUBLISH_TEXT)
            jobs = [submit(tenant=shop) for shop in SHOPS]
            fleet.until(proxy.trapped.is_set, "it has locked its batch")
            frozen.freeze()
            assert rows(LOCKED, {})[0][0] >= 1, "it holds no claim"
        fleet.until(lambda: _owns_all_shards(heir), "its shards are the heir's")
        fleet.until(lambda: finished(*jobs), "the heir has claimed all")
        frozen.thaw()
        proxy.release()
        fleet.ready()  # it has gone on past its claim, and owns shards again
        if moment != "before its claim":
            assert "loop.failed" in [line.get("event") for line in frozen.logged()]
        frozen.kill()
    return jobs


def _owns_all_shards(process: Process) -> bool:
    node = SchedulerNode.objects.get(pid=process.pid)
    return Shard.objects.filter(owner=node.pk).count() == Shard.objects.count()


def _is_stopped(process: Process) -> bool:
    return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
