"""manage.py importschedules: rules of cron, Kubernetes and django-celery-beat, with every meaning that differs here."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from django.core.management.base import BaseCommand

from workers.importing import run


class Command(BaseCommand):
    """Arguments → entries → report. Nothing that is read is ever run."""

    help = (
        "Reads crontabs, Kubernetes CronJobs or the tables of django-celery-beat and shows what each rule would do here:"
        " handler, next runs, and every meaning that differs. --apply creates the schedules."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See run.py."""
        run.add_arguments(parser)

    def handle(self, **options: Any) -> None:
        """Import; its result is the exit code."""
        code = run.run(Namespace(**options), sys.stdout, sys.stderr)
        if code:
            sys.exit(code)
