"""Runs pytest with the given arguments, and gives a few tests that a busy machine may have broken a second chance.

At most MOST_AGAIN tests that failed, whatever the number of their cases, are named and run once more, alone. Who fails twice fails the run; so does at once a
run with more failures, one whose processes crash, and one with a file that cannot be collected.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = 1  # pytest's exit code for failed tests; of a crash (tests/database_plugin.py) and other trouble it is another
MOST_AGAIN = 3
ALONE = ["-n", "0", "--lf", "--lfnf=none"]


def main(arguments: list[str]) -> int:
    """The exit code of the run, or of the second one if there was one. The last line is always pytest's own."""
    # A cache of this run alone: what failed in an earlier one means nothing.
    with tempfile.TemporaryDirectory(prefix="duekeeper-ci-") as cache:
        command = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code != FAILED:
            return code
        failed = _failed(Path(cache))
        # A file that could not be collected stands among them without the name of a test.
        tests = {name.partition("[")[0] for name in failed}
        if not 0 < len(tests) <= MOST_AGAIN or not all("::" in name for name in failed):
            return code
        for name in failed:
            print(f"unsteady: {name} needs a second run", flush=True)
        return subprocess.run([*command, *ALONE], cwd=ROOT, check=False).returncode


def _failed(cache: Path) -> list[str]:
    found = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text())) if found.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
