"""Commands as an operator runs them, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management import call_command


def caller(capsys: Any, command: str) -> Callable[..., tuple[int, str, str]]:
    """Runs the command with some words; exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        code = 0
        try:
            call_command(command, *map(str, words))
        except SystemExit as end:
            code = int(str(end.code))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run
