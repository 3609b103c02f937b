"""dk history verify: replay events against rows and report what does not fit."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from jobs.errors import InvalidField
from jobs.models import Tenant
from jobs.policies.deliveries import Delivery, Receiver, read_deliveries
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
    verify.add_argument("--handler", metavar="NAME", help="only jobs of this handler")
    verify.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="only jobs created, and firings due, from then",
    )
    verify.add_argument(
        "--until", type=moment, metavar="TIME", help="only jobs created, and firings due, before"
    )
    verify.add_argument("--job", type=UUID, metavar="ID", help="only this job")
    verify.add_argument(
        "--at-rest", action="store_true", help="nothing should be due or running any more"
    )
    verify.add_argument(
        "--scheduler-alive",
        action="store_true",
        help="a scheduler was at work all the time: late expiries are violations (I8)",
    )
    verify.add_argument(
        "--receiver-log",
        type=receiver_log,
        metavar="FILE",
        help="what the receiver that these jobs call has logged, a JSON object a line, in its order:"
        ' {"token": idempotency token, "job": id, "lease_token": fencing token, "applied": true or false}',
    )
    verify.add_argument(
        "--receiver",
        type=Receiver,
        choices=list(Receiver),
        default=Receiver.APPLY_ONCE,
        help="what it promises: one effect a job (I16, the default), or no stale token (I17)",
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
        handler=options.handler,
        since=options.since,
        until=options.until,
        job_id=options.job,
        at_rest=options.at_rest,
        scheduler_alive=options.scheduler_alive,
        deliveries=options.receiver_log,
        receiver=options.receiver,
    )
    if options.job and not verdict.jobs:
        err.write(f"no job {options.job}\n")
        return NOT_FOUND
    if options.json:
        out.write(json.dumps(document(verdict)) + "\n")
    else:
        out.write("\n".join(lines(verdict)) + "\n")
    return CLEAN if verdict.clean else UNHEALTHY


def lines(verdict: Verdict) -> list[str]:
    """The verdict for people: counts, violations, and the first offending job's whole story."""
    text = [f"{verdict.jobs} jobs, {verdict.events} events"]
    if verdict.schedules:
        told = f"{verdict.schedules} schedules, {verdict.occurrences} occurrences"
        text.append(f"{told}, {verdict.unchecked} unchecked" if verdict.unchecked else told)
    if verdict.clean:
        return [*text, "no violations"]
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(verdict.by_invariant.items()))
    text.append(f"VIOLATIONS  {counts}")
    text += [
        f"{one.invariant}  job {job or '-'}  event {one.seq or '-'}  {one.detail}"
        for job, one in verdict.violations
    ]
    if verdict.first_story:
        text.append(f"events of job {verdict.first_job}:")
        text += [story_line(event) for event in verdict.first_story]
    return [printable(line) for line in text]


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
        "schedules": verdict.schedules,
        "occurrences": verdict.occurrences,
        "unchecked": verdict.unchecked,
        "clean": verdict.clean,
        "by_invariant": dict(verdict.by_invariant),
        "violations": [
            {
                "job": job and str(job),
                "invariant": one.invariant,
                "event": one.seq,
                "detail": one.detail,
            }
            for job, one in verdict.violations
        ],
        "first_job": verdict.first_job and str(verdict.first_job),
        "first_story": [story_line(event).strip() for event in verdict.first_story],
    }


def printable(line: str) -> str:
    """The line with an escape for whatever a terminal would obey: stored text is anybody's."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def receiver_log(path: str) -> dict[UUID, list[Delivery]]:
    """The deliveries in a file, for argparse."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            return read_deliveries(lines)
    except (OSError, UnicodeDecodeError, InvalidField) as error:
        raise ArgumentTypeError(f"{path}: {error}") from None


def moment(text: str) -> datetime:
    """RFC 3339 with offset, for argparse."""
    try:
        return parse_time(text, "")
    except InvalidField as error:
        raise ArgumentTypeError(f"{text!r} {error.reason}") from None
