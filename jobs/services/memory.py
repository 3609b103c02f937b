"""What one scheduler process remembers from turn to turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from jobs.conf import conf
from jobs.policies.delays import Delays
from jobs.policies.demand import Place, published_by
from jobs.policies.fairness import Turns
from jobs.policies.window import PublishWindow
from jobs.queries.fleet import PoolLoad
from jobs.services.backlog import Backlog


@dataclass(slots=True)
class Memory:
    """Nothing here is needed to be right: a new process begins with none of it.

    Attributes:
        windows: Pool → how fast it starts work.
        next_pool: Where the next turn begins; the last one was over before this pool's turn.
        backlog: What waits.
        turns: Pool → lane → whose turn it is.
        delays: What held work back lately.
        published: (pool, lane) → jobs that this process has published.
        full_keys: (tenant, concurrency key) of entries that were parked since a slot was last seen free.
    """

    windows: dict[int, PublishWindow] = field(default_factory=dict)
    next_pool: int = 0
    backlog: Backlog = field(default_factory=Backlog)
    turns: dict[int, dict[int, Turns]] = field(default_factory=dict)
    delays: Delays = field(default_factory=lambda: Delays(3 * conf().tick_seconds))
    full_keys: set[tuple[int, str]] = field(default_factory=set)
    published: Counter[Place] = field(default_factory=Counter)
    _others: dict[UUID, dict[Place, int]] = field(default_factory=dict)

    def published_by_others(self, demands: Mapping[UUID, object]) -> Counter[Place]:
        """(pool, lane) → what other schedulers say that they have published since this was last asked."""
        latest = {one: published_by(stored) for one, stored in demands.items()}
        fresh: Counter[Place] = Counter()
        for one, counts in latest.items():
            for place, count in counts.items():
                fresh[place] += max(0, count - self._others.get(one, counts).get(place, 0))
        self._others = latest
        return fresh

    def observed(self, load: PoolLoad, *, by_others: int) -> PublishWindow:
        """The pool's window after it has seen this load."""
        window = self.windows.setdefault(load.pool_id, PublishWindow(conf().publish_ahead_seconds))
        window.observe(published=load.published, at=time.monotonic(), by_others=by_others)
        return window
