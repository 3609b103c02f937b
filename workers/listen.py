"""Wake-up hints from PostgreSQL: a thread with a direct connection that LISTENs and pings itself.

Losing a hint costs at most one poll interval; losing the connection is found within seconds and repaired.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import psycopg
from django.db import connection

from jobs import telemetry
from jobs.conf import conf

log = logging.getLogger(__name__)
PING_SECONDS = 5.0


class Listener:
    """Calls `heard(payload)` for each notification of a channel, and `heard("")` after every reconnection."""

    def __init__(self, channel: str, heard: Callable[[str], None]) -> None:
        self._channel, self._heard = channel, heard
        self._params = dict(connection.get_connection_params())
        for ours in ("cursor_factory", "context", "prepare_threshold"):
            self._params.pop(ours, None)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listen", daemon=True)

    def start(self) -> None:
        """Begin listening."""
        self._thread.start()

    def stop(self) -> None:
        """End within a ping; the thread holds nothing that matters."""
        self._stopped.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                with self._connect() as link:
                    failures = 0
                    self._heard("")
                    self._listen(link)
            except psycopg.Error as error:
                failures += 1
                if failures == 1 or failures % 20 == 0:
                    log.warning(
                        telemetry.NOTIFY_LOST,
                        extra={"channel": self._channel, "error": str(error)[:300]},
                    )
                self._stopped.wait(random.uniform(0.5, 1.0) * min(10.0, 0.25 * 2**failures))

    def _connect(self) -> psycopg.Connection:
        if conf().listen_url:
            link = psycopg.connect(conf().listen_url, autocommit=True)
        else:
            link = psycopg.connect(**self._params, autocommit=True)
        link.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(self._channel)))
        return link

    def _listen(self, link: psycopg.Connection) -> None:
        while not self._stopped.is_set():
            heard = False
            for notice in link.notifies(timeout=PING_SECONDS, stop_after=1):
                self._heard(notice.payload)
                heard = True
            if not heard:
                self._ping(link)

    def _ping(self, link: psycopg.Connection) -> None:
        """A half-open link answers nothing and fails by its TCP timeout; a server that was demoted sends no hints.

        Raises:
            psycopg.Error: Either of them.
        """
        row = link.execute("show transaction_read_only").fetchone()
        if row is None or row[0] == "on":
            raise psycopg.OperationalError("the server takes no writes any more")
