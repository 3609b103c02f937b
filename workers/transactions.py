"""Somebody's transaction that has been open for long: told once, by name, before its dead rows slow every claim."""

from __future__ import annotations

import logging
from datetime import datetime

from jobs import telemetry
from jobs.conf import conf
from jobs.queries.sessions import oldest_transaction

log = logging.getLogger(__name__)
LOOK_SECONDS = 5.0


class TransactionWatch:
    """What one process has told so far."""

    def __init__(self) -> None:
        self._told: tuple[int, datetime] | None = None

    def look(self) -> None:
        """Warn of the oldest transaction past `old_transaction_seconds`, once for each."""
        oldest = oldest_transaction()
        if oldest is None or oldest.seconds <= conf().old_transaction_seconds:
            return
        if self._told != (oldest.pid, oldest.since):
            self._told = oldest.pid, oldest.since
            log.warning(
                telemetry.TRANSACTION_OLD,
                extra={
                    "pid": oldest.pid,
                    "application": oldest.application,
                    "user": oldest.user,
                    "state": oldest.state,
                    "seconds": round(oldest.seconds, 1),
                },
            )
