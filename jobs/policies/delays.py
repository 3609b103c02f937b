"""What held due work back, and for how long: kept while it happens, told by the claim, so that it can be read later."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

KEPT_STRETCHES = 50


@dataclass(slots=True)
class Delays:
    """Stretches of time in which something was seen to hold work back, by what it was.

    Attributes:
        gap_seconds: Two sightings no further apart are one stretch.
        kept_seconds: What has not been seen for so long is forgotten: there are as many reasons as concurrency keys.
        since: The first sighting that is still remembered.
    """

    gap_seconds: float
    kept_seconds: float = 3600.0
    since: float = math.inf
    _stretches: dict[Hashable, deque[list[float]]] = field(default_factory=dict)
    _sweep_at: float = math.inf

    def saw(self, reason: Hashable, at: float) -> None:
        """It holds something back at this moment (seconds; never before an earlier call).

        >>> delays = Delays(gap_seconds=2, kept_seconds=100)
        >>> delays.saw("full", 10)
        >>> delays.saw("paused", 150)
        >>> delays.between(["full", "paused"], 0, 200), delays.since
        ({}, 150)
        """
        if at >= self._sweep_at:
            self._sweep(at)
        if not self._stretches:
            self.since, self._sweep_at = at, at + self.kept_seconds / 10
        stretches = self._stretches.setdefault(reason, deque(maxlen=KEPT_STRETCHES))
        if stretches and at - stretches[-1][1] <= self.gap_seconds:
            stretches[-1][1] = at
        else:
            stretches.append([at, at])

    def _sweep(self, at: float) -> None:
        self._stretches = {
            reason: kept
            for reason, kept in self._stretches.items()
            if at - kept[-1][1] <= self.kept_seconds
        }
        self.since = min((kept[0][0] for kept in self._stretches.values()), default=math.inf)
        self._sweep_at = at + self.kept_seconds / 10

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
            if stretches := self._stretches.get(reason):
                seconds = sum(
                    max(0, min(until, end) - max(since, start)) for since, until in stretches
                )
                if seconds > 0:
                    found[reason] = seconds
        return found
