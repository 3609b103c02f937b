"""How far this host's clock is off, measured at every report of a process and told once, not at every beat."""

from __future__ import annotations

import logging

from jobs import telemetry
from jobs.clock import measure_skew
from jobs.conf import conf

log = logging.getLogger(__name__)


class SkewWatch:
    """One process's measurements. A host clock decides nothing here, but logs and handlers show it to people."""

    def __init__(self) -> None:
        self._told = 0.0

    def measure(self) -> float:
        """Seconds that this host is ahead of the database; warns past the tolerance, and again when that changes."""
        skew, tolerance = measure_skew(), conf().clock_tolerance_seconds
        if abs(skew.seconds) - skew.uncertainty <= tolerance:
            self._told = 0.0
        elif abs(skew.seconds - self._told) - skew.uncertainty > tolerance:
            log.warning(telemetry.CLOCK_SKEWED, extra={"seconds": round(skew.seconds, 3)})
            self._told = skew.seconds
        return skew.seconds
