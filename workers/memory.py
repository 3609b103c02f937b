"""How much memory a process has, as the kernel counts it (Linux)."""

from __future__ import annotations

import os
import resource
from pathlib import Path

PAGE = resource.getpagesize()
MEBIBYTE = 1 << 20


def resident_bytes(pid: int | None = None) -> int:
    """What the process has in memory, pages that it shares with others included; 0 if it is gone."""
    return _statm(pid)[1] * PAGE


def data_bytes() -> int:
    """What counts towards RLIMIT_DATA of this process: its heap, its private mappings, the stacks of its threads."""
    return _statm(None)[5] * PAGE


def limit_data(most: int) -> None:
    """Let this process and its children have no more: what asks for it gets a MemoryError."""
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _statm(pid: int | None) -> list[int]:
    try:
        text = Path(f"/proc/{os.getpid() if pid is None else pid}/statm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return [0] * 7
    return [int(field) for field in text.split()]
