"""What a fault is made of: replacements of text, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one file; `old` occurs in it exactly once."""

    file: str
    old: str
    new: str

    def applied(self, folder: Path) -> str:
        """The file with the change made.

        Raises:
            ValueError: The old text is not there, or not once.
        """
        text = (folder / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {times} times: {self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault by name, the changes that make it, and the tests of which at least one must fail."""

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


def mutation(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    """A fault of one change."""
    return Mutation(name, (Change(file, old, new),), tests)
