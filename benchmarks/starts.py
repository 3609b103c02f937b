"""When each job's handler began: a file that the benchmark and the processes share, eight bytes a job, no query."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLE = "BENCHMARK_STARTS"
_TIME = struct.Struct("<d")


class Starts:
    """Unix seconds by job number, 0 where nothing has begun. The clock is that of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR)

    @classmethod
    def of_environment(cls) -> Starts:
        """The file that the benchmark named to this process."""
        return cls(Path(os.environ[VARIABLE]))

    def note(self, number: int) -> None:
        """The handler of this job begins now."""
        os.pwrite(self._file, _TIME.pack(time.time()), number * _TIME.size)

    def read(self) -> list[float]:
        """All of them."""
        return [at for (at,) in _TIME.iter_unpack(self.path.read_bytes())]

    def complete(self) -> bool:
        """True once every job has begun."""
        return all(self.read())


@contextmanager
def starts_of(jobs: int) -> Iterator[Starts]:
    """Room for so many jobs."""
    with TemporaryDirectory(prefix="duekeeper-benchmark-") as folder:
        path = Path(folder) / "starts"
        path.write_bytes(bytes(_TIME.size * jobs))
        yield Starts(path)
