"""The small configuration tables, read together and kept for a moment: lanes, pools, routes, handlers, tenants."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Model, TextField
from django.db.models.functions import Cast

from jobs.database import rows
from jobs.errors import MalformedJson
from jobs.models import Handler, Lane, Pool, Route, Tenant
from jobs.policies.payloads import parse_json

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
        # A row that a hand broke would stop every reader; left out, only its own jobs wait.
        routes = {
            route.pk: route for route in _readable(Route, "labels") if _are_labels(route.labels)
        }
        found = Catalog(
            read_at=time.monotonic(),
            lanes=tuple(Lane.objects.order_by("-priority_floor", "id")),
            pools={
                pool.pk: pool
                for pool in _readable(Pool, "labels", "exclusive_labels", unread=["created_at"])
                if _are_labels(pool.labels) and _are_labels(pool.exclusive_labels)
            },
            routes=routes,
            handlers={
                handler.name: handler
                for handler in _readable(Handler, "retry", unread=["last_advertised_at"])
            },
            tenants={tenant.pk: tenant for tenant in Tenant.objects.defer("created_at")},
            route_ids={(route.handler, route.labels_text): pk for pk, route in routes.items()},
        )
        if not _has_written():
            _latest = found
    return found


def _readable[M: Model](
    model: type[M], *json_names: str, unread: Iterable[str] = ()
) -> Iterator[M]:
    """Rows whose JSON could have come in through the API, the others left out.

    JSON is read as text: the driver gives up the whole result on one value that Python cannot hold. So it would on a
    time such as 'infinity', hence `unread`: columns that no reader of the catalog asks for.
    """
    texts: dict[str, Any] = {f"{name}_as_text": Cast(name, TextField()) for name in json_names}
    found = model._default_manager.defer(*json_names, *unread).annotate(**texts)
    for row in found:
        try:
            for name in json_names:
                setattr(row, name, parse_json(getattr(row, f"{name}_as_text").encode()))
        except MalformedJson:
            continue
        yield row


def _are_labels(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _has_written() -> bool:
    """True in a transaction with writes of its own: a route it reads may be gone again after a rollback."""
    return connection.in_atomic_block and bool(rows(OWN_TRANSACTION, {})[0][0])


def forget() -> None:
    """Drop the kept reading; tests call this between databases."""
    global _latest
    _latest = None
