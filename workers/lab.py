"""schedulelab: an arrival file through the scheduler's own choices on a fake clock, as stored and as tried out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from jobs.models import Worker
from jobs.policies.routing import PoolOffer, able_pools
from jobs.policies.simulation import Arrival, Settings, Start, simulate
from jobs.queries.catalog import Catalog

FIELDS = {"at", "tenant", "lane", "priority", "seconds", "handler", "labels"}
DEFAULT_SLOTS = 8


class BadInput(Exception):
    """A line or an option that cannot be read; the message names it."""


def read_arrivals(lines: Iterable[str], found: Catalog) -> tuple[list[Arrival], int]:
    """Arrivals of a file, and how many of them no stored pool may run.

    Args:
        lines: One JSON object a line: at (seconds from the beginning), seconds (how long it runs), tenant, lane, and
            if wanted priority and labels. Handlers are taken to be known everywhere.
        found: Lanes and pools.

    Raises:
        BadInput: Naming line and field.
    """
    offers = [
        PoolOffer(pool.pk, pool.labels, pool.exclusive_labels, frozenset({""}))
        for pool in found.pools.values()
    ] or [PoolOffer(0, {}, {}, frozenset({""}))]
    arrivals, homeless = [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = _arrival(json.loads(line), found, offers)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadInput(f"line {number}: {error}") from error
        arrivals.append(one)
        homeless += not one.pools
    return arrivals, homeless


def _arrival(value: Any, found: Catalog, offers: Sequence[PoolOffer]) -> Arrival:
    if not isinstance(value, dict):
        raise TypeError("must be an object")
    if unknown := sorted(value.keys() - FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}")
    lane = found.lane_named(str(value.get("lane", "normal")))
    if lane is None:
        raise ValueError(f"lane: must be one of {', '.join(one.name for one in found.lanes)}")
    labels = value.get("labels", {})
    if not isinstance(labels, dict):
        raise TypeError("labels: must be an object of texts")
    return Arrival(
        at=_number(value, "at", least=0.0),
        lane=lane.pk,
        tenant=str(value.get("tenant", "")),
        seconds=_number(value, "seconds", least=0.0),
        priority=int(_number({"priority": 0, **value}, "priority", least=-100.0, most=100.0)),
        pools=tuple(able_pools(labels, "", offers)),
    )


def _number(value: Mapping[str, Any], name: str, *, least: float, most: float = 1e9) -> float:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{name}: must be a number")
    if not least <= number <= most:
        raise ValueError(f"{name}: must be from {least:g} to {most:g}")
    return float(number)


def stored_settings(found: Catalog, *, overhead_seconds: float) -> Settings:
    """What is in force now; the slots are those of running workers, or eight for a pool without any."""
    slots = dict.fromkeys(found.pools or [0], 0)
    for pool_id, count in Worker.objects.filter(state="running").values_list("pool_id", "slots"):
        if pool_id in slots:
            slots[pool_id] += count
    return Settings(
        head_starts={lane.pk: lane.head_start_seconds for lane in found.lanes},
        slots={pool: count or DEFAULT_SLOTS for pool, count in slots.items()},
        weights={tenant.slug: float(tenant.weight) for tenant in found.tenants.values()},
        reserves=found.reserves,
        max_running={
            tenant.slug: tenant.max_running
            for tenant in found.tenants.values()
            if tenant.max_running is not None
        },
        overhead_seconds=overhead_seconds,
    )


def tried_settings(
    stored: Settings, found: Catalog, options: Mapping[str, Sequence[str] | None]
) -> Settings:
    """The stored settings with those of the command line in their place.

    Raises:
        BadInput: Naming the option.
    """
    lanes = {lane.name: lane.pk for lane in found.lanes}
    pools = {pool.name: pool.pk for pool in found.pools.values()} or {"default": 0}
    heads = _given(options, "head_start", lambda name: lanes[name], least=0.0)
    slots = _given(options, "slots", lambda name: pools[name], least=1.0)
    weights = _given(options, "weight", str, least=1.0)
    running = _given(options, "max_running", str, least=0.0)
    reserves = {pool: dict(kept) for pool, kept in stored.reserves.items()}

    def place(name: str) -> tuple[int, int]:
        pool, _, lane = name.partition("/")
        return pools[pool], lanes[lane]

    for (pool, lane), count in _given(options, "reserve", place, least=0.0).items():
        reserves.setdefault(pool, {})[lane] = int(count)
    return replace(
        stored,
        head_starts={**stored.head_starts, **heads},
        slots={**stored.slots, **{pool: int(count) for pool, count in slots.items()}},
        weights={**stored.weights, **weights},
        reserves=reserves,
        max_running={
            **stored.max_running,
            **{tenant: int(count) for tenant, count in running.items()},
        },
    )


def _given[K: Hashable](
    options: Mapping[str, Sequence[str] | None],
    name: str,
    key: Callable[[str], K],
    *,
    least: float,
) -> dict[K, float]:
    given: dict[K, float] = {}
    for text in options.get(name) or ():
        left, _, right = text.rpartition("=")
        try:
            value = float(right)
            if not math.isfinite(value) or value < least:
                raise ValueError
            given[key(left)] = value
        except (ValueError, KeyError):
            flag = name.replace("_", "-")
            raise BadInput(
                f"--{flag} {text}: must be NAME=NUMBER with a known name and at least {least:g}"
            ) from None
    return given


def waits(starts: Sequence[Start], key: Callable[[Start], str]) -> dict[str, dict[str, float]]:
    """Group → jobs, and p50, p95 and longest of their waits in seconds."""
    groups: dict[str, list[float]] = {}
    for start in starts:
        groups.setdefault(key(start), []).append(start.wait)
    return {name: _spread(sorted(found)) for name, found in sorted(groups.items())}


def _spread(values: Sequence[float]) -> dict[str, float]:
    def at(share: float) -> float:
        return round(values[min(len(values) - 1, int(share * len(values)))], 3)

    return {"jobs": len(values), "p50": at(0.5), "p95": at(0.95), "max": round(values[-1], 3)}


def compare(
    arrivals: Sequence[Arrival], stored: Settings, tried: Settings, found: Catalog
) -> dict[str, Any]:
    """Waits by lane and by tenant, with the stored settings and with those tried out."""
    lanes = {lane.pk: lane.name for lane in found.lanes}
    report: dict[str, Any] = {"arrivals": len(arrivals)}
    for name, settings in (("stored", stored), ("tried", tried)):
        if name == "tried" and settings == stored:
            continue
        starts = simulate(arrivals, settings)
        report[name] = {
            "lanes": waits(starts, lambda start: lanes[start.arrival.lane]),
            "tenants": waits(starts, lambda start: start.arrival.tenant),
            "lends": sum(start.pool != start.arrival.pools[0] for start in starts),
            "ends_after": round(
                max((start.at + start.arrival.seconds for start in starts), default=0.0), 3
            ),
        }
    return report


def print_report(report: Mapping[str, Any], out: TextIO) -> None:
    """A table a person reads: what is stored, and beside it what was tried out."""
    sides = [name for name in ("stored", "tried") if name in report]
    for part in ("lanes", "tenants"):
        head = "".join(f"{f'{side}: p50':>14}{'p95':>10}{'max':>10}" for side in sides)
        out.write(f"{part:<24}{'jobs':>8}{head}\n")
        names = sorted({name for side in sides for name in report[side][part]})
        for name in names:
            found = [report[side][part].get(name) for side in sides]
            jobs = max(one["jobs"] for one in found if one)
            cells = "".join(
                f"{one['p50']:>14.2f}{one['p95']:>10.2f}{one['max']:>10.2f}"
                if one
                else f"{'nothing ran':>34}"
                for one in found
            )
            out.write(f"{name:<24}{jobs:>8}{cells}\n")
        out.write("\n")
    for side in sides:
        out.write(
            f"{side}: all has ended after {report[side]['ends_after']:g} s;"
            f" {report[side]['lends']} ran in a pool that lent its slots\n"
        )
