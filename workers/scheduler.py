"""Scheduler: owns shards, claims and publishes what is due, takes back what expired, keeps partitions ahead."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError

from jobs import telemetry
from jobs.conf import conf
from jobs.database import commits, drop_if_gone, is_unavailable, rows
from jobs.policies.demand import Stored, to_json
from jobs.queries.candidates import seconds_to_next_due
from jobs.services.dispatch import Dispatched, dispatch
from jobs.services.fleet import report_demand
from jobs.services.memory import Memory
from jobs.services.pausing import end_pauses
from jobs.services.reaping import reap
from jobs.transitions.events import scheduler_actor
from jobs.transitions.unpark import unpark_jobs
from workers.listen import Listener
from workers.loop import Loop
from workers.ownership import Ownership
from workers.recurring import Recurring
from workers.transactions import LOOK_SECONDS, TransactionWatch

log = logging.getLogger(__name__)

PARTITION_SECONDS, PARTITION_RETRY_SECONDS = 3600.0, 60.0
FIRST_PAUSE_SECONDS, BLOCKED_PAUSE_SECONDS = 0.002, 0.05
KEYS_SECONDS = 10.0  # jobs with a key that run for longer cost a tick between two of them
# How old what the others know of us may be: a stand-in that is further behind than two turns loses them (0.72 of 0.75
# with news of 0.2 s, at 80 starts a second).
DEMAND_SECONDS = 0.05


@dataclass(slots=True)
class Turn:
    """What one turn did; `pause` is how long nothing new is expected, in seconds."""

    published: int = 0
    lost: int = 0
    expired: int = 0
    pause: float = 0.0


class Scheduler:
    """One scheduler process. `run()` returns after `stop()`, which may be called from a signal handler."""

    def __init__(self, *, shards: list[int], once: bool = False) -> None:
        """Nothing is written yet; `once` ends it after a turn that found nothing to publish."""
        self.id: UUID = uuid4()
        self._actor = scheduler_actor(self.id)
        self._ownership = Ownership(self.id, shards)
        self._memory = Memory()
        self._recurring = Recurring(actor=self._actor)
        self._told: Stored = to_json({}, {})
        self._tell_at = self._unpark_at = self._keys_until = 0.0
        self._rng = random.Random()
        self._once = once
        self._transactions = TransactionWatch()
        self._own_at = self._reap_at = self._expand_at = self._partitions_at = (
            self._transactions_at
        ) = 0.0
        self._pause, self._left_over = FIRST_PAUSE_SECONDS, False
        self._loop = Loop("scheduler", self._turn, max_backoff_seconds=1.0)
        self._listener = Listener(telemetry.CHANNEL_DUE, lambda _: self._loop.wake())

    def run(self) -> None:
        """Schedule until told to stop; then free the shards for others."""
        log.info(telemetry.SCHEDULER_STARTED, extra={"scheduler": str(self.id)})
        self._listener.start()
        self._loop.run()
        self._listener.stop()
        try:
            self._ownership.give_up()
        except (DatabaseError, InterfaceError) as error:
            drop_if_gone(error)  # the shard lease ends by itself
        log.info(telemetry.SCHEDULER_STOPPED, extra={"scheduler": str(self.id)})

    def stop(self) -> None:
        """End after the present turn."""
        self._loop.stop()

    def run_once(self) -> Turn:
        """One turn: ownership and upkeep when they are due, then dispatch."""
        now = time.monotonic()
        turn = Turn()
        if now >= self._own_at:
            self._ownership.refresh()
            self._own_at = now + self._refresh_seconds()
        if now >= self._partitions_at:
            # Until the next try new events go to the DEFAULT partition: a nuisance, no reason to stop.
            self._partitions_at = now + PARTITION_RETRY_SECONDS
            self._lend_time("partitions", self._ensure_partitions)
        if now >= self._transactions_at and 0 in self._ownership.shards:  # one scheduler of all
            self._transactions_at = now + LOOK_SECONDS
            self._lend_time("transactions", self._transactions.look)
        if now >= self._reap_at:
            self._reap_at = now + conf().tick_seconds
            self._lend_time("reaper", self._reap, turn)
            if 0 in self._ownership.shards:  # one scheduler of all
                self._lend_time("pauses", self._end_pauses)
        more = False
        if now >= self._expand_at:
            self._expand_at = now + conf().tick_seconds
            more = (
                self._lend_time("schedules", self._recurring.turn, self._ownership.shards) or False
            )
        if self._memory.full_keys or now < self._keys_until or now >= self._unpark_at:
            self._unpark_at = now + conf().tick_seconds
            self._lend_time("unpark", self._unpark)
        done = dispatch(
            shards=self._ownership.shards,
            memory=self._memory,
            scheduler_id=self.id,
            fresh=self._left_over,
        )
        turn.published, turn.lost = done.published, done.lost
        self._lend_time("demand", self._tell_demand, done, now)
        turn.pause = self._pause_after(done)
        if more:  # after the jobs that are due now
            self._expand_at, turn.pause = 0.0, 0.0
        return turn

    def _turn(self) -> float:
        turn = self.run_once()
        if self._once and not turn.published:
            self.stop()
        return turn.pause

    def _refresh_seconds(self) -> float:
        """Three renewals fit in a shard lease; a process that waits for its share looks every tick."""
        everything = len(self._ownership.shards) == conf().shards
        return conf().shard_lease_seconds / 3 if everything else conf().tick_seconds

    def _pause_after(self, done: Dispatched) -> float:
        """How long to sleep: until the next due time, at most a tick; hardly at all while work flows."""
        self._left_over = False
        if done.published and (done.more or done.blocked):
            self._pause = FIRST_PAUSE_SECONDS
            return self._pause
        pause = self._pause_of_idle(done)
        return pause if done.wake_seconds is None else min(pause, done.wake_seconds)

    def _pause_of_idle(self, done: Dispatched) -> float:
        next_due = seconds_to_next_due(
            shards=self._ownership.shards, floors=self._memory.backlog.floors
        )
        if next_due is None or next_due > 0:
            self._pause = FIRST_PAUSE_SECONDS
            tick = conf().tick_seconds * self._rng.uniform(0.9, 1.0)
            return tick if next_due is None else min(tick, next_due + 0.0005)
        if done.published:  # more came due meanwhile
            self._pause = FIRST_PAUSE_SECONDS
            return self._pause
        # Due work that cannot go anywhere now: a full pool is looked at again soon, a missing one every tick.
        self._left_over = not done.blocked
        longest = BLOCKED_PAUSE_SECONDS if done.blocked else conf().tick_seconds
        self._pause = min(self._pause * 2, longest)
        return self._pause

    def _lend_time[**P, R](
        self, name: str, work: Callable[P, R], *a: P.args, **k: P.kwargs
    ) -> R | None:
        """Maintenance inside a turn: what fails there is told and must not keep dispatch from its work.

        Raises:
            DatabaseError: The database is away, which concerns the whole turn.
        """
        try:
            return work(*a, **k)
        except Exception as error:
            if isinstance(error, InterfaceError) or is_unavailable(error):
                raise
            log.exception(telemetry.LOOP_FAILED, extra={"loop": name})
            return None

    def _unpark(self) -> None:
        if unpark_jobs(shards=self._ownership.shards):
            self._memory.full_keys.clear()  # who is still one too many will be parked again
            # The next of the key waits for the end of this one, which is told: then it is looked for at once.
            self._keys_until = time.monotonic() + KEYS_SECONDS

    def _tell_demand(self, done: Dispatched, now: float) -> None:
        """Let other schedulers know what waits here: at once when it appears or is gone, else now and then."""
        if len(self._ownership.shards) == conf().shards:
            return  # there is nobody to tell
        news = to_json(done.demand, self._memory.published)
        same_pools = news["due"].keys() == self._told["due"].keys()
        if same_pools and (news == self._told or now < self._tell_at):
            return
        self._tell_at = now + DEMAND_SECONDS
        report_demand(self.id, news)
        self._told = news

    def _reap(self, turn: Turn) -> None:
        reaped = reap(shards=self._ownership.shards, actor=self._actor, rng=self._rng)
        turn.expired = reaped.expired

    def _end_pauses(self) -> None:
        end_pauses()

    @commits
    def _ensure_partitions(self) -> None:
        ((made,),) = rows(
            "select jobs_ensure_event_partitions(%(days)s)", {"days": conf().partition_days_ahead}
        )
        self._partitions_at = time.monotonic() + PARTITION_SECONDS
        if made:
            log.info(telemetry.PARTITIONS_CREATED, extra={"count": made})
