"""A scheduler that dies leaves its shards behind for the length of its lease, and no work."""

from __future__ import annotations

import os
import random
import time
from datetime import datetime
from uuid import UUID

import pytest

from jobs.database import rows
from jobs.models import SchedulerNode, Shard
from tests.process.stories import (
    assert_at_rest,
    database_now,
    finished,
    histories,
    seconds_between,
    submit,
)
from tests.support.process import PROFILE, Fleet, Process

pytestmark = pytest.mark.process

TAKEOVER_SECONDS = PROFILE["shard_lease_seconds"] + PROFILE["tick_seconds"] + 1.0
# 100 in a long run (PROCESS_KILLS=100).
KILLS, SEED = int(os.environ.get("PROCESS_KILLS") or 20), 2
UNOWNED = """
select number, expires_at, statement_timestamp() from jobs_shard
where owner is null or expires_at < statement_timestamp()"""


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


@pytest.mark.timeout(120 + 4 * KILLS)
def test_f02_i8_schedulers_killed_one_after_the_other_leave_no_shard_unowned_for_long(fleet):
    """One a second, of three, each replaced at once; the shards are looked at all the time."""
    rng = random.Random(SEED)
    alive = [fleet.scheduler() for _ in range(3)]
    fleet.worker("--slots", "4")
    fleet.ready()
    watch = ShardWatch()
    jobs: list[UUID] = []
    for kill in range(KILLS):
        victim = rng.choice(fleet.until(lambda: owners(alive), f"shards are owned (seed {SEED})"))
        victim.kill()
        jobs += [submit(tenant=f"shop-{kill}-{number}") for number in range(8)]
        alive.remove(victim)
        alive.append(fleet.scheduler())
        watch.look_for(fleet, seconds=1.0)
    fleet.until(lambda: watch.look() and finished(*jobs), f"all jobs are finished (seed {SEED})")

    assert watch.longest <= TAKEOVER_SECONDS - PROFILE["shard_lease_seconds"], f"seed {SEED}"
    for story in histories(jobs).values():
        assert [one.kind for one in story] == ["created", "leased", "started", "succeeded"]
    assert_at_rest()


def owners(schedulers: list[Process]) -> list[Process]:
    """Those of them that own shards, if there are two of them at least."""
    nodes = SchedulerNode.objects.filter(pk__in=Shard.objects.values("owner"))
    pids = set(nodes.values_list("pid", flat=True))
    found = [one for one in schedulers if one.pid in pids]
    return found if len(found) > 1 else []


class ShardWatch:
    """How long shards stay without an owner, by the database's clock."""

    def __init__(self) -> None:
        self.longest = (
            0.0  # seconds, since the end of the shard's lease or since it was first seen free
        )
        self._free_since: dict[int, datetime] = {}

    def look(self) -> bool:
        """True if every shard has an owner now."""
        found = rows(UNOWNED, {})
        free = {
            number: expired_at or self._free_since.get(number, now)
            for number, expired_at, now in found
        }
        for number, _, now in found:
            self.longest = max(self.longest, seconds_between(free[number], now))
        self._free_since = free
        return not found

    def look_for(self, fleet: Fleet, *, seconds: float) -> None:
        """Look again and again for so long."""
        ends_at = time.monotonic() + seconds

        def over() -> bool:
            self.look()
            return time.monotonic() > ends_at

        fleet.until(over, "a second is over", poll_seconds=0.05)
