"""The handler that only the new release of these probes knows."""

from __future__ import annotations

import os
from collections.abc import Callable

from workers.handlers import JobContext, handler

RELEASE = "PROBE_RELEASE"


def register(work: Callable[[JobContext], object]) -> None:
    """Make `probe.new` known, unless this process plays the old release."""
    if os.environ.get(RELEASE) != "old":
        handler("probe.new", timeout_seconds=60, max_attempts=3)(work)
