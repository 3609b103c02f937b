"""manage.py quickstart: the whole product in one terminal, on an embedded database if none is given."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workers import embedded
from workers.quickstart.stack import StackError
from workers.tied import spawn


class Command(BaseCommand):
    """Arguments → database → Quickstart → run."""

    help = "Starts database, web, scheduler and worker here and sends them a shop's day."
    requires_system_checks: Any = []  # they ask the database, which may not run yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Flags of the stack."""
        parser.add_argument("--port", type=int, default=8000, help="of the web process; 0: any")
        parser.add_argument(
            "--data-dir", type=Path, default=Path(settings.BASE_DIR) / ".duekeeper"
        )
        parser.add_argument(
            "--orders",
            type=Path,
            default=Path(settings.BASE_DIR) / "examples" / "orders.ndjson",
            help="what the shop posts: one create request a line",
        )
        parser.add_argument("--no-demo", action="store_true", help="no shop, no orders")
        parser.add_argument(
            "--exit-when-done",
            action="store_true",
            help="end when all orders are finished; exit code 0 only if the books balance",
        )

    def handle(self, *, data_dir: Path, **options: Any) -> None:
        """Run, in this process if there is a database, otherwise in a child that is given one."""
        if not os.environ.get("DATABASE_URL"):
            sys.exit(self._with_embedded_database(data_dir.resolve()))
        from workers.quickstart.run import Quickstart  # its models' checks need the database

        stack = Quickstart(
            port=options["port"],
            folder=data_dir.resolve(),
            orders=None if options["no_demo"] else options["orders"],
            exit_when_done=options["exit_when_done"],
        )
        try:
            code = stack.run()
        except StackError as error:
            raise CommandError(str(error)) from error
        sys.exit(code)

    def _with_embedded_database(self, folder: Path) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            server = embedded.start(folder / "postgres")
        except embedded.EmbeddedPostgresError as error:
            raise CommandError(str(error)) from error
        with server:
            again = spawn(
                [sys.executable, *sys.argv],
                parting_signal=signal.SIGTERM,
                env={**os.environ, "DATABASE_URL": server.url},
            )
            # Ctrl-C reaches this process alone; the child ends in order and the database after it.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: again.terminate())
            return again.wait()
