"""One result from the single runs: medians, the ratio, what it was measured on, and a table for people."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from statistics import median
from typing import Any

import psycopg

from benchmarks.drain import Drained
from benchmarks.processes import ROOT
from jobs.conf import FIELDS

Runs = Sequence[tuple[Drained, Drained]]  # the product and its limit, alternating


def result(runs: Runs, *, jobs: int, slots: int, tenants: int) -> dict[str, Any]:
    """Medians of the product's figures, and of the limit's with the prefix `limit_`; `ratio` is of the medians."""
    product, limit = _medians([one for one, _ in runs]), _medians([one for _, one in runs])
    return {
        "benchmark": "drain",
        "jobs": jobs,
        "slots": slots,
        "tenants": tenants,
        **product,
        **{f"limit_{name}": value for name, value in limit.items()},
        "ratio": _rounded(product["jobs_per_s"] / limit["jobs_per_s"], 3),
        "runs": [{"product": _figures(one), "limit": _figures(other)} for one, other in runs],
    }


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


def table(values: Mapping[str, Any]) -> str:
    """The result for people: product and limit side by side."""
    lines = [
        f"drain: {values['jobs']} jobs, {values['slots']} slots, {values['tenants']} tenants,"
        f" {len(values['runs'])} run(s); {values['cores']} cores, PostgreSQL {values['postgresql']},"
        f" Python {values['python']}, commit {values['commit']}",
        f"{'':26}{'product':>12}{'limit':>12}",
    ]
    lines += [
        f"{name:26}{_shown(values[name]):>12}{_shown(values[f'limit_{name}']):>12}"
        for name in _names()
    ]
    return "\n".join([*lines, f"{'ratio':26}{values['ratio']:>12}"])


def _names() -> list[str]:
    names = [field.name for field in fields(Drained)]
    names.insert(names.index("wal_bytes_per_job"), "python_cpu_us_per_job")
    return names


def _figures(drained: Drained) -> dict[str, Any]:
    values = asdict(drained) | {"python_cpu_us_per_job": drained.python_cpu_us_per_job}
    return {name: _rounded(values[name]) for name in _names()}


def _medians(runs: Sequence[Drained]) -> dict[str, Any]:
    figures = [_figures(one) for one in runs]
    return {
        name: None
        if any(one[name] is None for one in figures)
        else _rounded(median(one[name] for one in figures))
        for name in _names()
    }


def _rounded(value: float | None, digits: int | None = None) -> float | None:
    if value is None:
        return None
    return round(value, digits if digits is not None else 1 if value >= 10 else 3)


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
