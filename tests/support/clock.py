"""A wall clock of its own for a process that a test starts, which the test can step while the process runs.

Python imports `sitecustomize` before anything else; the one that `HostClock` writes calls `install`, so that every
module of the process sees the shifted clock. The monotonic clock is left alone, as a step of a real host's clock
leaves it. What C code reads by itself is not shifted: PostgreSQL's clock is the server's anyway.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from datetime import datetime as true_datetime
from pathlib import Path
from typing import Any

FILE = "CLOCK_OFFSET_FILE"
ROOT = Path(__file__).resolve().parents[2]
HOOK = "from tests.support.clock import install\n\ninstall()\n"


class HostClock:
    """The wall clock of one host: any number of processes that are started with `environment`."""

    def __init__(self, folder: Path, name: str, *, seconds: float = 0.0) -> None:
        """`seconds` ahead of the true time, at first."""
        hook = folder / "clock"
        hook.mkdir(exist_ok=True)
        (hook / "sitecustomize.py").write_text(HOOK)
        self._file = folder / f"clock-{name}"
        self.environment = {"PYTHONPATH": f"{hook}{os.pathsep}{ROOT}", FILE: str(self._file)}
        self.step(seconds)

    def step(self, seconds: float) -> None:
        """From now on so many seconds ahead of the true time."""
        draft = self._file.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.rename(self._file)


def install() -> None:
    """Shift the clock of this process by what the file says at each reading."""
    file = os.environ[FILE]
    true_ns = time.time_ns

    def shifted_ns() -> int:
        with open(file) as offset:  # noqa: PTH123 (read at every log line: nothing that could log or be slow)
            return true_ns() + int(float(offset.read()) * 1e9)

    def shifted() -> float:
        return shifted_ns() / 1e9

    def given_or_now(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda seconds=None: function(shifted() if seconds is None else seconds)

    class Alike(type):
        """Values made by C code, such as the driver's, are instances of the shifted class too."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, true_datetime)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, true_datetime)

    class Shifted(true_datetime, metaclass=Alike):
        """Makes plain datetimes, so that no value anywhere has an odd class."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return true_datetime(*args, **kwargs)  # noqa: DTZ001 (as its caller says)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return true_datetime.fromtimestamp(shifted(), tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

    for name in ("combine", "fromisoformat", "fromtimestamp", "strptime"):
        setattr(Shifted, name, getattr(true_datetime, name))
    time.time, time.time_ns = shifted, shifted_ns
    time.gmtime, time.localtime = given_or_now(time.gmtime), given_or_now(time.localtime)
    datetime.datetime = Shifted  # type: ignore[misc]
