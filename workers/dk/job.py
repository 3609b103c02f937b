"""dk job why: why a job is where it is."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, TextIO
from uuid import UUID

from jobs.models import Tenant
from jobs.policies.why import Reason
from jobs.queries.history import job_detail
from jobs.queries.lookup import find_jobs
from jobs.queries.why import why_of
from workers.dk.history import printable

DONE, USAGE, NOT_FOUND = 0, 2, 3


def add_verbs(parser: ArgumentParser) -> None:
    """Verbs of this noun."""
    verb = parser.add_subparsers(dest="verb", required=True).add_parser(
        "why", help="why it waits, or what it is doing, and what it had waited for"
    )
    verb.add_argument("job", help="its id, the first 8 or more digits of it, or its request key")
    verb.add_argument("--json", action="store_true", help="one JSON document")


def run(options: Namespace, out: TextIO, err: TextIO) -> int:
    """The first sentence, then every reason; exit code 3 when there is no such job, 2 when there are several."""
    found: Sequence[UUID] = []
    if options.job.isprintable():
        found = find_jobs(options.job, tenants=Tenant.objects.only("shard_spread")).job_ids
    if len(found) != 1:
        several = f"{len(found)} jobs: {', '.join(map(str, found[:10]))}"
        err.write(printable(several if found else f"no job {options.job!r}") + "\n")
        return USAGE if found else NOT_FOUND
    (job_id,) = found
    reasons = why_of(job_detail(tenant_id=None, job_id=job_id))
    if options.json:
        told = {
            "job": str(job_id),
            "sentence": reasons[0].sentence,
            "reasons": [document(reason) for reason in reasons],
        }
        out.write(json.dumps(told) + "\n")
        return DONE
    out.write(printable(f"{job_id} {reasons[0].sentence}") + "\n")
    for reason in reasons:
        known = {**reason.evidence, **reason.internal}
        shown = "  ".join(f"{name}={_text(value)}" for name, value in known.items())
        line = f"  {reason.code:<20} {reason.klass:<10} {reason.sentence}"
        out.write(printable(line) + "\n")
        if shown:
            out.write(printable(f"  {'':<20} {'':<10} {shown}") + "\n")
    return DONE


def document(reason: Reason) -> dict[str, Any]:
    """A reason for programs; for those who run the system, so with all that it knows."""
    return {
        "code": reason.code,
        "class": reason.klass.value,
        "sentence": reason.sentence,
        "evidence": {**reason.evidence, **reason.internal},
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
