"""Typed settings of the engine, read once from `settings.JOBS`. Durations are seconds and say so."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache

from django.conf import settings

from jobs.states import OnGap, OnOverlap


@dataclass(frozen=True, slots=True)
class JobsConf:
    """Every knob of the engine. `problems()` lists what makes a value unusable."""

    shards: int = 64  # fixed at the first migrate: the Shard rows are the truth, a check compares
    lease_ttl_seconds: float = 30.0  # how long a taken job survives without a heartbeat
    heartbeat_seconds: float = 10.0  # at least three fit in a lease
    publish_ttl_seconds: float = 60.0  # how long published work waits for a worker to take it
    clock_tolerance_seconds: float = 1.0  # added to every expiry; a larger skew is a warning
    tick_seconds: float = 1.0  # longest sleep between two scheduler turns
    shard_lease_seconds: float = 15.0  # how long shard ownership survives its process
    reap_batch: int = 500
    claim_batch: int = 400
    take_batch: int = 1000
    finish_batch: int = 1000
    flush_seconds: float = 0.005  # longest an outcome waits for company before it is written
    publish_ahead_seconds: float = (
        0.25  # published work beyond the free slots, by the measured rate
    )
    default_timeout_seconds: float = 300.0
    default_max_attempts: int = 5
    expand_ahead_seconds: float = 3600.0  # how far ahead schedules make their jobs
    expand_batch: int = 200  # schedules expanded in one transaction
    expand_firings: int = 100  # of one schedule in one round
    timezone: str = "UTC"  # of schedules whose tenant names none
    on_gap: str = "next_valid"  # where neither schedule nor tenant says
    on_overlap: str = "first"
    drain_seconds: float = 30.0  # grace of a first SIGTERM
    payload_max_bytes: int = 65_536
    result_max_bytes: int = 16_384
    error_max_bytes: int = 16_384
    body_max_bytes: int = 1_048_576
    partition_days_ahead: int = 8
    old_transaction_seconds: float = 20.0  # an open transaction this old is worth a warning
    listen_url: str = ""  # direct database URL for LISTEN where the main one goes through a pooler

    @property
    def shard_lease(self) -> timedelta:
        """`shard_lease_seconds` for the ORM."""
        return timedelta(seconds=self.shard_lease_seconds)

    def problems(self) -> list[tuple[str, str]]:
        """Faults as (field, what is wrong); an empty list means usable."""
        found: list[tuple[str, str]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "clock_tolerance_seconds" and isinstance(value, int | float):
                if not value > 0:
                    found.append((field.name, "must be greater than zero"))
            elif isinstance(value, float) and not value >= 0:
                found.append((field.name, "must not be negative"))
        for name, kind in (("on_gap", OnGap), ("on_overlap", OnOverlap)):
            if getattr(self, name) not in set(kind):
                found.append((name, f"must be one of {', '.join(kind)}"))
        if self.heartbeat_seconds > self.lease_ttl_seconds / 3:
            found.append(("heartbeat_seconds", "must be at most a third of lease_ttl_seconds"))
        if self.shards > 4096:
            found.append(("shards", "must be at most 4096: a job id has 12 bits for it"))
        return found


FIELDS: dict[str, type] = {
    field.name: {"int": int, "float": float, "str": str}[str(field.type)]
    for field in fields(JobsConf)
}


@cache
def conf() -> JobsConf:
    """The settings of this process; tests that override JOBS call `conf.cache_clear()`.

    Raises:
        TypeError: `settings.JOBS` names an unknown field.
    """
    return JobsConf(**getattr(settings, "JOBS", {}))
