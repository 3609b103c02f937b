"""Child processes that never outlive the process that started them, whatever ends it.

Run as a program, this module is the child for a moment: it ties itself to its parent, drops root if asked to, and
turns into the command. A program rather than preexec_fn, which may deadlock in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

PR_SET_PDEATHSIG = 1


class Account(NamedTuple):
    """A system account to run as instead of root."""

    uid: int
    gid: int


def spawn(
    command: Sequence[str | Path],
    *,
    parting_signal: signal.Signals,
    account: Account | None = None,
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command`, which the kernel sends `parting_signal` when its parent ends (Linux; elsewhere nothing does).

    The child gets a session of its own: Ctrl-C in a terminal goes to the whole group, and the parent must be able to
    end its children in order. Call it from the main thread: the tie holds to the calling *thread*.

    Args:
        command: Program as a full path, and its arguments.
        parting_signal: What ends this program in an orderly way.
        account: Account to run as; only root can ask for one.
        output: Where both output streams go; None leaves those of the parent.
        cwd: Working folder.
        env: The whole environment; None copies that of the parent.
        pass_fds: Descriptors that it keeps, under their numbers.
    """
    uid, gid = account or (-1, -1)
    own = (str(value) for value in (os.getpid(), parting_signal.value, uid, gid))
    return subprocess.Popen(  # noqa: S603 (the caller's command, no shell)
        [sys.executable, "-I", "-S", __file__, *own, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def tie(parting_signal: int) -> None:
    """Have the kernel send this process a signal when its parent ends. Look afterwards whether the parent is there."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, parting_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _become(parent: int, parting_signal: int, account: Account, command: list[str]) -> None:
    if account.uid != -1:
        os.setgroups([])
        os.setgid(account.gid)
        os.setuid(account.uid)
    tie(parting_signal)  # after setuid, which clears it; exec keeps it
    if os.getppid() == parent:  # else it died before the tie was there
        os.execv(command[0], command)  # noqa: S606 (no shell wanted)


if __name__ == "__main__":
    numbers = [int(value) for value in sys.argv[1:5]]
    _become(numbers[0], numbers[1], Account(*numbers[2:]), sys.argv[5:])
