"""manage.py schedulelab: what other weights, head starts and reserves would do to the waits of an arrival file."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs.queries.catalog import catalog
from workers.lab import (
    BadInput,
    compare,
    print_report,
    read_arrivals,
    stored_settings,
    tried_settings,
)
from workers.process import positive_seconds


class Command(BaseCommand):
    """Arguments → settings → simulation → table. Nothing is stored."""

    help = (
        "Replays an arrival file through the scheduler's own choices on a fake clock: once with the settings that"
        " are stored, once with those of the options. Nothing is saved."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to replay, and what to try."""
        parser.add_argument(
            "file",
            type=Path,
            help='a line each: {"at": 0.5, "seconds": 2, "tenant": "acme", "lane": "normal", "labels": {}}',
        )
        for flag, metavar in (
            ("--head-start", "LANE=SECONDS"),
            ("--weight", "TENANT=NUMBER"),
            ("--reserve", "POOL/LANE=SLOTS"),
            ("--slots", "POOL=NUMBER"),
            ("--max-running", "TENANT=NUMBER"),
        ):
            parser.add_argument(flag, action="append", metavar=metavar, help="repeatable")
        parser.add_argument(
            "--overhead",
            type=positive_seconds,
            default=0.02,
            metavar="SECONDS",
            help="from a free slot to the next start (default 0.02)",
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, **options: Any) -> None:
        """Read, run, print."""
        found = catalog(max_age_seconds=0)
        stored = stored_settings(found, overhead_seconds=options["overhead"])
        try:
            tried = tried_settings(stored, found, options)
            with options["file"].open(encoding="utf-8") as lines:
                arrivals, homeless = read_arrivals(lines, found)
        except (BadInput, OSError, UnicodeDecodeError) as error:
            raise CommandError(str(error), returncode=2) from error
        report = {**compare(arrivals, stored, tried, found), "no_pool": homeless}
        if options["json"]:
            self.stdout.write(json.dumps(report, indent=2))
            return
        print_report(report, self.stdout)  # type: ignore[arg-type]
        if homeless:
            self.stderr.write(f"{homeless} arrivals have labels that no stored pool offers.")
