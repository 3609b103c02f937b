"""A client that submits one job after another, and notes each one only when its commit was confirmed.

Run as `python -m tests.support.submitter FILE`, until it is killed. What it does not know to be accepted it submits again
with the same request key, as a caller of the API would.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from uuid import UUID

import django
from django.db import DatabaseError, InterfaceError

PAUSE_SECONDS = 0.02
JOB_SECONDS = 0.02


def main(acknowledged: Path) -> None:
    """Submit for ever."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    django.setup()
    from jobs.services.requests import parse_request

    with acknowledged.open("a") as notes:
        for number in itertools.count():
            key = f"order-{number}"
            request = parse_request(
                {
                    "handler": "probe.deaf",
                    "payload": {"seconds": JOB_SECONDS},
                    "request_key": key,
                    "max_attempts": 20,
                }
            )
            while (job_id := _submit(request)) is None:
                time.sleep(PAUSE_SECONDS)
            notes.write(f"{job_id}\n")
            notes.flush()
            time.sleep(PAUSE_SECONDS)


def acknowledged_jobs(acknowledged: Path) -> list[UUID]:
    """What was noted so far."""
    if not acknowledged.exists():
        return []
    whole, _, _ = acknowledged.read_text().rpartition("\n")
    return [UUID(line) for line in whole.splitlines()]


def _submit(request: object) -> UUID | None:
    """The job's id; None where nobody knows whether there is one."""
    from jobs.database import drop_if_gone
    from jobs.services.submit import submit_job
    from tests.factories import make_tenant

    try:
        made = submit_job(tenant=make_tenant(), request=request, actor="token:test0001")  # type: ignore[arg-type]
    except (DatabaseError, InterfaceError) as error:
        drop_if_gone(error)
        return None
    return made.job_id


if __name__ == "__main__":
    main(Path(sys.argv[1]))
