"""When a failed attempt is tried again.

Owns the retry policy: its text form, its delays, the end of the attempt budget. Writes nothing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal, cast

from jobs.errors import InvalidField
from jobs.policies.pointers import child_pointer

type Kind = Literal["fixed", "linear", "exponential", "list"]

MIN_DELAY_SECONDS = 0.001
MAX_DELAY_SECONDS = 86_400.0
MAX_LISTED_DELAYS = 100

_RANGES: dict[str, tuple[float, float]] = {
    "base_seconds": (MIN_DELAY_SECONDS, MAX_DELAY_SECONDS),
    "factor": (1.0, 100.0),
    "max_seconds": (MIN_DELAY_SECONDS, MAX_DELAY_SECONDS),
    "jitter": (0.0, 1.0),
}
# Only fields with an effect are accepted for a kind: one that is silently ignored is a promise not kept.
_FIELDS_BY_KIND: dict[str, tuple[str, ...]] = {
    "fixed": ("kind", "base_seconds", "max_seconds", "jitter"),
    "linear": ("kind", "base_seconds", "max_seconds", "jitter"),
    "exponential": ("kind", "base_seconds", "factor", "max_seconds", "jitter"),
    "list": ("kind", "delays", "max_seconds", "jitter"),
}


def _number(value: object, pointer: str, limits: tuple[float, float]) -> float:
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidField(pointer, "wrong_type", "must be a number")
    if not low <= value <= high:  # false for NaN too
        raise InvalidField(pointer, "out_of_range", f"must be from {low:g} to {high:g}")
    return float(value)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait after attempt 1, 2, 3 …; checked when built, so that none can overflow when used.

    Attributes:
        kind: fixed = base; linear = base * attempt; exponential = base * factor ** (attempt - 1); list = `delays`,
            the last one repeated.
        base_seconds: 0.001 to 86,400 s.
        factor: 1 to 100.
        max_seconds: Cap of every delay, jitter included; 0.001 to 86,400 s.
        jitter: 0 to 1; delays are spread evenly over nominal * (1 - jitter) to nominal * (1 + jitter).
        delays: 1 to 100 delays of 0.001 to 86,400 s for the kind list; empty for the others.
    """

    kind: Kind
    base_seconds: float = 30.0
    factor: float = 2.0
    max_seconds: float = MAX_DELAY_SECONDS
    jitter: float = 0.5
    delays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what would overflow or end in the past.

        Raises:
            InvalidField: Pointer relative to the policy ("/factor").
        """
        if not isinstance(self.kind, str) or self.kind not in _FIELDS_BY_KIND:
            raise InvalidField("/kind", "unknown", f"must be one of {', '.join(_FIELDS_BY_KIND)}")
        for name, limits in _RANGES.items():
            _number(getattr(self, name), f"/{name}", limits)
        least, most = (1, MAX_LISTED_DELAYS) if self.kind == "list" else (0, 0)
        if not least <= len(self.delays) <= most:
            detail = f"must have {least} to {most} delays for the kind {self.kind}"
            raise InvalidField("/delays", "out_of_range", detail)
        for index, delay in enumerate(self.delays):
            _number(delay, f"/delays/{index}", (MIN_DELAY_SECONDS, MAX_DELAY_SECONDS))

    @classmethod
    def parse(cls, value: object, pointer: str = "/retry") -> RetryPolicy:
        """The policy written as a JSON object; all fields but `kind` have defaults.

        Raises:
            InvalidField: Names the faulty field below `pointer`: not an object, `kind` missing, unknown field, field
                without effect for this kind, wrong type (true and false are no numbers), NaN, out of range.

        >>> RetryPolicy.parse({"kind": "list", "delays": [1, 10]}).delays
        (1.0, 10.0)
        """
        try:
            return cls._parse(value)
        except InvalidField as fault:
            raise InvalidField(pointer + fault.pointer, fault.field_code, fault.reason) from None

    @classmethod
    def _parse(cls, value: object) -> RetryPolicy:
        if not isinstance(value, dict):
            raise InvalidField("", "wrong_type", "must be an object")
        if "kind" not in value:
            raise InvalidField("/kind", "required", "is required")
        kind = value["kind"]
        # An unknown kind allows every field here, so that __post_init__ names the kind and not a field.
        known = _FIELDS_BY_KIND.get(kind, tuple(value)) if isinstance(kind, str) else tuple(value)
        for name in value:
            if name not in known:
                detail = f"is not a field of the retry kind {kind}"
                raise InvalidField(child_pointer("", str(name)), "unknown", detail)
        numbers = {
            name: _number(value[name], f"/{name}", limits)
            for name, limits in _RANGES.items()
            if name in value
        }
        delays = value.get("delays", ())
        if not isinstance(delays, list | tuple):
            raise InvalidField("/delays", "wrong_type", "must be a list of seconds")
        if len(delays) <= MAX_LISTED_DELAYS:  # longer ones are refused below, without reading them
            limits = (MIN_DELAY_SECONDS, MAX_DELAY_SECONDS)
            delays = [_number(delay, f"/delays/{i}", limits) for i, delay in enumerate(delays)]
        return cls(kind=cast("Kind", kind), delays=tuple(delays), **numbers)

    @classmethod
    def from_stored(cls, value: object) -> RetryPolicy:
        """`parse` for a stored row: what cannot be read becomes `DEFAULT_POLICY`.

        Recording an outcome must not fail because an older release or a hand wrote the row.
        """
        try:
            return cls.parse(value)
        except InvalidField:
            return DEFAULT_POLICY

    def to_dict(self) -> dict[str, object]:
        """JSON form with every field that has an effect; `parse` reads it back."""
        found = {name: getattr(self, name) for name in _FIELDS_BY_KIND[self.kind]}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


DEFAULT_POLICY = RetryPolicy("exponential")


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after `seconds` (0 to 86,400), counted from the database's now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No further attempt: the job becomes a dead letter for this reason."""

    reason: Literal["attempts_exhausted", "permanent_error"]


