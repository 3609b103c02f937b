"""Where a job may run: the labels it needs, the labels a pool offers.

Owns label syntax and matching. Which workers are alive and how full they are is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from jobs.errors import InvalidField
from jobs.policies.pointers import child_pointer

MAX_LABELS = 32

# Lower-case ASCII only: no two labels look alike on a page, and none needs quoting in a command.
_LABEL = re.compile(r"[a-z0-9._-]{1,63}")
_RULE = "1 to 63 characters out of a-z 0-9 . _ -"


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What one pool offers.

    Attributes:
        id: Primary key of the pool.
        labels: All labels of the pool.
        exclusive: The labels that a job must ask for to run here.
        handlers: Names that live workers of the pool know.
    """

    id: int
    labels: dict[str, str]
    exclusive: dict[str, str]
    handlers: frozenset[str]


def parse_labels(value: object, pointer: str = "/labels") -> dict[str, str]:
    """Labels of a request.

    Raises:
        InvalidField: The first fault of `label_faults`.

    >>> parse_labels({"region": "eu", "gpu": "a100"})
    {'region': 'eu', 'gpu': 'a100'}
    """
    faults = label_faults(value, pointer)
    if faults:
        raise faults[0]
    return dict(cast("dict[str, str]", value))


def label_faults(value: object, pointer: str = "/labels") -> list[InvalidField]:
    """Every fault of the labels of a request, one for each bad label, each with its pointer; empty when good."""
    if not isinstance(value, dict):
        return [InvalidField(pointer, "wrong_type", "must be an object of texts")]
    if len(value) > MAX_LABELS:
        return [InvalidField(pointer, "too_many", f"must have at most {MAX_LABELS} labels")]
    faults = []
    for name, text in value.items():
        place = child_pointer(pointer, str(name))
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            faults.append(InvalidField(place, "invalid_label", f"name must be {_RULE}"))
        elif not isinstance(text, str):
            faults.append(InvalidField(place, "wrong_type", "value must be a text"))
        elif not _LABEL.fullmatch(text):
            faults.append(InvalidField(place, "invalid_label", f"value must be {_RULE}"))
    return faults


def parse_label_args(arguments: Iterable[str]) -> dict[str, str]:
    """Labels given as `name=value` on a command line.

    Raises:
        InvalidField: No "=", a name given twice with different values, or a fault of `label_faults`.

    >>> parse_label_args(["region=eu", "gpu=a100"])
    {'region': 'eu', 'gpu': 'a100'}
    """
    labels: dict[str, str] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        place = child_pointer("/labels", name)
        if not equals:
            raise InvalidField(place, "invalid_label", "must be written name=value")
        if labels.setdefault(name, text) != text:
            raise InvalidField(place, "duplicate", "is given twice with different values")
    return parse_labels(labels)


def canonical_labels(labels: Mapping[str, str]) -> str:
    """One text for equal labels in any order: the stored form of a route.

    >>> canonical_labels({"region": "eu", "gpu": "a100"})
    'gpu=a100,region=eu'
    """
    return ",".join(f"{name}={text}" for name, text in sorted(labels.items()))


def can_run(
    *, needed: Mapping[str, str], offered: Mapping[str, str], exclusive: Mapping[str, str]
) -> bool:
    """True when the pool offers every label the job needs, and the job asks for every exclusive label of the pool.

    >>> can_run(needed={}, offered={"gpu": "a100"}, exclusive={"gpu": "a100"})  # keeps plain work off the GPUs
    False
    """
    return needed.items() <= offered.items() and exclusive.items() <= needed.items()


def missing_labels(needed: Mapping[str, str], offered: Mapping[str, str]) -> dict[str, str]:
    """The needed labels that are not offered, sorted by name: why this pool cannot run the job."""
    return {name: text for name, text in sorted(needed.items()) if offered.get(name) != text}


def able_pools(needed: Mapping[str, str], handler: str, pools: Iterable[PoolOffer]) -> list[int]:
    """Ids of the pools that may run a job, the one it belongs to first; empty when none may.

    The tightest match is its home (fewest labels beyond the needed ones, so that special machines stay free for work
    that needs them), then the smallest id. The others may lend their free slots, in the same order.
    """
    eligible = [
        pool
        for pool in pools
        if handler in pool.handlers
        and can_run(needed=needed, offered=pool.labels, exclusive=pool.exclusive)
    ]
    return [pool.id for pool in sorted(eligible, key=lambda pool: (len(pool.labels), pool.id))]
