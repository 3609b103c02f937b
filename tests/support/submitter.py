"""A client that submits one job after another, and notes each one only when its commit was confirmed.

Run as `python -m tests.support.submitter FILE [BACKLOG]`, until it is killed. What it does not know to be accepted it
submits again with the same request key, as a caller of the API would. BACKLOG is how many jobs of the last lane it submits
at first, so that there is always work; then all jobs take long, so that it is slots that limit their number.
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
LONG_SECONDS = 0.2  # what waiting takes, a busy machine hardly changes


def main(acknowledged: Path, backlog: int = 0) -> None:
    """Submit for ever."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    django.setup()
    from jobs.services.requests import parse_request

    seconds = LONG_SECONDS if backlog else JOB_SECONDS
    with acknowledged.open("a") as notes:
        if backlog:
            notes.writelines(f"{job_id}\n" for job_id in _submit_backlog(backlog))
        for number in itertools.count():
            key = f"order-{number}"
            request = parse_request(
                {
                    "handler": "probe.deaf",
                    "payload": {"seconds": seconds},
                    "request_key": key,
                    "max_attempts": 20,
                }
            )
            while (job_id := _submit(request)) is None:
                time.sleep(PAUSE_SECONDS)
            notes.write(f"{job_id}\n")
            notes.flush()
            time.sleep(seconds)


def _submit_backlog(count: int) -> list[UUID]:
    from jobs.services.requests import parse_request
    from jobs.services.submit import submit_jobs
    from tests.factories import make_tenant

    request = parse_request(
        {
            "handler": "probe.deaf",
            "payload": {"seconds": LONG_SECONDS},
            "lane": "background",
            "max_attempts": 20,
        }
    )
    made = submit_jobs(tenant=make_tenant(), requests=[request] * count, actor="token:test0001")
    return [one.job_id for one in made]


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
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
