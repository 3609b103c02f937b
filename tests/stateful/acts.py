"""Acts of a story: what may happen next, how often, with which arguments.

Hypothesis switches rules off at random, which is good where each rule does something by itself. Here half of its
stories would have no claim or no take and so test nothing; hence one rule, whose acts have weights and conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

type Method = Callable[..., None]


def act(weight: int, *, when: Callable[[Any], object] | None = None, **arguments: Any) -> Any:
    """Mark a method as something that may happen, `weight` times as often as another, if `when` allows it.

    `arguments` are strategies, by parameter.
    """

    def mark(method: Method) -> Method:
        method.act = (weight, when, arguments)  # type: ignore[attr-defined]
        return method

    return mark


@st.composite
def next_step(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Name and arguments of an act that the machine allows now."""
    machine = draw(st.runner())
    possible = []
    for name, (weight, when, _) in machine.acts.items():
        if when is None or when(machine):
            possible += [name] * weight
    name = draw(st.sampled_from(possible))
    _, _, arguments = machine.acts[name]
    return name, {parameter: draw(strategy) for parameter, strategy in arguments.items()}


def acts_of(
    machine: type,
) -> dict[str, tuple[int, Callable[[Any], object] | None, dict[str, Any]]]:
    """The acts of a machine by name, in the order in which they are written: the first are the simplest."""
    methods = {
        name: method for base in reversed(machine.__mro__) for name, method in vars(base).items()
    }
    return {name: method.act for name, method in methods.items() if hasattr(method, "act")}


def chosen[T](things: list[T], numbers: list[int]) -> list[T]:
    """At least one of these things, none twice."""
    return [things[at] for at in dict.fromkeys(number % len(things) for number in numbers)]
