"""Which scheduler scans which shards: rows that expire, shared evenly. It saves work; the claim is the guard."""

from __future__ import annotations

import logging
import os
import socket
import time
from uuid import UUID

from django.db.models.functions import Now

from jobs import telemetry
from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import atomically, rows
from jobs.models import SchedulerNode, Shard
from jobs.policies.sharding import fair_quota
from workers.skew import SkewWatch

log = logging.getLogger(__name__)

RENEW = f"""
update jobs_shard set expires_at = {NOW_SQL} + %(ttl)s * interval '1 second'
where owner = %(me)s and number = any(%(numbers)s) returning number"""

# A shard without a live owner; SKIP LOCKED, for another scheduler may be taking the same one.
ACQUIRE = f"""
update jobs_shard set owner = %(me)s, epoch = epoch + 1, expires_at = {NOW_SQL} + %(ttl)s * interval '1 second'
where number = any(array(
    select number from jobs_shard
    where (owner is null or expires_at < {NOW_SQL}) and number = any(%(numbers)s)
    order by number limit %(limit)s for update skip locked))
returning number"""

# What nobody has taken although everybody had the time: its share belongs to a process that died before it took it, and
# whose row still counts. Who gives shards up gives a newcomer two ticks to take them; an heir has looked within one.
ADOPT = f"""
update jobs_shard set owner = %(me)s, epoch = epoch + 1, expires_at = {NOW_SQL} + %(ttl)s * interval '1 second'
where number = any(array(
    select number from jobs_shard
    where number = any(%(numbers)s) and (owner is null or expires_at < {NOW_SQL})
        and coalesce(expires_at, '-infinity')
            < {NOW_SQL} - case when owner is null then 2 else 1 end * %(tick)s * interval '1 second'
    order by number for update skip locked))
returning number"""


class Ownership:
    """The shards of one scheduler process."""

    def __init__(self, scheduler_id: UUID, numbers: list[int]) -> None:
        """`numbers` are the shards it may own: all, to be shared, or a part that an operator gave it, to be scanned."""
        self.id, self._numbers = scheduler_id, numbers
        self._shares = len(numbers) == conf().shards
        self.shards: list[int] = []
        self._skew = SkewWatch()
        self._keeps_until = 0.0  # monotonic: a surplus of adopted shards is not given up before

    @atomically
    def refresh(self) -> list[int]:
        """Say that this process lives, renew what it owns, give up a surplus, take what nobody owns.

        Returns:
            Shards to scan now, ascending: its share, or its whole part. When another scheduler joins, the surplus
            goes at the next refresh here and is taken at the next one there; when one dies, its shards go after
            their lease. What nobody takes in time is taken by anyone, whatever its share, and kept for a lease: by
            then the rows of dead processes have expired too.
        """
        self._report_alive()
        ttl, me = conf().shard_lease_seconds, self.id
        params = {"me": me, "ttl": ttl, "numbers": self._numbers, "now": None}
        params["tick"] = conf().tick_seconds
        owned = sorted(number for (number,) in rows(RENEW, params))
        if self._shares:
            live = SchedulerNode.objects.filter(expires_at__gt=Now(), shares=True)
            names = [str(one) for one in live.values_list("pk", flat=True)]
            quota = fair_quota(shards=len(self._numbers), live=names, me=str(me))
        else:
            quota = len(self._numbers)
        if (surplus := owned[quota:]) and time.monotonic() >= self._keeps_until:
            Shard.objects.filter(number__any=surplus, owner=me).update(
                owner=None, expires_at=Now()
            )
            owned = owned[:quota]
        if quota > len(owned):
            params["limit"] = quota - len(owned)
            owned = sorted(owned + [number for (number,) in rows(ACQUIRE, params)])
        if self._shares and (adopted := [number for (number,) in rows(ADOPT, params)]):
            self._keeps_until = time.monotonic() + ttl
            owned = sorted(owned + adopted)
        if not self._shares:
            owned = sorted(self._numbers)  # also those another one holds: two owners are harmless
        if owned != self.shards:
            log.info(telemetry.SHARDS_CHANGED, extra={"scheduler": str(me), "owned": len(owned)})
        self.shards = owned
        return owned

    @atomically
    def give_up(self) -> None:
        """Free everything at once, so that others need not wait for a lease to end."""
        Shard.objects.filter(owner=self.id).update(owner=None, expires_at=Now())
        SchedulerNode.objects.filter(pk=self.id).delete()
        self.shards = []

    def _report_alive(self) -> None:
        SchedulerNode.objects.update_or_create(
            id=self.id,
            defaults={
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "shares": self._shares,
                "clock_skew_seconds": self._skew.measure(),
                "expires_at": Now() + conf().shard_lease,
            },
        )
        # Long dead processes; one that was only frozen makes itself known again.
        SchedulerNode.objects.filter(expires_at__lt=Now() - 20 * conf().shard_lease).delete()
