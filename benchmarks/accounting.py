"""CPU seconds by process, read from /proc: what the scheduler, the worker and the whole database used.

Clock ticks are 10 ms, so a reading of one process is wrong by at most that much: 0.5 µs a job over 20,000 jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used so far; the difference of two readings is what a span of time cost.

    Attributes:
        at: Monotonic seconds.
        processes: By the name given to each process.
        database: Every server process but the one that serves this benchmark; None when it runs elsewhere.
        foreign: Everything on the machine that is neither of these nor this benchmark.
    """

    at: float
    processes: dict[str, float]
    database: float | None
    foreign: float

    def since(self, earlier: CpuReading) -> CpuReading:
        """What was used after `earlier`; `at` is then the length of the span."""
        database = None
        if self.database is not None and earlier.database is not None:
            database = self.database - earlier.database
        return CpuReading(
            at=self.at - earlier.at,
            processes={
                name: used - earlier.processes[name] for name, used in self.processes.items()
            },
            database=database,
            foreign=max(0.0, self.foreign - earlier.foreign),
        )

    @property
    def own_cores(self) -> float:
        """How many cores the measured processes and the database kept busy, in a difference."""
        return (sum(self.processes.values()) + (self.database or 0.0)) / self.at


class CpuMeter:
    """Reads the CPU of named processes (with their children) and of the server behind a connection."""

    def __init__(self, processes: Mapping[str, int], link: psycopg.Connection) -> None:
        """`link` belongs to the benchmark: what its server process uses is nobody's cost."""
        self._processes = dict(processes)
        self._own_backend = link.info.backend_pid
        self._postmaster = _parent_of_postgres(self._own_backend)

    @property
    def sees_database(self) -> bool:
        """False when the server runs on another machine or in another container."""
        return self._postmaster is not None

    def read(self) -> CpuReading:
        """A reading of now."""
        table = _process_table()
        busy, at = _machine_busy_seconds(), time.monotonic()
        processes = {name: _tree_seconds(pid, table) for name, pid in self._processes.items()}
        looking_on = _own_seconds(os.getpid(), table)
        database = None
        if self._postmaster is not None:
            backend = _own_seconds(self._own_backend, table)
            database = _tree_seconds(self._postmaster, table) - backend
            looking_on += backend
        foreign = busy - sum(processes.values()) - (database or 0.0) - looking_on
        return CpuReading(at=at, processes=processes, database=database, foreign=foreign)


# Parent, ticks of the process itself, ticks of its children that have ended and been waited for.
_Row = tuple[int, int, int]


def _process_table() -> dict[int, _Row]:
    table = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (row := _stat(int(folder.name))) is not None:
            table[int(folder.name)] = row
    return table


def _stat(pid: int) -> _Row | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
        return None
    # The name in parentheses may hold anything, blanks and parentheses too.
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _own_seconds(pid: int, table: Mapping[int, _Row]) -> float:
    return table[pid][1] / TICKS_PER_SECOND


def _tree_seconds(root: int, table: Mapping[int, _Row]) -> float:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    ticks, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        _, own, ended = table[pid]
        ticks += own + ended
        waiting += children.get(pid, [])
    return ticks / TICKS_PER_SECOND


def _machine_busy_seconds() -> float:
    with (PROC / "stat").open() as file:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
            int, file.readline().split()[1:]
        )
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def _parent_of_postgres(backend: int) -> int | None:
    """The postmaster, if the process with this number is a PostgreSQL server process of this machine."""
    try:
        name = (PROC / str(backend) / "comm").read_text().strip()
    except FileNotFoundError:
        return None
    row = _stat(backend)
    return row[0] if row is not None and name == "postgres" else None
