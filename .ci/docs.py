"""Writes the documents that are generated from code, or with `--check` says which are stale. Run as `make docs`."""

from __future__ import annotations

import re
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


TEST = re.compile(r"^ *(?:async )?def test((?:_(?:kf|f|i|s)\d+)+)_", re.MULTILINE)
FAULT = re.compile(r"^\| ((?:KF-|F|I|S)\d+) \| (.*) \|.*\|$", re.MULTILINE)
NO_TEST = "(no test yet)"


def tests_by_fault() -> dict[str, list[str]]:
    """Fault id → test files, below tests/, with a test that carries it in its name."""
    folder = ROOT / "tests"
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        ids = {name for names in TEST.findall(path.read_text()) for name in names[1:].split("_")}
        for name in ids:
            fault = name.upper().replace("KF", "KF-")
            found.setdefault(fault, []).append(path.relative_to(folder).as_posix())
    return found


def faults() -> str:
    """The table of faults as it stands, with its column of test files filled in.

    Raises:
        SystemExit: A test names a fault that has no row.
    """
    tests = tests_by_fault()
    text = (ROOT / "docs/faults.md").read_text()
    if missing := tests.keys() - {found[1] for found in FAULT.finditer(text)}:
        raise SystemExit(f"docs/faults.md has no row for {', '.join(sorted(missing))}")
    return FAULT.sub(
        lambda found: f"| {found[1]} | {found[2]} | {', '.join(tests.get(found[1], [NO_TEST]))} |",
        text,
    )


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/state-machine.md": state_machine,
    "docs/faults.md": faults,
}


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
