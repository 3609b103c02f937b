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

from jobs.models import Handler
from workers.quickstart.demo import TENANTS, USER, Demo, prepare
from workers.quickstart.figures import look, report
from workers.quickstart.orders import Shop
from workers.quickstart.screen import Screen
from workers.quickstart.stack import Stack, StackError, free_port, wait_for_web

# A short lease, so that a worker killed by hand is recovered from while one watches. Production keeps 30 s.
LEASES = {
    "DUEKEEPER_LEASE_TTL_SECONDS": "6",
    "DUEKEEPER_HEARTBEAT_SECONDS": "2",
    "DUEKEEPER_TICK_SECONDS": "0.5",
    "DUEKEEPER_SHARD_LEASE_SECONDS": "5",
}
PROVIDER = ("--delay-ms", "40", "--fail-every", "25")
TURN_SECONDS = 0.25


class Quickstart:
    """Database at hand, it migrates, fills, starts everything, shows it, and reports."""

    def __init__(
        self, *, port: int, folder: Path, orders: Path | None, exit_when_done: bool
    ) -> None:
        """`orders` holds one create request a line, with the tenant's slug; None means no shop."""
        self._port, self._folder = port, folder
        self._orders, self._exit_when_done = orders, exit_when_done
        self._stopping = False
        self._screen = Screen()

    def run(self) -> int:
        """Run until Ctrl-C, or until the orders are done; returns the exit code.

        Raises:
            StackError: A process did not come up.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        self._folder.mkdir(parents=True, exist_ok=True)
        port = free_port(self._port)
        call_command("migrate", verbosity=0, interactive=False)
        demo = prepare()
        with Stack(folder=self._folder, env=self._env(), say=self._screen.happened) as stack:
            return self._run(stack, demo, f"http://127.0.0.1:{port}", port)

    def _run(self, stack: Stack, demo: Demo, url: str, port: int) -> int:
        provider_url = ""
        if self._orders:
            provider_folder = self._folder / "provider"
            shutil.rmtree(provider_folder, ignore_errors=True)  # its books are those of one run
            provider_url = stack.start_provider(provider_folder, *PROVIDER)
            stack.env.update(SHOP_PROVIDER_URL=provider_url, DUEKEEPER_APPS="examples.shop")
        self._start(stack, port)
        wait_for_web(f"{url}/console/login/", stack)
        self._introduce(url, demo)
        if not self._orders:
            while not self._stopping:
                stack.watch()
                time.sleep(TURN_SECONDS)
            return 0
        self._wait_for_handlers(stack)
        shop = Shop(
            orders=self._orders,
            url=url,
            tokens=demo.tokens,
            key_suffix=demo.run,
        )
        shop.start()
        with self._screen:
            while not self._stopping and not self._turn(stack, shop):
                time.sleep(TURN_SECONDS)
        shop.stop()
        return self._end(shop, demo, provider_url)

    def _start(self, stack: Stack, port: int) -> None:
        manage = str(Path(settings.BASE_DIR) / "manage.py")
        python = sys.executable
        bind = f"127.0.0.1:{port}"
        web = ("-m", "gunicorn", "scheduler_site.wsgi", "--bind", bind, "--threads", "4")
        stack.start("web", python, *web, "--workers", "1", "--no-control-socket")
        stack.start("scheduler", python, manage, "runscheduler")
        stack.start("worker", python, manage, "runworker", "--slots", "8", "--drain-timeout", "10")

    def _turn(self, stack: Stack, shop: Shop) -> bool:
        """One look; True when this run is over."""
        stack.watch()
        figures = look(list(shop.accepted.values()))
        self._screen.show(
            figures,
            accepted=len(shop.accepted),
            replayed=shop.replayed,
            refused=len(shop.refused),
        )
        done = shop.done.is_set() and sum(figures.finished.values()) >= len(shop.accepted)
        return done and self._exit_when_done

    def _end(self, shop: Shop, demo: Demo, provider_url: str) -> int:
        for line in shop.refused:
            self._screen.say(f"refused: {line}")
        found = report(shop.accepted, provider_url, since=demo.began_at)
        self._screen.report(found)
        if not self._exit_when_done:
            return 0
        return 0 if found.books.balanced and not shop.refused and not self._stopping else 1

    def _introduce(self, url: str, demo: Demo) -> None:
        slug = next(iter(TENANTS))
        say = self._screen.say
        say(f"console  {url}/console/   user {USER}, password {demo.password}")
        say(f"admin    {url}/admin/")
        say(f"API      {url}/api/v1/jobs   token of {slug}: {demo.tokens[slug]}")
        say(
            f"try      curl -sS {url}/api/v1/jobs -H 'Authorization: Bearer {demo.tokens[slug]}'"
            " -H 'Content-Type: application/json'"
            """ -d '{"handler":"billing.receipt","payload":{"to":"you@example.com"},"delay_seconds":5}'"""
        )
        say(f"logs     {self._folder / 'logs'}")

    def _wait_for_handlers(self, stack: Stack) -> None:
        """Orders name handlers, and only a worker that has started makes a name known."""
        deadline = time.monotonic() + 60
        while not Handler.objects.filter(name="billing.charge").exists():
            if time.monotonic() > deadline or self._stopping:
                raise StackError("No worker registered its handlers; see worker.log in the logs.")
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
        self._stopping = True
