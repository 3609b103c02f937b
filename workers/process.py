"""What every long-lived command shares: settings are checked first, signals end it, the exit code tells why."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import OperationalError, connection

from jobs import telemetry

CONFIGURATION_WRONG = 78
PASSING = ("starting up", "shutting down", "recovery mode", "too many clients", "connection slots")

log = logging.getLogger(__name__)


class ProcessCommand(BaseCommand):
    """A command that refuses wrong configuration with exit code 78."""

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:
        """The stored shards are checked too."""
        return {**super().get_check_kwargs(options), "databases": ["default"]}

    def check(self, *args: Any, **kwargs: Any) -> None:
        """As ever, with an exit code that says whose fault it is.

        Raises:
            CommandError: With return code 78: configuration wrong.
        """
        wait_for_database()
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as error:
            raise CommandError(str(error), returncode=CONFIGURATION_WRONG) from error


def wait_for_database() -> None:
    """Return once the database answers; a signal ends the process meanwhile, as nothing has begun yet.

    Raises:
        CommandError: With return code 78: it answers, but will not have us (wrong password, no such database).
    """
    failures = 0
    while True:
        try:
            connection.ensure_connection()
            return
        except ImproperlyConfigured as error:
            raise CommandError(
                f"DATABASE_URL is not set or not usable: {error}", returncode=CONFIGURATION_WRONG
            ) from error
        except OperationalError as error:
            # A failed start of a session carries no SQLSTATE; FATAL is the server's word, the rest is the network's.
            refusal = str(error).partition("FATAL:")[2]
            if refusal and not any(passing in refusal for passing in PASSING):
                raise CommandError(str(error), returncode=CONFIGURATION_WRONG) from error
            failures += 1
            if failures % 20 == 1:
                log.warning(
                    telemetry.LOOP_FAILED, extra={"loop": "start", "error": str(error)[:300]}
                )
        time.sleep(min(5.0, 0.1 * 2.0 ** min(failures, 10)))


def run_until_signalled(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call `run` in a thread; SIGTERM and SIGINT call `stop`, SIGQUIT prints all stacks.

    The main thread only waits: a handler that interrupted the loop itself could deadlock on a lock that the loop
    holds at that moment.

    Raises:
        SystemExit: 1 if `run` raised.
    """
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)
            raise

    connection.close()  # of this thread, which has checked the settings and needs it no more
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, lambda *_: stop())
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    thread = threading.Thread(target=guarded, name="loop")
    thread.start()
    while thread.is_alive():
        thread.join(timeout=1.0)
    if failed:
        sys.exit(1)


def positive_int(text: str) -> int:
    """A whole number above zero, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise ArgumentTypeError("must be at least 1")
    return value


def positive_seconds(text: str) -> float:
    """Seconds, zero or more, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value <= 86_400:
        raise ArgumentTypeError("must be from 0 to 86400")
    return value
