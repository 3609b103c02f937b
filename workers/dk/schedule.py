"""look at recurring schedules and what they will do, hold them, make up for what they missed"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, TextIO
from uuid import UUID

from jobs.clock import database_now
from jobs.errors import InvalidField, JobError, NotFound, ValidationFailed
from jobs.models import Schedule, Tenant
from jobs.policies.times import format_time
from jobs.policies.zones import ZONE_DATA
from jobs.queries.schedule_lists import Filters, State, list_schedules, read_schedules, state_of
from jobs.queries.schedules import StoredSchedule, find_schedule
from jobs.services.catching_up import catch_up
from jobs.services.pausing import MAX_REASON
from jobs.services.preview import AHEAD
from jobs.services.requests import text
from jobs.services.schedules import pause_schedule, resume_schedule, trigger_schedule
from jobs.services.timings import defaults
from jobs.services.touched import touched
from jobs.services.upcoming import upcoming
from workers.dk.history import moment, printable
from workers.dk.pausing import operator
from workers.dk.schedule_preview import add_preview, run_preview

DONE, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 4
BATCH = 200
USUAL_AHEAD = timedelta(days=60)
WHICH = "its id, or TENANT/NAME"


def add_verbs(parser: ArgumentParser) -> None:
    """Verbs of the noun."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    add_preview(
        verbs.add_parser("preview", help="next runs of a rule, and the next changes of the clock")
    )
    several = verbs.add_parser("list", help="schedules, each with its next run")
    several.add_argument("--state", choices=[str(one) for one in State])
    coming = verbs.add_parser(
        "transitions", help="schedules that the next changes of their clocks touch"
    )
    coming.add_argument("--until", type=moment, metavar="TIME", help="default: 60 days on")
    for verb in (several, coming):
        verb.add_argument("--tenant", metavar="SLUG", help="only this tenant's")
    hold = verbs.add_parser("pause", help="nothing fires until it goes on")
    hold.add_argument("--reason", required=True, help="why, for those who wonder")
    hold.add_argument("--resume-at", type=moment, metavar="TIME", help="ends by itself then")
    go_on = verbs.add_parser("resume", help="go on with what fires from now on")
    now = verbs.add_parser("run", help="one job of it now, beside its firings")
    now.add_argument("--request-key", metavar="KEY", help="the same key is the same job")
    again = verbs.add_parser("catch-up", help="what did not run in a past range runs now, once")
    again.add_argument("--from", dest="begin", type=moment, metavar="TIME", required=True)
    again.add_argument("--until", type=moment, metavar="TIME", required=True)
    for verb in (hold, go_on, now, again):
        verb.add_argument("schedule", help=WHICH)
    for verb in (several, coming, hold, go_on, now, again):
        verb.add_argument("--json", action="store_true", help="one JSON document")


class Told(NamedTuple):
    """What is printed: for programs, and for people."""

    document: dict[str, Any]
    lines: list[str]


def run(options: Namespace, out: TextIO, err: TextIO) -> int:
    """Carry a verb out; exit code 2 for bad arguments, 3 for no such schedule or tenant, 4 when it is refused."""
    if options.verb == "preview":
        return run_preview(options, out, err)
    try:
        told = VERBS[options.verb](options)
    except NotFound as error:
        return _refused(err, [error.detail], NOT_FOUND)
    except ValidationFailed as several:
        return _refused(err, [f"{one.pointer}: {one.reason}" for one in several.errors], USAGE)
    except JobError as error:
        return _refused(err, [error.detail], REFUSED)
    if options.json:
        out.write(json.dumps(told.document) + "\n")
    else:
        out.writelines(printable(line) + "\n" for line in told.lines)
    return DONE


def _list(options: Namespace) -> Told:
    state = None if options.state is None else State(options.state)
    slugs, now = dict(Tenant.objects.values_list("pk", "slug")), database_now()
    found, lines = [], []
    for one, stored in _all(tenant_id(options.tenant), state):
        told = upcoming(stored, after=now, count=1, running=True)
        doing = state_of(one, now)
        next_run = told.runs[0]["due_at"] if told.runs else None
        line = {
            "id": str(one.pk),
            "tenant": slugs.get(one.tenant_id),
            "name": one.name,
            "state": doing.value,
            "next_run": next_run,
            "timezone": stored.timezone,
            "words": told.words,
        }
        found.append(line)
        why = f": {one.pause_reason}" if doing is State.PAUSED else ""
        place = f"{line['tenant']}/{one.name}"
        lines.append(
            f"{one.pk}  {doing:<7} {next_run or '-':<20}  {place}  {told.words} ({stored.timezone}){why}"
        )
    return Told({"schedules": found}, lines or ["no schedules"])


