"""Attempts as a worker receives them, without a database: for what happens inside the process only."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

from jobs.policies.sharding import new_job_id
from jobs.transitions.take import Taken
from tests.factories import WORKER
from tests.workers.stage import CHARGE, Function, spec
from workers.execution import Execution


def taken(**fields: Any) -> Taken:
    values: dict[str, Any] = {
        "lease_id": uuid4(),
        "job_id": new_job_id(shard=7, unix_ms=1_796_083_200_000, rand_b=1),
        "shard": 7,
        "tenant_id": 1,
        "route_id": 1,
        "attempt": 1,
        "token": 1,
        "attempt_limit": 3,
        "handler": CHARGE,
        "payload": '{"amount": 1299}',
        "payload_ref": None,
        "retry": '{"kind": "fixed"}',
        "timeout_seconds": 30.0,
        "request_key": "order-8812",
        **fields,
    }
    return Taken(**values)


def execution(
    function: Function = lambda ctx: None,
    *,
    drain: threading.Event | None = None,
    sent_at: float | None = None,
    transactional: bool = False,
    of: Taken | None = None,
    **fields: Any,
) -> Execution:
    """An attempt at `of`, or at an invented job with these fields."""
    return Execution(
        of or taken(**fields),
        spec=spec(function, transactional=transactional),
        tenant="acme",
        sent_at=time.monotonic() if sent_at is None else sent_at,
        drain=drain or threading.Event(),
        worker_id=WORKER,
    )
