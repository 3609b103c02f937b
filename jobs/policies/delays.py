"""What held due work back, and for how long: kept while it happens, told by the claim, so that it can be read later."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

KEPT_STRETCHES = 50


@dataclass(slots=True)
class Delays:
    """Stretches of time in which something was seen to hold work back, by what it was.

    Attributes:
        gap_seconds: Two sightings no further apart are one stretch.
    """

    gap_seconds: float
    _stretches: dict[Hashable, deque[list[float]]] = field(default_factory=dict)

    def saw(self, reason: Hashable, at: float) -> None:
        """It holds something back at this moment (seconds; never before an earlier call)."""
        stretches = self._stretches.setdefault(reason, deque(maxlen=KEPT_STRETCHES))
        if stretches and at - stretches[-1][1] <= self.gap_seconds:
            stretches[-1][1] = at
        else:
            stretches.append([at, at])

    def forget(self, before: float) -> None:
        """Drop reasons that have not been seen since."""
        for reason in [one for one, kept in self._stretches.items() if kept[-1][1] < before]:
            del self._stretches[reason]

    def between(
        self, reasons: Iterable[Hashable], start: float, end: float
    ) -> dict[Hashable, float]:
        """Seconds for which each of these reasons was seen between two moments, those with none left out.

        >>> delays = Delays(gap_seconds=2)
        >>> for at in (10, 11, 12, 20):
        ...     delays.saw("full", at)
        >>> delays.between(["full", "paused"], 11, 30)
        {'full': 1}
        """
        found = {}
        for reason in reasons:
            seconds = sum(
                max(0, min(until, end) - max(since, start))
                for since, until in self._stretches.get(reason, ())
            )
            if seconds > 0:
                found[reason] = seconds
        return found
