"""One quickstart from beginning to end."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError

from jobs.database import is_unavailable
from jobs.models import Handler
from workers.quickstart.chaos import Chaos
from workers.quickstart.demo import Demo, prepare
from workers.quickstart.figures import Report, look, registered, report
from workers.quickstart.greeting import greeting
from workers.quickstart.loopback import free_port, wait_for_web
from workers.quickstart.orders import Shop
from workers.quickstart.outage import Outage, first_line
from workers.quickstart.screen import Screen
from workers.quickstart.stack import Stack, StackError, Stopped

# A short lease, so that a worker killed by hand is recovered from while one watches. Production keeps 30 s.
LEASES = {
    "DUEKEEPER_LEASE_TTL_SECONDS": "6",
    "DUEKEEPER_HEARTBEAT_SECONDS": "2",
    "DUEKEEPER_TICK_SECONDS": "0.5",
    "DUEKEEPER_SHARD_LEASE_SECONDS": "5",
}
# With chaos there is always somebody left to take over.
SCHEDULERS, WORKERS = ("scheduler", "scheduler-2"), ("worker", "worker-2", "worker-3")
PROVIDER = ("--delay-ms", "40", "--fail-every", "25")
TURN_SECONDS, CHAOS_TURN_SECONDS = 0.25, 0.05
REPORT_SECONDS = 20.0  # how long the report waits for a database or a provider that is away
DATABASE_ENDED = (
    signal.SIGUSR1
)  # from the owner of an embedded server: there is nothing left to wait for


class Quickstart:
    """Database at hand, it migrates, fills, starts everything, shows it, and reports."""

    def __init__(
        self,
        *,
        port: int,
        folder: Path,
        orders: Path | None,
        exit_when_done: bool,
        chaos_seed: int | None = None,
        least_kills: int = 0,
    ) -> None:
        """Nothing is started yet.

        Args:
            port: Of the web process; 0 means any.
            folder: For logs, secret key and the provider's store.
            orders: One create request a line, with the tenant's slug; None means no shop.
            exit_when_done: End when all orders are finished.
            chaos_seed: Kill and freeze workers and schedulers by this seed; None means peace.
            least_kills: With chaos, no end before so many kills.
        """
        self._port, self._folder = port, folder
        self._orders, self._exit_when_done = orders, exit_when_done
        self._chaos_seed, self._least_kills = chaos_seed, least_kills
        self._stopping = self._database_ended = False
        self._screen = Screen()
        self._outage = Outage(self._screen.happened)

    def run(self) -> int:
        """Run until Ctrl-C, or until the orders are done; returns the exit code.

        Raises:
            StackError: A process did not come up, or keeps dying; or there is no database at the start.
        """
        for number in (signal.SIGINT, signal.SIGTERM, DATABASE_ENDED):
            signal.signal(number, self._stop)
        self._folder.mkdir(parents=True, exist_ok=True)
        port = free_port(self._port)
        try:
            demo = self._prepare()
            with Stack(
                folder=self._folder,
                env=self._env(),
                say=self._screen.happened,
                stopping=lambda: self._stopping,
            ) as stack:
                return self._run(stack, demo, f"http://127.0.0.1:{port}", port)
        except Stopped:
            return int(self._exit_when_done or self._database_ended)

    def _prepare(self) -> Demo:
        self._screen.say("preparing tables …")
        try:
            call_command("migrate", verbosity=0, interactive=False)
            return prepare()
        except (DatabaseError, InterfaceError) as error:
            if not is_unavailable(error):
                raise
            raise StackError(f"The database does not answer: {first_line(error)}") from error

    def _run(self, stack: Stack, demo: Demo, url: str, port: int) -> int:
        stack.raise_if_stopping()
        self._screen.say("starting web, scheduler, worker …")
        provider_url = ""
        if self._orders:
            provider_folder = self._folder / "provider"
            shutil.rmtree(provider_folder, ignore_errors=True)  # its books are those of one run
            provider_url = stack.start_provider(provider_folder, *PROVIDER)
            stack.env.update(SHOP_PROVIDER_URL=provider_url, DUEKEEPER_APPS="examples.shop")
        self._start(stack, port)
        wait_for_web(f"{url}/console/login/", stack)
        for line in greeting(
            demo,
            url=url,
            worker_pid=stack.children["worker"].process.pid,
            logs=self._folder / "logs",
            database_url=os.environ["DATABASE_URL"],
            has_shop=bool(self._orders),
        ):
            self._screen.say(line)
        if not self._orders:
            chaos = self._chaos(stack)
            while not self._stopping:
                stack.watch()
                self._pause(chaos)
            return int(self._database_ended)
        self._wait_for_handlers(stack)
        shop = Shop(orders=self._orders, url=url, tokens=demo.tokens, key_suffix=demo.run)
        shop.start()
        chaos = self._chaos(stack)
        with self._screen:
            while not self._stopping and not self._turn(stack, shop, chaos):
                self._pause(chaos)
        if self._database_ended:
            return 1
        self._screen.say("stopping: the shop, then worker and scheduler; then the report …")
        shop.stop()
        if chaos is not None:
            chaos.end()
        # The provider stays: it has the other half of the books.
        stack.stop(*SCHEDULERS, *WORKERS)
        return self._end(stack, shop, demo, provider_url, chaos)

    def _chaos(self, stack: Stack) -> Chaos | None:
        if self._chaos_seed is None:
            return None
        seed = self._chaos_seed
        self._screen.say(f"chaos begins; --chaos-seed {seed} draws the same faults again")
        return Chaos(
            stack,
            [*SCHEDULERS, *WORKERS],
            seed=seed,
            lease_seconds=float(stack.env["DUEKEEPER_LEASE_TTL_SECONDS"]),
            at_work=lambda: self._outage.ask(registered) or (),
            say=self._screen.happened,
        )

    def _pause(self, chaos: Chaos | None) -> None:
        """Until the next look; chaos has its turns meanwhile."""
        if chaos is None:
            time.sleep(TURN_SECONDS)
            return
        until = time.monotonic() + TURN_SECONDS
        while time.monotonic() < until:
            chaos.turn()
            time.sleep(CHAOS_TURN_SECONDS)

    def _start(self, stack: Stack, port: int) -> None:
        manage = str(Path(settings.BASE_DIR) / "manage.py")
        python = sys.executable
        bind = f"127.0.0.1:{port}"
        web = ("-m", "gunicorn", "scheduler_site.wsgi", "--bind", bind, "--threads", "4")
        stack.start("web", python, *web, "--workers", "1", "--no-control-socket")
        several = slice(None if self._chaos_seed is not None else 1)
        worker = ("runworker", "--slots", "8", "--drain-timeout", "10")
        for name in SCHEDULERS[several]:
            stack.start(name, python, manage, "runscheduler")
        for name in WORKERS[several]:
            stack.start(name, python, manage, *worker)

    def _turn(self, stack: Stack, shop: Shop, chaos: Chaos | None) -> bool:
        """One look; True when this run is over."""
        stack.watch()
        figures = self._outage.ask(lambda: look(list(shop.accepted.values())))
        self._screen.show(
            figures,
            accepted=len(shop.accepted),
            replayed=shop.replayed,
            refused=len(shop.refused),
        )
        if figures is None or not shop.done.is_set():
            return False
        if not self._exit_when_done:
            return False
        if chaos is not None:
            if chaos.kills < self._least_kills:
                return False
            chaos.end()
        return sum(figures.finished.values()) >= len(shop.accepted)

    def _end(
        self, stack: Stack, shop: Shop, demo: Demo, provider_url: str, chaos: Chaos | None
    ) -> int:
        for line in shop.refused:
            self._screen.say(f"refused: {line}")
        found = self._report(stack, shop, demo, provider_url)
        if found is None:
            self._screen.say("No report: database or provider is away. The jobs are kept.")
            return 1
        faults = None if chaos is None else (chaos.kills, chaos.freezes)
        self._screen.report(found, replayed=shop.replayed, faults=faults)
        incomplete = bool(shop.refused) or self._stopping
        return int(bool(found.problems) or (self._exit_when_done and incomplete))

    def _report(self, stack: Stack, shop: Shop, demo: Demo, provider_url: str) -> Report | None:
        deadline = time.monotonic() + REPORT_SECONDS
        while time.monotonic() < deadline and not self._database_ended:
            stack.watch()  # the provider may have died too
            try:
                found = self._outage.ask(
                    lambda: report(
                        dict(shop.accepted),
                        provider_url,
                        since=demo.began_at,
                        stopped_early=self._stopping,
                    )
                )
            except OSError as error:
                self._screen.say(f"no answer of the provider: {error}")
                found = None
            if found is not None:
                return found
            time.sleep(TURN_SECONDS)
        return None

    def _wait_for_handlers(self, stack: Stack) -> None:
        """Orders name handlers, and only a worker that has started makes a name known."""
        known = Handler.objects.filter(name="billing.charge")
        deadline = time.monotonic() + 60
        while not self._outage.ask(known.exists):
            stack.raise_if_stopping()
            if self._outage.away:
                deadline = time.monotonic() + 60  # not the worker's fault
            elif time.monotonic() > deadline:
                raise stack.failure("worker", "No worker registered its handlers within 60 s")
            stack.watch()
            time.sleep(0.1)

    def _env(self) -> dict[str, str]:
        key = self._folder / "secret-key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_text(secrets.token_urlsafe(50))
        fixed = {"DUEKEEPER_SECRET_KEY": key.read_text(), "DUEKEEPER_PLAIN_HTTP": "1"}
        return {name: os.environ.get(name, value) for name, value in LEASES.items()} | fixed

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._database_ended = self._database_ended or number == DATABASE_ENDED
        self._stopping = True
