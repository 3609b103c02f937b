"""calendars of business days: list them, show one, read one from a calendar file"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, TextIO

from jobs.clock import database_now
from jobs.errors import JobError, NotFound, ValidationFailed
from jobs.models import Calendar, Tenant
from jobs.policies.times import format_time
from jobs.services.calendars import (
    create_calendar,
    find_calendar,
    list_calendars,
    parse_calendar,
    replace_calendar,
)
from workers.dk.history import printable
from workers.dk.pausing import operator

DONE, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 4


def add_verbs(parser: ArgumentParser) -> None:
    """Verbs of the noun."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    several = verbs.add_parser("list", help="calendars, each with how many days it closes")
    several.add_argument("--tenant", metavar="SLUG", help="only this tenant's")
    one = verbs.add_parser("show", help="the closed days of one")
    one.add_argument("name")
    read = verbs.add_parser("import", help="a calendar, or its next edition, from an .ics file")
    read.add_argument("file", type=Path, metavar="FILE.ics")
    read.add_argument("--name", required=True, help="of the calendar")
    read.add_argument(
        "--weekend",
        metavar="DAYS",
        help="sat,sun: always closed; default: as in the edition before, else none",
    )
    for verb in (one, read):
        verb.add_argument("--tenant", metavar="SLUG", required=True)
    for verb in (several, one, read):
        verb.add_argument("--json", action="store_true", help="one JSON document")


def run(options: Namespace, out: TextIO, err: TextIO) -> int:
    """Carry a verb out; exit code 2 for a bad file or argument, 3 for no such calendar or tenant."""
    try:
        told, lines = {"list": _list, "show": _show, "import": _import}[options.verb](options)
    except NotFound as error:
        return _refused(err, [error.detail], NOT_FOUND)
    except ValidationFailed as several:
        return _refused(err, [f"{one.pointer}: {one.reason}" for one in several.errors], USAGE)
    except (OSError, UnicodeDecodeError) as error:
        return _refused(err, [f"cannot read {options.file}: {error}"], USAGE)
    except JobError as error:
        return _refused(err, [error.detail], REFUSED)
    if options.json:
        out.write(json.dumps(told) + "\n")
    else:
        out.writelines(printable(line) + "\n" for line in lines)
    return DONE


def _list(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    tenants = Tenant.objects.only("slug").order_by("slug")
    if options.tenant is not None:
        tenants = tenants.filter(pk=_tenant(options.tenant).pk)
    found = [(tenant, one) for tenant in tenants for one in list_calendars(tenant_id=tenant.pk)]
    lines = [_line(tenant, one) for tenant, one in found]
    told = [_document(tenant, one) for tenant, one in found]
    return {"calendars": told}, lines or ["no calendars"]


def _show(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    tenant = _tenant(options.tenant)
    found = _find(tenant, options.name)
    days = [f"  {day}  {name}".rstrip() for day, name in found.days.items()]
    told = {**_document(tenant, found), "days": found.days}
    return told, [_line(tenant, found), *days]


def _import(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    tenant = _tenant(options.tenant)
    fields: dict[str, Any] = {
        "name": options.name,
        "ics": options.file.read_text("utf-8-sig"),
    }
    try:
        old = _find(tenant, options.name)
    except NotFound:
        old = None
    if options.weekend is not None:
        fields["weekend"] = [day for day in options.weekend.split(",") if day]
    elif old is not None:
        fields["weekend"] = old.weekend
    request = parse_calendar(fields, today=database_now().date())
    if old is None:
        made = create_calendar(tenant=tenant, request=request, actor=operator())
        return _document(tenant, made), [f"{_line(tenant, made)}: new"]
    made = replace_calendar(tenant=tenant, request=request, actor=operator(), number=old.number)
    gone, added = set(old.days) - set(made.days), set(made.days) - set(old.days)
    words = f"instead of edition {old.number}: {len(added)} days more, {len(gone)} days less"
    return _document(tenant, made), [f"{_line(tenant, made)}: {words}"]


def _tenant(slug: str) -> Tenant:
    found = Tenant.objects.filter(slug=slug).first() if slug.isprintable() else None
    if found is None:
        raise NotFound(f"There is no tenant {slug!r}.")
    return found


def _find(tenant: Tenant, name: str) -> Calendar:
    try:
        if not name.isprintable():
            raise NotFound
        return find_calendar(tenant_id=tenant.pk, name=name)
    except NotFound:
        raise NotFound(f"{tenant.slug} has no calendar {name!r}.") from None


def _line(tenant: Tenant, one: Calendar) -> str:
    weekend = f" and every {', '.join(one.weekend)}" if one.weekend else ""
    return f"{tenant.slug}/{one.name}  edition {one.number}  {len(one.days)} days{weekend}"


def _document(tenant: Tenant, one: Calendar) -> dict[str, Any]:
    return {
        "tenant": tenant.slug,
        "name": one.name,
        "number": one.number,
        "day_count": len(one.days),
        "weekend": one.weekend,
        "created_by": one.created_by,
        "created_at": format_time(one.created_at),
    }


def _refused(err: TextIO, words: list[str], code: int) -> int:
    err.writelines(f"{printable(one)}\n" for one in words)
    return code
