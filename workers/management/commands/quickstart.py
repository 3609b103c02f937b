"""manage.py quickstart: the whole product in one terminal, on an embedded database if none is given."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workers import embedded
from workers.process import positive_int
from workers.quickstart.stack import StackError
from workers.tied import spawn

TURN_SECONDS = 0.2


class Command(BaseCommand):
    """Arguments → database → Quickstart → run."""

    help = "Starts database, web, scheduler and worker here and sends them a shop's day."
    requires_system_checks: Any = []  # they ask the database, which may not run yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Flags of the stack."""
        parser.add_argument("--port", type=int, default=8000, help="of the web process; 0: any")
        parser.add_argument(
            "--data-dir",
            type=Path,
            default=Path(settings.BASE_DIR) / ".duekeeper",
            help="folder of database, logs, secret key and the provider's store; delete it to start"
            " afresh (default: %(default)s)",
        )
        parser.add_argument(
            "--orders",
            type=Path,
            default=Path(settings.BASE_DIR) / "examples" / "orders.ndjson",
            help="what the shop posts, a JSON object a line: the body of POST /api/v1/jobs and"
            ' "tenant" (default: %(default)s)',
        )
        parser.add_argument("--no-demo", action="store_true", help="no shop, no orders")
        parser.add_argument(
            "--exit-when-done",
            action="store_true",
            help="end when all orders are finished; exit code 0 only if the books balance",
        )

        chaos = parser.add_argument_group("chaos")
        chaos.add_argument(
            "--chaos",
            action="store_true",
            help="two schedulers and three workers, killed and frozen at random; at the end the"
            " books must balance and every history must be whole all the same",
        )
        chaos.add_argument(
            "--chaos-seed", type=int, metavar="N", help="the same faults again (default: random)"
        )
        chaos.add_argument(
            "--chaos-kills",
            type=positive_int,
            default=20,
            metavar="N",
            help="with --exit-when-done: no end before so many kills (default: %(default)s)",
        )

    def handle(self, *, data_dir: Path, **options: Any) -> None:
        """Run, in this process if there is a database, otherwise in a child that is given one."""
        stopped_code = int(options["exit_when_done"])  # stopped is not done
        try:
            if os.environ.get("DATABASE_URL"):
                code = self._run(data_dir.resolve(), options)
            else:
                code = self._with_embedded_database(data_dir.resolve(), stopped_code)
        except KeyboardInterrupt:  # before there was anything to end in order
            code = stopped_code
        sys.exit(code)

    def _run(self, folder: Path, options: dict[str, Any]) -> int:
        from workers.quickstart.run import Quickstart  # its models' checks need the database

        seed = None
        if options["chaos"] or options["chaos_seed"] is not None:
            given = options["chaos_seed"]
            seed = secrets.randbelow(1_000_000) if given is None else given
        stack = Quickstart(
            port=options["port"],
            folder=folder,
            orders=None if options["no_demo"] else options["orders"],
            exit_when_done=options["exit_when_done"],
            chaos_seed=seed,
            least_kills=options["chaos_kills"],
        )
        try:
            return stack.run()
        except StackError as error:
            raise CommandError(str(error)) from error

    def _with_embedded_database(self, folder: Path, stopped_code: int) -> int:
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # a server half made is cleared up
        self._say("starting database …")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            server = embedded.start(folder / "postgres")
        except embedded.EmbeddedPostgresError as error:
            hint = " (--data-dir names the folder.)" if "in use" in str(error) else ""
            raise CommandError(f"{error}{hint}") from error
        with server:
            # Ctrl-C reaches this process alone; the child ends in order and the database after it.
            stopped: list[int] = []
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: stopped.append(number))
            child = spawn(
                [sys.executable, *sys.argv],
                parting_signal=signal.SIGTERM,
                env={**os.environ, "DATABASE_URL": server.url},
            )
            return self._accompany(child, server, stopped, stopped_code)

    def _accompany(
        self,
        child: subprocess.Popen[bytes],
        server: embedded.EmbeddedServer,
        stopped: list[int],
        stopped_code: int,
    ) -> int:
        """Wait for the child's end; pass on what it cannot know: Ctrl-C, and that the server is gone for good."""
        told = database_ended = False
        while (code := child.poll()) is None:
            if stopped and not told:
                child.terminate()
                told = True
            if not database_ended and _has_ended(server.pid):
                database_ended = True
                child.send_signal(signal.SIGUSR1)
            time.sleep(TURN_SECONDS)
        if database_ended:
            raise CommandError(
                f"The database server ended; its log is {server.home / 'postgresql.log'}"
            )
        if code < 0 and told:
            return stopped_code  # it had not come far enough to end in order
        if code < 0:
            raise CommandError(f"The quickstart itself was ended by signal {-code}.")
        return code

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _has_ended(pid: int) -> bool:
    """Whether this child of ours has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True  # somebody has asked before
