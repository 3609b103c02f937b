"""Where work goes, with real processes: pools without workers, two releases side by side, shards that change hands."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from jobs.database import rows
from jobs.models import DueEntry, Job, JobEvent, Lane, SchedulerNode, Shard, Worker
from jobs.policies.simulation import Arrival, Settings, simulate
from jobs.services.fleet import ensure_pool
from jobs.services.requests import parse_request
from jobs.services.submit import submit_jobs
from tests.factories import make_tenant
from tests.process.probes.release import RELEASE
from tests.process.stories import (
    assert_at_rest,
    database_now,
    events,
    finished,
    histories,
    seconds_between,
    submit,
    submit_many,
)
from tests.process.test_scheduler_killed import TAKEOVER_SECONDS, ShardWatch
from tests.support.process import PROFILE

pytestmark = pytest.mark.process

RAN = ["created", "leased", "started", "succeeded"]
START_SECONDS = 5.0  # from a worker that can do it to the start of work that waited for one
MOVES, SEED = 200, 21


def test_kf42_work_for_a_pool_without_workers_starts_soon_after_one_comes_and_ran_nowhere_else(
    fleet,
):
    ensure_pool(name="mars", labels={"region": "mars"})
    fleet.scheduler(), fleet.worker("--slots", "4")
    fleet.ready()
    waiting = submit(labels={"region": "mars"})
    other = submit()
    fleet.until(lambda: finished(other), "work for the other pool is done")
    assert DueEntry.objects.filter(job=waiting).exists()
    worker = fleet.worker("--pool", "mars", "--labels", "region=mars", "--slots", "1")
    fleet.until(lambda: finished(waiting), "it has run")
    row = Worker.objects.get(pid=worker.pid)
    (started,) = events(waiting, "started")
    assert seconds_between(row.started_at, started.at) <= START_SECONDS
    assert started.actor == f"worker:{row.pk}"
    assert_at_rest()


def test_f13_kf43_work_that_only_the_new_release_knows_waits_for_it_and_burns_no_attempt(fleet):
    """Both in one pool. While only the old one is there the work waits, and stays waiting when others come and go."""
    fleet.scheduler()
    new = fleet.worker("--slots", "4")
    fleet.ready()
    fleet.until(lambda: "probe.new" in Worker.objects.get().handlers, "it is known")
    new.kill()
    old = fleet.worker("--slots", "4", **{RELEASE: "old"})
    fleet.until(lambda: Worker.objects.filter(pid=old.pid).exists(), "the old release is there")
    Worker.objects.exclude(pid=old.pid).delete()  # the killed one no longer counts as alive
    jobs = submit_many(20, "probe.new")
    plain = submit()
    fleet.until(lambda: finished(plain), "the old release works")
    assert DueEntry.objects.filter(job__in=jobs).count() == 20
    again = fleet.worker("--slots", "4")
    fleet.until(lambda: finished(*jobs), "the new release has done it")
    doer = f"worker:{again.worker_id}"
    for story in histories(jobs).values():
        assert [one.kind for one in story] == RAN
        assert {one.actor for one in story if one.kind == "started"} == {doer}
    assert set(Job.objects.filter(pk__in=jobs).values_list("attempt", flat=True)) == {1}
    assert_at_rest()


@pytest.mark.timeout(300)
def test_f21_i2_i8_shards_that_change_hands_while_batches_are_under_way_double_nothing(fleet):
    """200 moves of shards between two schedulers that go on with what they have read."""
    rng = random.Random(SEED)
    one, other = fleet.scheduler(), fleet.scheduler()
    fleet.worker("--slots", "8")
    fleet.ready()
    nodes = [SchedulerNode.objects.get(pid=process.pid).pk for process in (one, other)]
    watch = ShardWatch()
    jobs: list[UUID] = []
    for move in range(MOVES):
        if move % 4 == 0:
            jobs += submit_many(10, tenant=f"shop-{move % 24}")
        numbers = rng.sample(range(64), 24)
        rows(
            """update jobs_shard set owner = %(to)s, epoch = epoch + 1,
            expires_at = statement_timestamp() + %(ttl)s * interval '1 second'
            where number = any(%(numbers)s) returning number""",
            {
                "to": nodes[move % 2],
                "ttl": PROFILE["shard_lease_seconds"],
                "numbers": numbers,
            },
        )
        watch.look()
    fleet.until(lambda: watch.look() and finished(*jobs), f"all is finished (seed {SEED})")
    assert watch.longest <= TAKEOVER_SECONDS
    assert {tuple(e.kind for e in story) for story in histories(jobs).values()} == {tuple(RAN)}
    assert Shard.objects.filter(owner__in=nodes).count() == 64
    claimers = Counter(JobEvent.objects.filter(kind="leased").values_list("actor", flat=True))
    assert len(claimers) == 2, "only one scheduler claimed anything: nothing was shown"
    assert_at_rest()


def test_kf41_three_schedulers_share_eight_slots_by_the_weights_of_two_tenants(fleet):
    """Their jobs wait in shards of different schedulers: 3 to 1 within 5 %, over 400 starts."""
    heavy, light = make_tenant("heavy", weight=3), make_tenant("light")
    for _ in range(3):
        fleet.scheduler()
    fleet.worker("--slots", "8")
    fleet.ready()
    due = database_now() + timedelta(seconds=2)
    for tenant in (heavy, light):
        submit_many(450, tenant=tenant.slug, seconds=0.1, due_at=due.isoformat())
    owners = Shard.objects.filter(number__in=DueEntry.objects.values("shard"))
    assert owners.values("owner").distinct().count() == 2
    starts = JobEvent.objects.filter(kind="started").order_by("at")
    fleet.until(lambda: starts.count() >= 400, "400 have started")
    # The first moments are those in which the schedulers learn of each other.
    counted = Counter(starts.values_list("tenant_id", flat=True)[20:400])
    assert 0.70 <= counted[heavy.pk] / sum(counted.values()) <= 0.80


def test_i15_background_work_under_ten_times_too_much_urgent_work_waits_as_long_as_the_lab_says(
    fleet,
):
    """Two slots, jobs of 0.2 s, urgent ones at 100 a second, 0.5 s ahead of the background job that comes after 0.5 s.

    The lab is given the time that a job really took a slot, so that a slow machine does not count.
    """
    slots, seconds, gap, comes, per_second = 2, 0.2, 0.5, 0.5, 100
    Lane.objects.filter(name="urgent").update(head_start_seconds=gap)
    Lane.objects.filter(name="background").update(head_start_seconds=0.0)
    fleet.scheduler(), fleet.worker("--slots", str(slots))
    fleet.ready()
    first_due = database_now() + timedelta(seconds=3)  # by then all of them must be stored
    due = first_due + timedelta(seconds=comes)
    background = submit(lane="background", seconds=seconds, due_at=due.isoformat())
    dues = [first_due + timedelta(seconds=n / per_second) for n in range(3 * per_second)]
    requests = [
        parse_request(
            {
                "handler": "probe.deaf",
                "payload": {"seconds": seconds},
                "lane": "urgent",
                "due_at": one.isoformat(),
            }
        )
        for one in dues
    ]
    submit_jobs(tenant=make_tenant("acme"), requests=requests, actor="token:test0001")
    fleet.until(lambda: finished(background), "the background job is finished")
    (started,) = events(background, "started")
    wait = seconds_between(due, started.at)
    before = JobEvent.objects.filter(kind="succeeded", at__lt=started.at).count()
    # What ranks before it; and what was published ahead or running when its turn came.
    assert before <= (comes + gap) * per_second + 2 * slots + per_second * 0.1

    slot_seconds = (comes + wait) * slots / before
    arrivals = [Arrival(n / per_second, 1, "acme", slot_seconds) for n in range(len(dues))]
    arrivals.append(Arrival(comes, 5, "acme", slot_seconds))
    settings = Settings({1: gap, 5: 0.0}, slots={0: slots})
    (told,) = [one for one in simulate(arrivals, settings) if one.arrival.lane == 5]
    assert told.wait == pytest.approx(wait, rel=0.10)
