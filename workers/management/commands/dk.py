"""manage.py dk <noun> <verb>: what operators do from a terminal, for the day the web is down."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from django.core.management.base import BaseCommand

from jobs.services.pausing import TARGETS
from workers.dk import calendar, history, job, schedule
from workers.dk.pausing import Pausable, Pauses

NOUNS: dict[str, Any] = {
    "calendar": calendar,
    "history": history,
    "job": job,
    "pause": Pauses(),
    "schedule": schedule,
    **{kind.value: Pausable(kind) for kind in TARGETS},
}


class Command(BaseCommand):
    """Arguments → noun → verb."""

    help = "Operators' commands: dk <noun> <verb>."
    requires_system_checks: Any = []  # a look at a broken installation must be possible

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One sub-command a noun."""
        nouns = parser.add_subparsers(dest="noun", required=True)
        for name, noun in NOUNS.items():
            noun.add_verbs(nouns.add_parser(name, help=noun.__doc__))

    def handle(self, *, noun: str, **options: Any) -> None:
        """Run the verb; its result is the exit code."""
        code = NOUNS[noun].run(Namespace(**options), sys.stdout, sys.stderr)
        if code:
            sys.exit(code)
