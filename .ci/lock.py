"""Writes every version down: `[tool.uv] constraint-dependencies` and requirements.txt. Run as `make lock`.

uv.lock itself names download hosts and stays out of the repository; what counts of it is kept in these two places.
Pins that are still possible are kept; `--upgrade` (make lock UPGRADE=1) takes the newest of what is not named directly.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
REQUIREMENTS = ROOT / "requirements.txt"
BLOCK = re.compile(r"^constraint-dependencies = \[.*?\]$", re.MULTILINE | re.DOTALL)
HEADER = (
    "# Production dependencies with hashes, written by `make lock`.\n"
    "# Install with: pip install --require-hashes -r requirements.txt\n"
)


def uv(*arguments: str) -> str:
    """Output of a uv command; its messages go to the terminal.

    Raises:
        SystemExit: uv failed and has said why.
    """
    done = subprocess.run(
        ["uv", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"uv {arguments[0]} failed; if pins contradict each other: make lock UPGRADE=1"
        )
    return done.stdout


def export(*arguments: str) -> str:
    """The resolved packages in the form of a requirements file, without hosts."""
    return uv(
        "export",
        "--frozen",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--no-emit-project",
        *arguments,
    )


def write_constraints(pins: list[str]) -> None:
    """Replace the block in pyproject.toml, leaving the rest of the file as it is.

    Raises:
        SystemExit: The file has no such block, or more than one.
    """
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    block = f"constraint-dependencies = [\n{lines}]" if pins else "constraint-dependencies = []"
    text, count = BLOCK.subn(lambda match: block, PYPROJECT.read_text())
    if count != 1:
        raise SystemExit("pyproject.toml must have constraint-dependencies in [tool.uv] once.")
    PYPROJECT.write_text(text)


def direct_names() -> set[str]:
    """Names of the packages that pyproject.toml pins directly, runtime and groups."""
    project = tomllib.loads(PYPROJECT.read_text())
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    return {re.split(r"[\[=<>~! ;]", text)[0].lower() for group in groups for text in group}


def transitive_pins() -> list[str]:
    """`name==version` of everything else; with its marker where one name has several versions."""
    direct = direct_names()
    found: dict[str, list[str]] = {}
    for line in export("--all-groups", "--no-hashes").splitlines():
        name = line.partition("==")[0]
        if name and name.partition("[")[0] not in direct:
            found.setdefault(name, []).append(line.strip())
    return [
        pin if len(lines) > 1 else pin.partition(" ;")[0]
        for _, lines in sorted(found.items())
        for pin in lines
    ]


def main() -> None:
    """Resolve, write both places, and resolve again so that uv.lock agrees with what was written."""
    upgrade = "--upgrade" in sys.argv[1:]
    if upgrade:
        write_constraints([])
    uv("lock", "--quiet", *(["--upgrade"] if upgrade else []))
    write_constraints(transitive_pins())
    uv("lock", "--quiet")
    REQUIREMENTS.write_text(HEADER + export("--no-dev"))


if __name__ == "__main__":
    main()
