"""Questions to a database that may be away for a while: the one who asks goes on, and says so once."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError

from jobs.database import drop_if_gone, is_unavailable


class Outage:
    """Knows whether the database was there at the last question."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` gets one line when the database goes and one when it is back."""
        self._say = say
        self._since: float | None = None

    @property
    def away(self) -> bool:
        """True from the first question that failed to the next that is answered."""
        return self._since is not None

    def ask[T](self, question: Callable[[], T]) -> T | None:
        """The answer, or None while the database is away; the next question opens a new connection.

        Raises:
            DatabaseError: The question is at fault, not the database.
        """
        try:
            answer = question()
        except (DatabaseError, InterfaceError) as error:
            if not is_unavailable(error):
                raise
            drop_if_gone(error)
            if self._since is None:
                self._since = time.monotonic()
                self._say(f"database away: {first_line(error)}; going on when it is back")
            return None
        if self._since is not None:
            self._say(f"database back after {time.monotonic() - self._since:.1f} s")
            self._since = None
        return answer


def first_line(error: Exception) -> str:
    """The first line of a driver's message; the rest repeats it for every address it tried."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
