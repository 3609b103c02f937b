"""One import from arguments to exit code: read, plan, create if asked to, tell."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

from jobs.clock import database_now
from jobs.errors import InvalidField, ValidationFailed
from jobs.models import Tenant
from jobs.policies.zones import parse_zone
from jobs.services.timings import tenant_defaults
from workers.dk.history import printable
from workers.dk.pausing import operator
from workers.importing.celery_beat import read_rows
from workers.importing.celery_tables import read_tables
from workers.importing.cron_files import read_crontabs
from workers.importing.entries import Context, Entry, Notice, Reading, Unreadable, Zone
from workers.importing.kubernetes import read_manifests
from workers.importing.mapping import Rule, parse_mapping, skeleton
from workers.importing.plan import Outcome, Planner, Row, create
from workers.importing.report import all_well, document, lines
from workers.importing.texts import read_text

DONE, NOT_ALL, USAGE, NOT_FOUND = 0, 1, 2, 3
CODES = ("day_rule", "sunday_range", "refused_there")


class _Usage(Exception):
    """The command line, or a file that it names, cannot be used."""


def add_arguments(parser: ArgumentParser) -> None:
    """What to read, what it becomes, and whether it is stored."""
    parser.add_argument("--tenant", required=True, metavar="SLUG", help="owner of the schedules")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--crontab", nargs="+", metavar="FILE", help="files, folders such as /etc/cron.d, or -"
    )
    source.add_argument(
        "--kubernetes", nargs="+", metavar="FILE", help="YAML manifests with CronJobs, or -"
    )
    source.add_argument(
        "--celery-beat",
        metavar="DATABASE_URL",
        help="postgresql:// or sqlite:///path; env:NAME takes it from a variable. Only read",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--system", action="store_true", help="crontabs whose lines name a user")
    form.add_argument("--user", action="store_true", help="crontabs whose lines do not")
    parser.add_argument(
        "--ignore-cron-tz", action="store_true", help="CRON_TZ means nothing, as to Debian's cron"
    )
    parser.add_argument(
        "--timezone", metavar="KEY", help="of rules that name none; default: the tenant's"
    )
    parser.add_argument("--mapping", metavar="FILE", help="JSON: which handler does what")
    parser.add_argument(
        "--write-mapping", metavar="FILE", help="write one to fill in, with all that has none"
    )
    parser.add_argument(
        "--accept",
        action="append",
        choices=CODES,
        default=[],
        help="create schedules that run on other days than before for this reason",
    )
    parser.add_argument(
        "--prefix", default="", help="before every name, such as that of a machine"
    )
    parser.add_argument(
        "--apply", action="store_true", help="create; without it nothing is stored"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(options: Namespace, out: TextIO, err: TextIO) -> int:
    """Import; the exit code is 1 when something is refused or has no mapping."""
    tenant = Tenant.objects.filter(slug=options.tenant).first()
    if tenant is None:
        err.write(printable(f"no tenant {options.tenant!r}") + "\n")
        return NOT_FOUND
    now = database_now()
    try:
        rules = _rules(options)
        reading = _read(options, tenant, now)
        rows, unused = _plan(options, tenant, rules, reading, now)
        _write_mapping(options.write_mapping, rows)
    except _Usage as fault:
        err.write("\n".join(map(printable, str(fault).split("\n"))) + "\n")
        return USAGE
    if options.apply:
        for row in rows:
            create(row, tenant=tenant, actor=operator())
    notices = [*reading.notices, *unused]
    if options.json:
        told = document(rows, notices, applied=options.apply)
        out.write(json.dumps(told) + "\n")
    else:
        out.writelines(line + "\n" for line in lines(rows, notices, applied=options.apply))
    return DONE if all_well(rows, notices) else NOT_ALL


def _rules(options: Namespace) -> list[Rule]:
    if options.mapping is None:
        if options.apply:
            raise _Usage("--apply needs --mapping")
        return []
    try:
        return parse_mapping(read_text(options.mapping))
    except Unreadable as fault:
        raise _Usage(f"--mapping {options.mapping}: {fault}") from None
    except ValidationFailed as several:
        raise _Usage(
            "\n".join(
                f"--mapping {options.mapping}: {one.pointer or '/'}: {one.field_code}: {one.reason}"
                for one in several.errors
            )
        ) from None


def _read(options: Namespace, tenant: Tenant, now: datetime) -> Reading:
    zone = _zone(options, tenant)
    context = Context(zone, now)
    if options.crontab:
        form = True if options.system else False if options.user else None
        reading = read_crontabs(
            options.crontab,
            context=context,
            system=form,
            honour_zone=not options.ignore_cron_tz,
        )
    elif options.kubernetes:
        reading = _manifests(options.kubernetes, context)
    else:
        try:
            reading = read_rows(read_tables(_url(options.celery_beat)), context=context)
        except Unreadable as fault:
            raise _Usage(f"--celery-beat: {fault}") from None
    _tell_zone(options, zone, reading)
    return reading


def _zone(options: Namespace, tenant: Tenant) -> Zone:
    """Of rules that name none. Clusters keep UTC; machines keep their own, which no file tells."""
    if options.timezone is not None:
        try:
            return Zone(parse_zone(options.timezone), "--timezone")
        except InvalidField as fault:
            raise _Usage(f"--timezone: {fault.field_code}: {fault.reason}") from None
    if options.kubernetes:
        return Zone("UTC", "Kubernetes' default")
    return Zone(tenant_defaults(tenant)["timezone"], "the tenant")


def _tell_zone(options: Namespace, zone: Zone, reading: Reading) -> None:
    guessed = [one for one in reading.entries if one.zone is zone and "cron" in one.recurrence]
    if options.timezone is not None or options.celery_beat or not guessed:
        return
    where = "the controller's zone" if options.kubernetes else "the zone of their machine"
    text = f"{len(guessed)} rules name no zone and run in {where}, which no file tells: taken as {zone.key}, from {zone.source}"
    reading.notices.append(Notice("--timezone", "zone_assumed", text))


def _manifests(paths: Sequence[str], context: Context) -> Reading:
    reading = Reading()
    for path in paths:
        folder = Path(path)
        inside = sorted(str(one) for one in folder.glob("*.y*ml")) if folder.is_dir() else [path]
        for file in inside:
            try:
                reading.add(read_manifests(read_text(file), place=file, context=context))
            except Unreadable as fault:
                reading.notices.append(Notice(file, "unreadable", str(fault), wrong=True))
    return reading


def _url(given: str) -> str:
    """As given, or from the environment, where no list of processes shows its password."""
    if not given.startswith("env:"):
        return given
    name = given.removeprefix("env:")
    if name not in os.environ:
        raise Unreadable(f"there is no variable {name}")
    return os.environ[name]


def _plan(
    options: Namespace, tenant: Tenant, rules: list[Rule], reading: Reading, now: datetime
) -> tuple[list[Row], list[Notice]]:
    planner = Planner(
        tenant=tenant, rules=rules, accepted=options.accept, prefix=options.prefix, now=now
    )
    rows = [planner.plan(entry) for entry in reading.entries]
    unused = [
        Notice(f"--mapping {rule.place}", "unused", "matches nothing of what was read")
        for rule in rules
        if rule.place not in planner.used
    ]
    return rows, unused


def _write_mapping(path: str | None, rows: list[Row]) -> None:
    """For its owner's eyes: commands stand in it as they are. Never over a file that is there."""
    if path is None:
        return
    todo: list[Entry] = [row.entry for row in rows if row.outcome is Outcome.UNMAPPED]
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(skeleton(todo))
    except OSError as error:
        raise _Usage(f"--write-mapping {path}: {error.strerror}") from None