def _transitions(options: Namespace) -> Told:
    now = database_now()
    until = options.until or now + USUAL_AHEAD
    if not now < until <= now + AHEAD:
        raise _unusable("--until", "must be in the next 18 months")
    slugs = dict(Tenant.objects.values_list("pk", "slug"))
    owners: dict[str, str] = {}

    def seen() -> Iterator[tuple[Schedule, StoredSchedule]]:
        for one, stored in _all(tenant_id(options.tenant), None):
            owners[str(one.pk)] = slugs.get(one.tenant_id, "?")
            yield one, stored

    found = touched(seen(), after=now, until=until)
    lines = []
    for change in found.transitions:
        lines.append(f"{change['at']}  {change['zone']}  {change['words']}")
        for each in change["schedules"]:
            each["tenant"] = owners[each["id"]]
            policy = ", ".join(f"{name}={value}" for name, value in each["policy"].items())
            lines.append(f"  {each['tenant']}/{each['name']}  {each['words']}  {policy}")
            lines += [f"    {_run_line(one)}" for one in each["runs"]]
            lines += ["    and more"] * each["cut"]
    unreadable = [str(one) for one in found.unreadable]
    lines += [f"{one}  cannot be read" for one in unreadable]
    told = {
        "transitions": found.transitions,
        "unreadable": unreadable,
        "until": format_time(until),
        "zone_data": ZONE_DATA,
    }
    return Told(told, lines or [f"no schedule is touched until {format_time(until)}"])


def _run_line(one: dict[str, Any]) -> str:
    time = f"{one['local']}  {one['fire_at']}" if one["fire_at"] else f"{one['slot']}  skipped"
    return "  ".join(filter(None, [time, one["words"]]))


def _pause(options: Namespace) -> Told:
    found, tenant = _one(options.schedule)
    try:
        reason = text(MAX_REASON)(options.reason.strip(), "--reason")
    except InvalidField as fault:
        raise ValidationFailed([fault]) from None
    if options.resume_at is not None and options.resume_at <= database_now():
        raise _unusable("--resume-at", "must be in the future")
    paused = pause_schedule(
        tenant=tenant,
        schedule_id=found.pk,
        actor=operator(),
        reason=reason,
        resume_at=options.resume_at,
    )
    end = paused.resume_at and format_time(paused.resume_at)
    until = f" until {end}" if end else ""
    told = {"paused": str(found.pk), "reason": reason, "resume_at": end}
    name = f"{tenant.slug}/{found.name}"
    words = "what a worker has already goes on"
    return Told(told, [f"schedule {name}: paused{until} ({reason}); {words}"])


def _resume(options: Namespace) -> Told:
    found, tenant = _one(options.schedule)
    resume_schedule(tenant=tenant, schedule_id=found.pk, actor=operator())
    name = f"{tenant.slug}/{found.name}"
    return Told({"resumed": str(found.pk)}, [f"schedule {name}: paused → going on"])


def _run_now(options: Namespace) -> Told:
    found, tenant = _one(options.schedule)
    made = trigger_schedule(
        tenant=tenant,
        schedule_id=found.pk,
        actor=operator(),
        request_key=options.request_key,
    )
    told = {"job": str(made.job_id), "created": made.created}
    new = "new job" if made.created else "known job"
    return Told(told, [f"schedule {tenant.slug}/{found.name}: {new} {made.job_id}"])


def _catch_up(options: Namespace) -> Told:
    found, tenant = _one(options.schedule)
    done = catch_up(
        tenant=tenant,
        schedule_id=found.pk,
        begin=options.begin,
        until=options.until,
        actor=operator(),
    )
    words = f"{done.made} made up for, {done.known} had run or have a job, {done.closed} on closed days"
    return Told(done._asdict(), [f"schedule {tenant.slug}/{found.name}: {words}"])


VERBS: dict[str, Callable[[Namespace], Told]] = {
    "list": _list,
    "transitions": _transitions,
    "pause": _pause,
    "resume": _resume,
    "run": _run_now,
    "catch-up": _catch_up,
}


def _unusable(argument: str, reason: str) -> ValidationFailed:
    return ValidationFailed([InvalidField(argument, "out_of_range", reason)])


def tenant_id(slug: str | None) -> int | None:
    """The tenant of this name; None for all.

    Raises:
        NotFound: There is none.
    """
    if slug is None:
        return None
    there = Tenant.objects.filter(slug=slug) if slug.isprintable() else Tenant.objects.none()
    if (key := there.values_list("pk", flat=True).first()) is None:
        raise NotFound(f"There is no tenant {slug!r}.")
    return key


def _one(named: str) -> tuple[Schedule, Tenant]:
    missing = NotFound(f"There is no schedule {named!r}.")
    there = Schedule.objects.filter(deleted_at=None)
    slug, slash, name = named.partition("/")
    try:
        there = (
            there.filter(tenant__slug=slug, name=name) if slash else there.filter(pk=UUID(named))
        )
    except ValueError:
        raise missing from None
    key = there.values_list("pk", "tenant").first() if named.isprintable() else None
    if key is None:
        raise missing
    found = find_schedule(tenant_id=key[1], schedule_id=key[0])
    return found, Tenant.objects.get(pk=key[1])


def _all(tenant_key: int | None, state: State | None) -> Iterator[tuple[Schedule, StoredSchedule]]:
    """Every schedule by name, as it is listed and as it is expanded; a batch at a time."""
    after: tuple[str, UUID] | None = None
    filters = Filters(tenant_id=tenant_key, state=state)
    while page := list_schedules(filters, limit=BATCH, after=after):
        stored = read_schedules([one.pk for one in page], defaults=defaults())
        yield from ((one, stored[one.pk]) for one in page if one.pk in stored)
        after = page[-1].name, page[-1].pk


def _refused(err: TextIO, words: list[str], code: int) -> int:
    err.writelines(f"{printable(one)}\n" for one in words)
    return code
