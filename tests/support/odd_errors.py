"""Exceptions that a handler may raise and nobody would write: each a failed attempt, whatever it does when it is read.

A name → the exception, and the class name that is stored for it.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import ItemsView

from workers.handlers import RetryAfter, Snooze

TEXTS = {"emoji": "💥" * 10, "long": "x" * 5_000_000, "nul": "a\x00b", "surrogate": "a\ud800b"}


class NeedsTwo(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one, two)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__

    def __reduce__(self) -> str:
        raise RuntimeError("no copy for you")


class Interrupting(Exception):
    """Its text ends whoever takes it for a real Ctrl-C."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class InterruptingResult(UserDict[str, int]):
    """As a result."""

    def items(self) -> ItemsView[str, int]:
        raise KeyboardInterrupt


class Liar(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class for you")


class Careless(Snooze):
    """Does not call the constructor that it overrides."""

    def __init__(self) -> None:
        pass


class Trap(RetryAfter):
    def __init__(self) -> None:
        super().__init__(1.0)

    def __getattribute__(self, name: str) -> object:
        if name in ("seconds", "reason"):
            raise SystemExit(name)
        return super().__getattribute__(name)


ODD: dict[str, tuple[BaseException, str]] = {
    "two arguments": (NeedsTwo(1, 2), "NeedsTwo"),
    "no text": (Unprintable(), "Unprintable"),
    "an interrupt as its text": (Interrupting(), "Interrupting"),
    "no class": (Liar(), "Liar"),
    "a name of ten thousand letters": (type("X" * 10_000, (Exception,), {})(), "X" * 10_000),
    "a snooze without seconds": (Careless(), "Careless"),
    "a delay that ends the process": (Trap(), "Trap"),
    "a group of a thousand": (
        ExceptionGroup("all", [ValueError(str(n)) for n in range(1000)]),
        "ExceptionGroup",
    ),
    "an end of the process": (SystemExit(3), "SystemExit"),
    "an interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "an end of a generator": (GeneratorExit(), "GeneratorExit"),
    "a stop of an iteration": (StopIteration(7), "StopIteration"),
    "no memory": (MemoryError(), "MemoryError"),
    "its own base": (type("Strange", (BaseException,), {})("x"), "Strange"),
    **{f"a text that is {name}": (ValueError(text), "ValueError") for name, text in TEXTS.items()},
}
