"""How much work may be published to a pool at once: enough to keep it busy, no more than it will start soon.

Late binding keeps order: what is not yet published can still be overtaken by more urgent work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SPAN_SECONDS = 0.5  # the rate is that of the last looks, of so much time together
# A worker takes a batch at one moment: over less time than this a batch would look like an endless stream.
SHORTEST_SECONDS = 0.1


@dataclass(slots=True)
class PublishWindow:
    """Measured start rate of one pool, as one scheduler sees it.

    Attributes:
        ahead_seconds: How much work beyond the free slots may lie published, in seconds of the measured rate.
        rate: Starts per second lately.
    """

    ahead_seconds: float
    rate: float = 0.0
    _published: int = 0
    _seen_at: float | None = None
    _looks: deque[tuple[float, int]] = field(default_factory=deque)  # seconds, starts

    def observe(self, *, published: int, at: float, by_others: int = 0) -> None:
        """Learn from the published count now: what was there before, or came since, and is gone has been started.

        Args:
            published: Leases of the pool without a worker, now.
            at: Monotonic seconds.
            by_others: What other schedulers have published since the last look, as far as is known.

        >>> window = PublishWindow(0.25)
        >>> for look in range(10):
        ...     window.observe(published=0, at=look * 0.1)
        ...     window.publish(20)
        >>> round(window.rate)
        200
        """
        if self._seen_at is not None and (elapsed := at - self._seen_at) > 0:
            started = max(0, self._published + by_others - published)
            self._looks.append((elapsed, started))
            seconds = sum(each for each, _ in self._looks)
            while len(self._looks) > 1 and seconds - self._looks[0][0] >= SPAN_SECONDS:
                seconds -= self._looks.popleft()[0]
            self.rate = sum(count for _, count in self._looks) / max(seconds, SHORTEST_SECONDS)
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
