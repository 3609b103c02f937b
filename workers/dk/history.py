"""dk history verify: replay events against rows and report what does not fit."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime
from typing import Any, TextIO
from uuid import UUID

from jobs.errors import InvalidField
from jobs.models import Tenant
from jobs.policies.history import Event
from jobs.policies.times import parse_time
from jobs.services.verifying import Verdict, verify_history

CLEAN, NOT_FOUND, UNHEALTHY = 0, 3, 7


def add_verbs(parser: ArgumentParser) -> None:
    """Verbs of this noun."""
    verify = parser.add_subparsers(dest="verb", required=True).add_parser(
        "verify", help="check every history against the invariants and the rows"
    )
    verify.add_argument("--tenant", metavar="SLUG", help="only this tenant's jobs")
    verify.add_argument("--since", type=moment, metavar="TIME", help="only jobs created from then")
    verify.add_argument("--until", type=moment, metavar="TIME", help="only jobs created before")
    verify.add_argument("--job", type=UUID, metavar="ID", help="only this job")
    verify.add_argument(
        "--at-rest", action="store_true", help="nothing should be due or running any more"
    )
    verify.add_argument("--json", action="store_true", help="one JSON document")


def run(options: Namespace, out: TextIO, err: TextIO) -> int:
    """Verify; the exit code is 7 when anything was found."""
    tenant_id = None
    if options.tenant:
        tenant_id = Tenant.objects.filter(slug=options.tenant).values_list("pk", flat=True).first()
        if tenant_id is None:
            err.write(f"no tenant {options.tenant!r}\n")
            return NOT_FOUND
    verdict = verify_history(
        tenant_id=tenant_id,
        since=options.since,
        until=options.until,
        job_id=options.job,
        at_rest=options.at_rest,
    )
    if options.job and not verdict.jobs:
        err.write(f"no job {options.job}\n")
        return NOT_FOUND
    if options.json:
        out.write(json.dumps(document(verdict), ensure_ascii=False) + "\n")
    else:
        out.write("\n".join(lines(verdict)) + "\n")
    return CLEAN if verdict.clean else UNHEALTHY


def lines(verdict: Verdict) -> list[str]:
    """The verdict for people: counts, violations, and the first offending job's whole story."""
    text = [f"{verdict.jobs} jobs, {verdict.events} events"]
    if verdict.clean:
        return [*text, "no violations"]
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(verdict.by_invariant.items()))
    text.append(f"VIOLATIONS  {counts}")
    text += [
        f"{one.invariant}  job {job}  event {one.seq or '-'}  {one.detail}"
        for job, one in verdict.violations
    ]
    if verdict.first_story:
        text.append(f"events of job {verdict.violations[0][0]}:")
        text += [story_line(event) for event in verdict.first_story]
    return text


def story_line(event: Event) -> str:
    """One event for people."""
    due = f"  due {event.due_at.isoformat()}" if event.due_at else ""
    detail = f"  {json.dumps(event.detail, ensure_ascii=False)}" if event.detail else ""
    return (
        f"  {event.seq:>3}  {event.at.isoformat()}  {event.kind:<20} {event.from_status} → {event.to_status}"
        f"  attempt {event.attempt}  token {event.token}  {event.actor}{due}{detail}"
    )


def document(verdict: Verdict) -> dict[str, Any]:
    """The verdict for programs."""
    return {
        "jobs": verdict.jobs,
        "events": verdict.events,
        "clean": verdict.clean,
        "by_invariant": dict(verdict.by_invariant),
        "violations": [
            {"job": str(job), "invariant": one.invariant, "event": one.seq, "detail": one.detail}
            for job, one in verdict.violations
        ],
        "first_story": [story_line(event).strip() for event in verdict.first_story],
    }


def moment(text: str) -> datetime:
    """RFC 3339 with offset, for argparse."""
    try:
        return parse_time(text, "")
    except InvalidField as error:
        raise ArgumentTypeError(f"{text!r} {error.reason}") from None
