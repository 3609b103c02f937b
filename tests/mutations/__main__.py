"""Writes each fault of the catalogue into a copy of the project and runs the tests that must notice: `make mutations`.

The working tree is never touched. Before the faults, all these tests must pass on a copy without any; with each fault,
a plain story must still work, for a program that is broken altogether is caught by anything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutations.catalogue import MUTATIONS, ROOT, Mutation
from workers import embedded

AT_A_TIME = 2
LONGEST_SECONDS = 300.0  # of one run; a fault that makes a test wait for ever is caught by it
ALIVE = "tests/mutations/test_alive.py"
# Short and without the search for the shortest story: any failure is enough.
ENVIRONMENT = {"STATEFUL_EXAMPLES": "60", "STATEFUL_SHRINK": "0", "RACE_ROUNDS": "60"}
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one fault: `noticed` is the first test that failed, "" if all passed."""

    name: str
    caught: bool
    noticed: str
    seconds: float
    output: str = ""


def copy_of_the_project(folder: Path) -> Path:
    """The files that git knows or would add, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, tests: Iterable[str], database_url: str) -> tuple[int, str]:
    """Exit code and output of pytest in this copy, in the order given, up to the first failure."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:randomly"]
    command += ["-p", "no:cacheprovider", "--show-capture=no", "--tb=short", *tests]
    environment = {**os.environ, **ENVIRONMENT, "DATABASE_URL": database_url}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired as expired:
        told = expired.stdout or b""
        return 1, f"{told.decode() if isinstance(told, bytes) else told}\nFAILED (no-end)"
    return done.returncode, done.stdout


def try_out(mutation: Mutation, database_url: str) -> Verdict:
    """One fault in a copy of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duekeeper-mutation-") as name:
        folder = copy_of_the_project(Path(name))
        for change in mutation.changes:
            (folder / change.file).write_text(change.applied(folder))
        code, output = run_tests(folder, [ALIVE, *mutation.tests], database_url)
    seconds = time.monotonic() - began
    failed = FAILED.findall(output)
    first = failed[0] if failed else ""
    if code == 0:
        return Verdict(mutation.name, False, "", seconds, output)
    if code != 1 or not first or first.startswith(ALIVE):
        return Verdict(mutation.name, False, f"broken altogether (exit {code})", seconds, output)
    return Verdict(mutation.name, True, first.removeprefix("tests/"), seconds)


def check_without_a_fault(mutations: Sequence[Mutation], database_url: str) -> None:
    """All tests that are about to notice something must have nothing to notice yet.

    Raises:
        SystemExit: One fails.
    """
    tests = dict.fromkeys([ALIVE, *(test for mutation in mutations for test in mutation.tests)])
    whole = {test for test in tests if "::" not in test}
    chosen = [test for test in tests if test in whole or test.partition("::")[0] not in whole]
    with tempfile.TemporaryDirectory(prefix="duekeeper-mutation-") as name:
        folder = copy_of_the_project(Path(name))
        code, output = run_tests(folder, chosen, database_url)
    if code != 0:
        sys.stdout.write(output)
        raise SystemExit("The tests do not pass without a fault either.")


def main() -> int:
    """Run the catalogue, or a part of it, and print the table; 0 if every fault was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="faults with this in their name"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    chosen = [
        mutation
        for mutation in MUTATIONS
        if not options.only or any(part in mutation.name for part in options.only)
    ]
    if options.list:
        sys.stdout.write("".join(f"{mutation.name}\n" for mutation in chosen))
        return 0
    for mutation in chosen:  # all of them before the first run
        for change in mutation.changes:
            change.applied(ROOT)
    folder = Path(tempfile.mkdtemp(prefix="duekeeper-mutations-"))
    server = embedded.start(folder)
    try:
        check_without_a_fault(chosen, server.url)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            verdicts = list(pool.map(lambda one: try_out(one, server.url), chosen))
    finally:
        server.stop()
        for path in {server.home, folder}:
            shutil.rmtree(path)
    return report(verdicts)


def report(verdicts: Sequence[Verdict]) -> int:
    """Print the output of runs that caught nothing, the table, and the count as the last line."""
    table = Table("fault", "caught", "first test that failed", "s")
    for verdict in verdicts:
        if not verdict.caught:
            sys.stdout.write(f"\n== {verdict.name}\n{verdict.output[-4000:]}\n")
        word = "yes" if verdict.caught else "NO"
        table.add_row(verdict.name, word, verdict.noticed, f"{verdict.seconds:.0f}")
    console = Console(width=max(Console().width, 160))
    console.print(table)
    caught = sum(verdict.caught for verdict in verdicts)
    sys.stdout.write(f"caught {caught} of {len(verdicts)}\n")
    return 0 if verdicts and caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
