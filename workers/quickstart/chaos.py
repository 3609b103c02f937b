"""Faults at random while a quickstart runs: workers and schedulers are killed and frozen, all from one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence

from workers.quickstart.stack import Stack

GAP_SECONDS = (
    0.4,
    1.8,
)  # between two faults: starting a process again takes one core about a second
SHORTEST_FREEZE_SECONDS = 0.3
KILLS_IN_FOUR = 3  # the fourth fault is a freeze


class Chaos:
    """Strikes one process after the other. `turn()` is called often; it never waits.

    Attributes:
        kills: How many `kill -9` there were.
        freezes: How many processes were stopped for a while and went on.
    """

    def __init__(
        self,
        stack: Stack,
        victims: Sequence[str],
        *,
        seed: int,
        lease_seconds: float,
        at_work: Callable[[], Collection[int]],
        say: Callable[[str], None],
    ) -> None:
        """Nothing happens yet.

        Args:
            stack: Where the processes are.
            victims: Names of those that may be struck.
            seed: Of everything that is random here.
            lease_seconds: A freeze lasts up to one and a half times this, so that some lose their leases meanwhile.
            at_work: Process ids of those that have come up, and of others that do not matter.
            say: Gets a line for each fault.
        """
        self.kills = self.freezes = 0
        self._stack, self._victims = stack, list(victims)
        self._at_work, self._say = at_work, say
        self._longest = 1.5 * lease_seconds
        self._rng = random.Random(seed)
        self._over = False
        self._frozen: dict[str, float] = {}  # name → monotonic time at which it goes on
        self._next_at = time.monotonic() + self._rng.uniform(*GAP_SECONDS)

    def turn(self) -> None:
        """Let those go on whose time has come, and strike if it is time."""
        now = time.monotonic()
        for name in [name for name, until in self._frozen.items() if until <= now]:
            self._thaw(name)
        if self._over or now < self._next_at:
            return
        self._next_at = now + self._rng.uniform(*GAP_SECONDS)
        kill = self._rng.randrange(4) < KILLS_IN_FOUR
        seconds = self._rng.uniform(SHORTEST_FREEZE_SECONDS, self._longest)
        # Whoever is struck while it starts never gets to work.
        at_work = self._at_work()
        victims = [name for name in self._victims if self._stack.pid(name) in at_work]
        if not victims:
            return
        victim = self._rng.choice(victims)
        if kill:
            self._frozen.pop(victim, None)
            self._stack.kill(victim)
            self.kills += 1
            self._say(f"chaos: {victim} killed ({self.kills})")
        elif victim not in self._frozen:
            self._stack.freeze(victim)
            self._frozen[victim] = now + seconds
            self.freezes += 1
            self._say(f"chaos: {victim} frozen for {seconds:.1f} s")

    def end(self) -> None:
        """No fault any more: whoever is frozen goes on."""
        self._over = True
        for name in list(self._frozen):
            self._thaw(name)

    def _thaw(self, name: str) -> None:
        del self._frozen[name]
        self._stack.thaw(name)
