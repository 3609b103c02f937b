"""How much work may be published to a pool at once: enough to keep it busy, no more than it will start soon.

Late binding keeps order: what is not yet published can still be overtaken by more urgent work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PublishWindow:
    """Measured start rate of one pool, as one scheduler sees it.

    Attributes:
        ahead_seconds: How much work beyond the free slots may lie published, in seconds of the measured rate.
        rate: Starts per second, smoothed.
    """

    ahead_seconds: float
    rate: float = 0.0
    _published: int = 0
    _seen_at: float | None = None

    def observe(self, *, published: int, at: float) -> None:
        """Learn from the published count now: what was there before and is gone has been started.

        Args:
            published: Leases of the pool without a worker, now.
            at: Monotonic seconds.
        """
        if self._seen_at is not None and (elapsed := at - self._seen_at) > 0:
            started = max(0, self._published - published)
            latest = started / elapsed
            # Follows within about half a second, whatever the distance between two looks; a faster start counts at
            # once, for a window that grows late starves the pool.
            weight = min(1.0, elapsed / 0.5)
            self.rate = max(latest if started else 0.0, self.rate + (latest - self.rate) * weight)
        self._published, self._seen_at = published, at

    def room(self, *, free_slots: int, published: int) -> int:
        """How many more jobs may be published now.

        >>> PublishWindow(0.25, rate=400).room(free_slots=8, published=20)
        88
        """
        return max(0, free_slots + int(self.rate * self.ahead_seconds) - published)

    def publish(self, count: int) -> None:
        """Count what this scheduler has just published itself."""
        self._published += count
