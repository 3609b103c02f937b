"""One result from single runs: medians, ratios, what it was measured on, and a table for people."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import psycopg

from benchmarks.processes import ROOT
from jobs.conf import FIELDS

Figures = Mapping[str, float | None]  # None: not to be seen from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark.

    Attributes:
        name: Of the benchmark.
        size: What was asked for.
        runs: The product's figures and those it is compared with, of each run.
        ratios: Name of a ratio → the figure whose medians it compares. 1 is as good as the other, more is better.
        other: What the other figures are of.
    """

    name: str
    size: Mapping[str, int]
    runs: Sequence[tuple[Figures, Figures]]
    ratios: Mapping[str, str]
    other: str = "limit"

    def values(self) -> dict[str, Any]:
        """For JSON: medians of the product's figures, and of the other's with its name before theirs."""
        product, other = (_medians([run[side] for run in self.runs]) for side in (0, 1))
        return {
            "benchmark": self.name,
            **self.size,
            **product,
            **{f"{self.other}_{name}": value for name, value in other.items()},
            **{name: _ratio(product, other, of) for name, of in self.ratios.items()},
            "runs": [
                {"product": _rounded_all(one), self.other: _rounded_all(two)}
                for one, two in self.runs
            ],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a line for what was asked, and both sides of each figure."""
        values = self.values()
        size = ", ".join(f"{name} {value:g}" for name, value in self.size.items())
        return [
            (f"{self.name}: {size}; {len(self.runs)} run(s)",),
            ("", "product", self.other),
            *(
                (name, _shown(values[name]), _shown(values[f"{self.other}_{name}"]))
                for name in self.runs[0][0]
            ),
            *((name, _shown(values[name]), "") for name in self.ratios),
        ]


def table(results: Sequence[Result], around: Mapping[str, Any]) -> str:
    """All results below each other."""
    lines = [
        f"{around['cores']} cores, PostgreSQL {around['postgresql']}, Python {around['python']},"
        f" commit {around['commit']}"
    ]
    for result in results:
        for first, *others in [("",), *result.rows()]:
            lines.append(f"{first:32}{''.join(f'{one:>12}' for one in others)}".rstrip())
    return "\n".join(lines)


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def alternate(
    repeat: int, product: Callable[[], Figures], other: Callable[[], Figures]
) -> list[tuple[Figures, Figures]]:
    """Both in turn, so many times: what disturbs one disturbs the other."""
    runs = []
    for number in range(1, repeat + 1):
        say(f"run {number} of {repeat}; load {os.getloadavg()[0]:.1f}")
        runs.append((product(), other()))
    return runs


def spread(prefix: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Median, 95th and 99th percentile and maximum, in milliseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    named = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(seconds)}
    return {f"{prefix}{name}_ms": value * 1000 for name, value in named.items()}


def surroundings(link: psycopg.Connection) -> dict[str, Any]:
    """The machine, the versions, and engine settings that are not the defaults."""
    version = link.info.parameter_status("server_version")
    return {
        "python": platform.python_version(),
        "postgresql": version,
        "cores": len(os.sched_getaffinity(0)),
        "commit": _commit(),
        "settings": {
            name: value
            for name in FIELDS
            if (value := os.environ.get(f"DUEKEEPER_{name.upper()}", "").strip())
        },
    }


def _ratio(product: Figures, other: Figures, of: str) -> float | None:
    ours, theirs = product[of], other[of]
    if not ours or not theirs:
        return None
    shorter_is_better = of.endswith("_ms")
    return round(theirs / ours if shorter_is_better else ours / theirs, 3)


def _medians(runs: Sequence[Figures]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in runs[0]:
        seen = [value for one in runs if (value := one[name]) is not None]
        found[name] = _rounded(median(seen)) if len(seen) == len(runs) else None
    return found


def _rounded_all(figures: Figures) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in figures.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1 if abs(value) >= 10 else 3)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _commit() -> str | None:
    """The commit measured, with a mark when files differ from it; None outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603

    try:
        commit, changed = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return f"{commit}+changes" if changed else commit
