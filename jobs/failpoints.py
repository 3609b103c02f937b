"""Named places where a test can make a process die, fail or stop: before and after every commit of the engine.

Inert unless DUEKEEPER_FAILPOINTS names one, such as `claim.claim_batch:committed=kill@3`: the third time that point is
reached. Several are separated by commas.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass

BEFORE, COMMITTED = "before", "committed"

# Every function that commits registers here when it is defined, so that a list of tests can be made from the code.
COMMITS: set[str] = set()


class FailpointReached(Exception):
    """The action `raise`."""


@dataclass(frozen=True, slots=True)
class Action:
    """What happens at a point: `kill`, `raise`, `sleep:SECONDS` or `stop` (SIGSTOP), at its `hit`-th visit."""

    verb: str
    seconds: float = 0.0
    hit: int = 1


def parse(text: str) -> dict[str, Action]:
    """Points and their actions.

    Raises:
        ValueError: An unknown action or a malformed entry: a test with a typing error must not pass.

    >>> parse("take.take_batch:before=sleep:0.5@2")
    {'take.take_batch:before': Action(verb='sleep', seconds=0.5, hit=2)}
    """
    found = {}
    for entry in filter(None, text.split(",")):
        point, equals, action = entry.partition("=")
        action, _, hit = action.partition("@")
        verb, _, seconds = action.partition(":")
        if not equals or verb not in ("kill", "raise", "sleep", "stop"):
            raise ValueError(f"{entry!r} is not point=kill|raise|sleep:SECONDS|stop[@HIT]")
        found[point.strip()] = Action(verb, float(seconds or 0), int(hit or 1))
    return found


_enabled = parse(os.environ.get("DUEKEEPER_FAILPOINTS", ""))
_visits: Counter[str] = Counter()


def enable(text: str) -> None:
    """Order these actions in place of those of the environment, for a process that was forked and not started."""
    global _enabled
    _enabled = parse(text)
    _visits.clear()


def failpoint(commit: str, moment: str) -> None:
    """Do what was ordered for this point; nothing in production."""
    if not _enabled:
        return
    point = f"{commit}:{moment}"
    action = _enabled.get(point)
    if action is None:
        return
    _visits[point] += 1
    if _visits[point] != action.hit:
        return
    match action.verb:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(action.seconds)
        case "raise":
            raise FailpointReached(point)
