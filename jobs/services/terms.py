"""The terms of one turn: who has which weight, which limits stand before whom, and how much they leave."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime

from jobs.conf import conf
from jobs.models import Handler, Pause, Tenant
from jobs.policies.fairness import Wall
from jobs.policies.sharding import shards_of
from jobs.queries.candidates import DueRow, GroupKey
from jobs.queries.catalog import Catalog
from jobs.queries.fleet import Held, held_leases, start_tokens
from jobs.transitions.limits import Limits, Rate


class Pauses:
    """What is paused now, by the keys of groups."""

    def __init__(self, found: Catalog) -> None:
        """One reading of the configuration."""
        self._tenants = {
            tenant.pk
            for tenant in found.tenants.values()
            if found.is_paused(Pause.Kind.TENANT, tenant.slug)
        }
        self._lanes = {
            lane.pk for lane in found.lanes if found.is_paused(Pause.Kind.LANE, lane.name)
        }
        self._routes = {
            route.pk: route.handler
            for route in found.routes.values()
            if found.is_paused(Pause.Kind.HANDLER, route.handler)
        }

    def of(self, key: GroupKey) -> tuple[str, Hashable] | None:
        """Why nothing of this group is claimed, None when nobody stopped it."""
        if key.tenant in self._tenants:
            return ("tenant_paused", key.tenant)
        if key.lane in self._lanes:
            return ("lane_paused", key.lane)
        if key.route in self._routes:
            return ("handler_paused", self._routes[key.route])
        return None


class Terms:
    """Read once per turn, and only as far as somebody's settings ask for it."""

    def __init__(
        self,
        found: Catalog,
        keys: Iterable[GroupKey],
        *,
        shards: Sequence[int],
        now: datetime | None,
    ) -> None:
        """`keys` are the groups with due work that nobody has paused."""
        self._found, self._shards = found, shards
        self._mine = frozenset(shards)
        self._held: list[Held] | None = None
        keys = list(keys)
        tenants = {key.tenant for key in keys}
        handlers = {found.routes[key.route].handler for key in keys if key.route in found.routes}
        self.weights: dict[Hashable, float] = {
            tenant: self._weight(found.tenants[tenant])
            for tenant in tenants
            if tenant in found.tenants
        }
        self._running = {
            tenant: limit
            for tenant in tenants
            if tenant in found.tenants and (limit := found.tenants[tenant].max_running) is not None
        }
        self._rates: dict[str, Rate] = {}
        for tenant in tenants & found.tenants.keys():
            self._add_rate(f"tenant:{tenant}", found.tenants[tenant])
        for handler in handlers & found.handlers.keys():
            self._add_rate(f"handler:{handler}", found.handlers[handler])
        self.walls: dict[Wall, float] = {}
        if self._running:
            held: dict[int, int] = {}
            for one in self.held:
                held[one.tenant_id] = held.get(one.tenant_id, 0) + one.leases
            for tenant, limit in self._running.items():
                self.walls["tenant_max_running", tenant] = limit - held.get(tenant, 0)
        if self._rates:
            tokens = start_tokens(self._rates, now=now)
            self.walls.update({_rate_wall(scope): left for scope, left in tokens.items()})

    @property
    def held(self) -> list[Held]:
        """Who holds how much of which pool: read when it is first asked for."""
        if self._held is None:
            self._held = held_leases(shards=range(conf().shards), mine=self._shards)
        return self._held

    @property
    def wake_seconds(self) -> float | None:
        """When a used-up rate will have its next token, at the soonest."""
        waits = [
            1.0 / rate.per_second
            for scope, rate in self._rates.items()
            if self.walls.get(_rate_wall(scope), 1) < 1
        ]
        return min(waits, default=None)

    def walls_of(self, key: GroupKey) -> tuple[Wall, ...]:
        """Limits that stand before this group."""
        names: list[Wall] = (
            [("tenant_max_running", key.tenant)] if key.tenant in self._running else []
        )
        names += [_rate_wall(scope) for scope in self._scopes(key)]
        return tuple(names)

    def limits(self, rows: Sequence[DueRow]) -> Limits | None:
        """What the claim of these rows must keep within, None when nothing binds."""
        keyed = frozenset(row.job_id for row in rows if row.concurrency_key is not None)
        tenants = {
            row.job_id: row.key.tenant
            for row in rows
            if row.key.tenant in self._running or row.concurrency_key is not None
        }
        buckets = {row.job_id: scopes for row in rows if (scopes := self._scopes(row.key))}
        if not keyed and not tenants and not buckets:
            return None
        return Limits(self._running, self._rates, tenants, buckets, keyed)

    def _scopes(self, key: GroupKey) -> tuple[str, ...]:
        if not self._rates:
            return ()
        route = self._found.routes.get(key.route)
        names = (f"tenant:{key.tenant}", f"handler:{route.handler}" if route else "")
        return tuple(name for name in names if name in self._rates)

    def _add_rate(self, scope: str, owner: Tenant | Handler) -> None:
        rate = owner.start_rate
        if rate is not None and math.isfinite(rate) and rate > 0:
            self._rates[scope] = Rate(rate, owner.start_burst)

    def _weight(self, tenant: Tenant) -> float:
        """A tenant whose shards several schedulers share speaks here for the part that is here."""
        if len(self._shards) >= conf().shards:
            return float(tenant.weight)
        shards, spread = conf().shards, tenant.shard_spread
        own = shards_of(tenant_id=tenant.pk, spread=spread, shards=shards)
        here = len(self._mine.intersection(own))
        return tenant.weight * max(1, here) / len(own)


def _rate_wall(scope: str) -> tuple[str, Hashable]:
    kind, _, name = scope.partition(":")
    return ("tenant_rate", int(name)) if kind == "tenant" else ("handler_rate", name)
