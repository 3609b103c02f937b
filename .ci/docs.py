"""Writes the documents that are generated from code, or with `--check` says which are stale. Run as `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jobs.states import TRANSITIONS, JobStatus, Place  # noqa: E402


def state_machine() -> str:
    """Every allowed move of a job, as a diagram and as a table."""
    ids = {place: place.name for place in Place}
    lines = [
        "# States of a job",
        "",
        "Generated from `jobs/states.py` by `make docs`; do not edit.",
        "",
        "A job is in one place at a moment. Each arrow is one function of `jobs/transitions/`, and only that function",
        "makes the move: it removes the row that puts the job in its old place, under guard, writes the new one and",
        "one event, in one transaction.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    {ids[place]}: {place}" for place in Place),
        *(
            f"    {ids[move.start]} --> {ids[move.end]}: {move.function.split('.')[1]}"
            for move in TRANSITIONS
        ),
        "```",
        "",
        "| from | function | to | status afterwards | event |",
        "|---|---|---|---|---|",
        *(
            f"| {move.start} | `{move.function}` | {move.end} | {move.status} | `{move.event}` |"
            for move in TRANSITIONS
        ),
        "",
        f"Statuses: {', '.join(f'`{status}`' for status in JobStatus)}.",
        "",
    ]
    return "\n".join(lines)


DOCUMENTS: dict[str, Callable[[], str]] = {"docs/state-machine.md": state_machine}


def main() -> None:
    """Write or compare every document; stale ones end with exit code 1."""
    stale = []
    for name, render in DOCUMENTS.items():
        path, text = ROOT / name, render()
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        raise SystemExit(f"Stale, run `make docs`: {', '.join(stale)}")


if __name__ == "__main__":
    main()
