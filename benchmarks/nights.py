"""Many schedules at once: some whose next firing is near, some that have a night with a moved clock still before them.

The clock is never faked. A schedule of a night says of itself that it was expanded up to the day before that night, long
ago, and ends the day after; the schedulers of today have to catch up over it. Needs a configured Django.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Any
from uuid import uuid4

from benchmarks.workload import ACTOR, make_tenants
from jobs.conf import conf
from jobs.models import Schedule, ScheduleVersion, Tenant
from jobs.policies.sharding import shard_of
from jobs.policies.zones import ZONE_DATA, Shift, shifts, zone, zone_keys
from jobs.services.schedule_requests import parse_schedule
from jobs.services.timings import tenant_defaults
from jobs.states import OnGap, OnOverlap

BATCH = 1_000
EMPTY = {"cron": "", "every": "", "anchor": "", "timezone": "", "on_gap": "", "on_overlap": ""}
SINCE, UNTIL = datetime(2025, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
BEFORE, AFTER = (
    timedelta(hours=14),
    timedelta(hours=22),
)  # of the moment at which the clock is moved
NEVER_LATE = 400 * 86_400.0 * 10  # a grace with which a firing of years ago still has its job
RULES: tuple[dict[str, str], ...] = (
    {"cron": "0 * * * *"},
    {"cron": "30 2 * * *"},
    {"cron": "*/30 0-3 * * *"},
    {"cron": "@daily"},
    {"cron": "15 1,2 * * *"},
    {"every": "90m", "anchor": "2025-01-01T00:10:00Z"},
    {"every": "1mo", "anchor": "2025-01-26T02:15:00"},
    {"cron": "59 59 23,0-2 * * *"},
    {"cron": "0 2 L * 7L"},
)


def moving_zones(count: int) -> dict[str, list[Shift]]:
    """So many zones, from all over the list, whose clock was moved in that year."""
    window = round(SINCE.timestamp()), round(UNTIL.timestamp())
    known = {key: found for key in sorted(zone_keys()) if (found := shifts(key, *window))}
    keys = list(known)
    return {key: known[key] for key in (keys[n * len(keys) // count] for n in range(count))}


def make_nights(count: int, zones: int, handler: str) -> None:
    """Schedules that have a night with a moved clock before them, by all policies in turn. Some make a job for each firing.

    Args:
        count: Schedules.
        zones: Their time zones.
        handler: Of their jobs.
    """
    _make(_of_nights(count, moving_zones(zones), handler), make_tenants(50))


def make_near(count: int, zones: int, handler: str, now: datetime) -> None:
    """Hourly and daily schedules that all fire once in the next hour and have just been looked at."""
    _make(_near(count, list(moving_zones(zones)), handler, now), make_tenants(50))


def _of_nights(
    count: int, zones: Mapping[str, list[Shift]], handler: str
) -> Iterator[tuple[datetime, dict[str, Any], float]]:
    keys = list(zones)
    for n in range(count):
        key = keys[n % len(keys)]
        moves = zones[key]
        turn = n // len(keys)
        at = datetime.fromtimestamp(moves[turn % len(moves)].at, UTC)
        fields = {
            "name": f"night {n}",
            **RULES[(turn // len(moves) + n) % len(RULES)],
            "timezone": key,
            "on_gap": list(OnGap)[n % 3],
            "on_overlap": list(OnOverlap)[n // 3 % 3],
            "misfire": ("latest", "skip", "all")[n % 7 % 3],
            "ends_at": (at + AFTER).isoformat(),
            "job": {"handler": handler},
        }
        yield at - BEFORE, fields, NEVER_LATE if n % 5 == 0 else 60.0


def _near(
    count: int, zones: Sequence[str], handler: str, now: datetime
) -> Iterator[tuple[datetime, dict[str, Any], float]]:
    for n in range(count):
        key = zones[n % len(zones)]
        at = (now + timedelta(minutes=2 + n % 55)).astimezone(zone(key))
        hours = "*" if n % 2 else str(at.hour)
        fields = {
            "name": f"near {n}",
            "cron": f"{at.minute} {hours} * * *",
            "timezone": key,
            "job": {"handler": handler},
        }
        yield now, fields, 60.0


def _make(
    wanted: Iterator[tuple[datetime, dict[str, Any], float]], tenants: Sequence[Tenant]
) -> None:
    """(last looked at, fields of a request, grace) → rows, many in a statement."""
    holds = tenant_defaults(tenants[0])
    for several in batched(enumerate(wanted), BATCH):
        schedules, versions = [], []
        for n, (since, fields, grace) in several:
            request = parse_schedule(fields, defaults=holds)
            tenant = tenants[n % len(tenants)]
            schedule = Schedule(
                id=uuid4(),
                shard=shard_of(
                    tenant_id=tenant.pk,
                    key=request.name.encode(),
                    spread=conf().shards,
                    shards=conf().shards,
                ),
                tenant=tenant,
                name=request.name,
                version=1,
                expanded_until=since,
                look_at=since,
                created_by=ACTOR,
            )
            values: Mapping[str, Any] = {**EMPTY, **request.version, "grace_seconds": grace}
            schedules.append(schedule)
            versions.append(
                ScheduleVersion(
                    schedule=schedule,
                    number=1,
                    created_by=ACTOR,
                    since=since,
                    why="created",
                    zone_data=ZONE_DATA,
                    **{f"in_{name}": values[name] or holds[name] for name in holds},
                    **values,
                )
            )
        Schedule.objects.bulk_create(schedules)
        ScheduleVersion.objects.bulk_create(versions)