def nominal_seconds(policy: RetryPolicy, attempt: int) -> float:
    """Delay after attempt number `attempt` (from 1) before jitter; more than 0, at most `max_seconds`.

    Raises:
        ValueError: `attempt` is below 1.

    >>> [nominal_seconds(RetryPolicy("exponential"), attempt) for attempt in (1, 2, 3, 40)]
    [30.0, 60.0, 120.0, 86400.0]
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, got {attempt}")
    base, cap = policy.base_seconds, policy.max_seconds
    match policy.kind:
        case "fixed":
            nominal = base
        case "linear":
            # min() on the integer first: a huge int times a float raises OverflowError.
            nominal = base * min(attempt, math.ceil(MAX_DELAY_SECONDS / MIN_DELAY_SECONDS))
        case "list":
            nominal = policy.delays[min(attempt, len(policy.delays)) - 1]
        case "exponential":
            nominal = _exponential(base, policy.factor, cap, attempt - 1)
    return min(nominal, cap)


def delay_seconds(policy: RetryPolicy, attempt: int, rng: random.Random) -> float:
    """`nominal_seconds` spread by the policy's jitter: 15 to 45 s for the first retry by default.

    The spread keeps a thousand jobs that failed together from coming back together. At least 0.001 s, at most
    `max_seconds`; where the cap is reached the spread is below it, or all would wait for exactly the cap.
    """
    nominal = nominal_seconds(policy, attempt)
    low = nominal * (1.0 - policy.jitter)
    high = min(nominal * (1.0 + policy.jitter), policy.max_seconds)
    return min(max(rng.uniform(low, high), MIN_DELAY_SECONDS), policy.max_seconds)


def decide(
    *,
    attempt: int,
    attempt_limit: int,
    policy: RetryPolicy,
    rng: random.Random,
    permanent: bool = False,
    retry_after_seconds: float | None = None,
) -> RetryIn | Exhausted:
    """What follows after attempt number `attempt` failed.

    Args:
        attempt: The attempt that failed, from 1.
        attempt_limit: Last attempt number that may run.
        policy: Gives the delay.
        rng: Source of the jitter.
        permanent: The handler said that no retry can help.
        retry_after_seconds: The handler asked for this delay. It is brought into 0 to 86,400 s and replaces the
            policy's; never earlier than asked, and up to a fifth of the policy's jitter later (10 % by default),
            for all callers of an overloaded service tend to be told the same number. NaN counts as not given.

    >>> decide(attempt=3, attempt_limit=3, policy=DEFAULT_POLICY, rng=random.Random(1))
    Exhausted(reason='attempts_exhausted')
    >>> exact = RetryPolicy("fixed", base_seconds=5, jitter=0)
    >>> decide(attempt=1, attempt_limit=3, policy=exact, rng=random.Random(1), retry_after_seconds=90)
    RetryIn(seconds=90.0)
    """
    if permanent:
        return Exhausted("permanent_error")
    if attempt >= attempt_limit:
        return Exhausted("attempts_exhausted")
    if retry_after_seconds is None or math.isnan(retry_after_seconds):
        return RetryIn(delay_seconds(policy, attempt, rng))
    asked = min(max(retry_after_seconds, 0.0), MAX_DELAY_SECONDS)
    return RetryIn(min(asked * rng.uniform(1.0, 1.0 + policy.jitter / 5), MAX_DELAY_SECONDS))


def _exponential(base: float, factor: float, cap: float, exponent: int) -> float:
    # Compared as logarithms: factor ** exponent overflows long before an attempt counter does.
    if factor == 1.0 or base >= cap:
        return base
    if exponent >= math.log(cap / base) / math.log(factor):
        return cap
    return base * factor**exponent
