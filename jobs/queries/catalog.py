"""The small configuration tables, read together and kept for a moment: lanes, pools, routes, handlers, tenants."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Model, TextField
from django.db.models.functions import Cast

from jobs.clock import at
from jobs.database import rows
from jobs.errors import MalformedJson
from jobs.models import Handler, Lane, Pause, Pool, Reserve, Route, Tenant
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
    reserves: dict[int, dict[int, int]]  # pool → lane → slots
    pauses: frozenset[tuple[str, str]]  # (kind, name) of what is paused now

    def is_paused(self, kind: Pause.Kind, name: str) -> bool:
        """Whether somebody stopped it."""
        return (kind.value, name) in self.pauses

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
            reserves=_reserves(),
            pauses=frozenset(_pauses_in_force()),
        )
        if not _has_written():
            _latest = found
    return found


def _reserves() -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {}
    for pool_id, lane_id, slots in Reserve.objects.values_list("pool_id", "lane_id", "slots"):
        found.setdefault(pool_id, {})[lane_id] = slots
    return found


def _pauses_in_force() -> Iterable[tuple[str, str]]:
    """One that has ended by its time does not count, whether or not its row has been taken away."""
    pauses = Pause.objects.exclude(resume_at__lte=at(None))
    return pauses.values_list("kind", "target")


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
