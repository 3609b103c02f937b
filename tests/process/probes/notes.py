"""How a test and the handlers of its processes talk: a file of notes one way, gates the other.

Both live in the folder that PROBE_FOLDER names. No database is involved, so that a fault of the system under test
can neither hide an execution nor invent one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

FOLDER = "PROBE_FOLDER"


class Note(NamedTuple):
    """One thing that a handler did. `at` is this host's clock: compare it with other notes and `time.time()` only."""

    job_id: UUID
    attempt: int
    what: str  # "began", "ended", "stop seen", "busy"
    pid: int
    at: float


class Probe:
    """Both ends of the talk, on one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, job_id: UUID, attempt: int, what: str) -> None:
        """Add a note, whole or not at all: one write, to the end of the file."""
        line = json.dumps([str(job_id), attempt, what, os.getpid(), time.time()])
        notes = os.open(self._folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(notes, f"{line}\n".encode())
        finally:
            os.close(notes)

    def notes(self, job_id: UUID | None = None, what: str = "") -> list[Note]:
        """What was noted so far, in order; of one job, and of one kind, if asked."""
        try:
            text = (self._folder / "notes").read_text()
        except FileNotFoundError:
            return []
        # A reader can see the beginning of a write that is under way.
        lines = text[: text.rfind("\n") + 1].splitlines()
        found = [Note(UUID(job), *rest) for job, *rest in map(json.loads, lines)]
        return [
            note
            for note in found
            if job_id in (None, note.job_id) and (not what or note.what == what)
        ]

    def open(self, gate: str, attempt: int | None = None) -> None:
        """Let handlers pass this gate: all attempts, or one (of a stubborn handler: all in one process, by its id)."""
        self._gate(gate, attempt).touch()

    def is_open(self, payload: dict[str, Any], attempt: int) -> bool:
        """True once the payload's gate is open for this attempt. A payload without a gate is never held up."""
        gate = payload.get("gate")
        if gate is None:
            return True
        return self._gate(gate, None).exists() or self._gate(gate, attempt).exists()

    def _gate(self, gate: str, attempt: int | None) -> Path:
        return self._folder / f"gate-{gate}{'' if attempt is None else f'-{attempt}'}"
