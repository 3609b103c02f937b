"""The small configuration tables, read together and kept for a moment: lanes, pools, routes, handlers, tenants."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.db import connection

from jobs.database import rows
from jobs.models import Handler, Lane, Pool, Route, Tenant

MAX_AGE_SECONDS = 1.0
OWN_TRANSACTION = "select pg_current_xact_id_if_assigned() is not null"


@dataclass(frozen=True, slots=True)
class Catalog:
    """One reading of the configuration. Never changed: a newer reading replaces it.

    `lanes` are ordered from the highest priority floor down.
    """

    read_at: float  # monotonic seconds
    lanes: tuple[Lane, ...]
    pools: dict[int, Pool]
    routes: dict[int, Route]
    handlers: dict[str, Handler]
    tenants: dict[int, Tenant]
    route_ids: dict[tuple[str, str], int]  # (handler, canonical labels) → route

    def lane_named(self, name: str) -> Lane | None:
        """The lane of this name."""
        return next((lane for lane in self.lanes if lane.name == name), None)

    def lane_for(self, priority: int) -> Lane:
        """The highest lane whose floor the priority reaches, or the lowest lane."""
        return next(
            (lane for lane in self.lanes if priority >= lane.priority_floor), self.lanes[-1]
        )


_latest: Catalog | None = None


def catalog(*, max_age_seconds: float = MAX_AGE_SECONDS) -> Catalog:
    """The configuration, at most `max_age_seconds` old; 0 reads it again.

    A caller that misses a name in it asks once more with 0: a worker may have advertised it since. A reading made by a
    transaction that has written is given to its caller and not kept.
    """
    global _latest
    found = _latest
    if found is None or time.monotonic() - found.read_at >= max_age_seconds:
        # A row whose labels a hand broke would stop every reader; left out, only its own jobs wait.
        routes = {route.pk: route for route in Route.objects.all() if _are_labels(route.labels)}
        found = Catalog(
            read_at=time.monotonic(),
            lanes=tuple(Lane.objects.order_by("-priority_floor", "id")),
            pools={
                pool.pk: pool
                for pool in Pool.objects.all()
                if _are_labels(pool.labels) and _are_labels(pool.exclusive_labels)
            },
            routes=routes,
            handlers={handler.name: handler for handler in Handler.objects.all()},
            tenants={tenant.pk: tenant for tenant in Tenant.objects.all()},
            route_ids={(route.handler, route.labels_text): pk for pk, route in routes.items()},
        )
        if not _has_written():
            _latest = found
    return found


def _are_labels(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _has_written() -> bool:
    """True in a transaction with writes of its own: a route it reads may be gone again after a rollback."""
    return connection.in_atomic_block and bool(rows(OWN_TRANSACTION, {})[0][0])


def forget() -> None:
    """Drop the kept reading; tests call this between databases."""
    global _latest
    _latest = None
