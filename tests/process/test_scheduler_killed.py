"""A scheduler that dies leaves its shards behind for the length of its lease, and no work."""

from __future__ import annotations

import pytest

from jobs.models import SchedulerNode, Shard
from tests.process.stories import assert_at_rest, database_now, finished, seconds_between, submit
from tests.support.process import PROFILE

pytestmark = pytest.mark.process

TAKEOVER_SECONDS = PROFILE["shard_lease_seconds"] + PROFILE["tick_seconds"] + 1.0


def test_f02_the_shards_of_a_killed_scheduler_are_scanned_again_in_time(fleet):
    lost, survivor = fleet.scheduler(), fleet.scheduler()
    fleet.worker("--slots", "4")
    fleet.ready()
    dead, heir = (SchedulerNode.objects.get(pid=one.pid).pk for one in (lost, survivor))
    shards = list(Shard.objects.filter(owner=dead).values_list("number", flat=True))
    assert shards
    killed_at = database_now()
    lost.kill()
    jobs = [submit(tenant=f"shop-{number}") for number in range(20)]
    fleet.until(
        lambda: Shard.objects.filter(number__in=shards, owner=heir).count() == len(shards),
        "the survivor has all shards",
    )
    taken_over_after = seconds_between(killed_at, database_now())
    fleet.until(lambda: finished(*jobs), "all jobs are finished")

    assert taken_over_after <= TAKEOVER_SECONDS
    assert not survivor.ended
    assert_at_rest()
