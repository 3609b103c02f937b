"""Real `manage.py runscheduler` and `manage.py runworker` processes on the test database, with short leases.

Every process is tied to the test run and ends with it. A wait that fails tells the end of each process's log and the
histories of the jobs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import psutil

from jobs.database import rows
from jobs.models import Job, JobEvent, Lease, SchedulerNode, Shard, Worker
from tests.support.forks import Fork, Parent
from workers.tied import spawn

ROOT = Path(__file__).resolve().parents[2]
MANAGE = ROOT / "manage.py"
# The settings of every process here, and of the test itself: its checkers must know the tolerance.
PROFILE = {
    "lease_ttl_seconds": 3.0,  # five beats: a worker that stood still for a second has lost nothing
    "heartbeat_seconds": 0.6,
    "tick_seconds": 0.5,
    "clock_tolerance_seconds": 0.2,
    "shard_lease_seconds": 2.0,
}
# From the last committed heartbeat to the moment the job can be claimed again.
T_REC = (
    PROFILE["lease_ttl_seconds"]
    + PROFILE["clock_tolerance_seconds"]
    + PROFILE["tick_seconds"]
    + 1.0
)
PATIENCE_SECONDS = 60.0  # for what has no promised figure: a busy machine is no fault
POLL_SECONDS = 0.02
STACKS = "\n--- stacks\n"
DULL_FRAMES = r"/threading.py|/django/core/management/|/manage.py|^$"
LOG_LINES, STACK_LINES, STORIES = 12, 80, 6
SESSIONS = r"""
select pid, state, wait_event, age(statement_timestamp(), query_start),
    left(regexp_replace(query, '\s+', ' ', 'g'), 90)
from pg_stat_activity where datname = current_database() order by pid"""


def environment(database_url: str) -> dict[str, str]:
    """What every process of a test is given, besides its own settings."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("DUEKEEPER_")}
    return {
        **given,
        **{_variable(name): str(value) for name, value in PROFILE.items()},
        "DATABASE_URL": database_url,
        "LOG_FORMAT": "json",
        "PYTHONFAULTHANDLER": "1",
    }


def fleet_environment(database_url: str) -> dict[str, str]:
    """That of schedulers and workers which carry out the probes."""
    return {**environment(database_url), "DUEKEEPER_APPS": "tests.process.probes"}


class Process:
    """One child process and its log."""

    def __init__(
        self,
        name: str,
        popen: subprocess.Popen[bytes] | Fork,
        log: Path,
        *,
        prints_stacks: bool = False,
    ) -> None:
        self.name, self.log, self._popen, self._prints_stacks = name, log, popen, prints_stacks
        self.may_end = False  # set by whoever ends it; an end that nobody wanted fails every wait

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def ended(self) -> bool:
        """True once it has ended and is reaped."""
        return self._popen.poll() is not None

    @property
    def worker_id(self) -> UUID:
        """Under which it registered: random per start, found by its process id."""
        return Worker.objects.get(pid=self.pid).pk

    def kill(self) -> None:
        """kill -9, and wait for the kernel to be through with it."""
        self.may_end = True
        self._popen.kill()
        self._popen.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal that asks it to end, and return at once."""
        self.may_end = True
        self._popen.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP; on return it no longer runs."""
        self._popen.send_signal(signal.SIGSTOP)
        while psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(POLL_SECONDS)  # the kernel stops thread by thread

    def thaw(self) -> None:
        """SIGCONT."""
        self._popen.send_signal(signal.SIGCONT)

    def exit_code(self, *, within: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; negative is the signal that ended it.

        Raises:
            AssertionError: It still runs after `within` seconds.
        """
        try:
            return self._popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs:\n{self.last_lines()}") from None

    def logged(self) -> list[dict[str, Any]]:
        """Its log so far; a line that is no JSON object comes as {"text": line}."""
        return [_parsed(line) for line in self.log.read_text(errors="replace").splitlines()]

    def last_lines(self) -> str:
        """The end of its log, for a failure message."""
        text, _, stacks = self.log.read_text(errors="replace").partition(STACKS)
        frames = [line for line in stacks.splitlines() if not re.search(DULL_FRAMES, line)]
        lines = [*text.splitlines()[-LOG_LINES:], *frames[:STACK_LINES]]
        state = self._popen.poll()
        end = "running" if state is None else f"ended with {state}"
        return "\n".join([f"--- {self.name}, pid {self.pid}, {end}", *lines])

    def log_stacks(self) -> None:
        """Ask a process of ours that still runs for the stacks of its threads; they go to its log."""
        if self._prints_stacks and not self.ended:
            size = self.log.stat().st_size
            with self.log.open("a") as log:
                log.write(STACKS)
            self._popen.send_signal(signal.SIGQUIT)
            deadline = time.monotonic() + 1.0  # a frozen process will not answer
            while self.log.stat().st_size <= size + len(STACKS) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)


class Fleet:
    """The processes of one test. A context manager: leaving it leaves none of them."""

    def __init__(self, *, database_url: str, folder: Path, forks: Parent | None = None) -> None:
        """With `forks`, schedulers and workers without settings of their own (failpoints aside) are its forks."""
        self.processes: list[Process] = []
        self.folder = folder
        self._forks = forks
        self._own = {"PROBE_FOLDER": str(folder)}
        self._env = {**fleet_environment(database_url), **self._own}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()

    def fork_all(self) -> None:
        """For a test that would be slow without: make sure that its processes are forks."""
        assert self._forks is not None, "a fleet without a parent of forks"

    def scheduler(self, *flags: str, **settings: object) -> Process:
        """Start a scheduler; `settings` are fields of JobsConf, or whole variable names in capitals."""
        return self._manage("runscheduler", *flags, **settings)

    def worker(self, *flags: str, **settings: object) -> Process:
        """Start a worker of the default pool; `settings` as for a scheduler."""
        return self._manage("runworker", *flags, **settings)

    def start(self, name: str, *command: str | Path, **settings: object) -> Process:
        """Start any command in the repository's root, with the environment of all the others."""
        log = self.folder / f"{len(self.processes)}-{name}.log"
        with log.open("ab") as output:
            popen = spawn(
                command,
                parting_signal=signal.SIGKILL,
                output=output,
                cwd=ROOT,
                env={**self._env, **{_variable(k): str(v) for k, v in settings.items()}},
            )
        ours = MANAGE in command
        self.processes.append(Process(name, popen, log, prints_stacks=ours))
        return self.processes[-1]

    def ready(self) -> None:
        """Wait until every worker takes work and the schedulers share all shards evenly."""
        self.until(self._is_ready, "all processes are at work")

    def until[T](
        self,
        holds: Callable[[], T],
        what: str,
        *,
        within: float = PATIENCE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> T:
        """Wait until `holds()` is true, and return what it returned.

        Raises:
            AssertionError: Not within so many seconds, or a process ended that nobody had ended.
        """
        deadline = time.monotonic() + within
        while not (found := holds()):
            for process in self.processes:
                if process.ended and not process.may_end:
                    raise AssertionError(self.tell(f"{process.name} ended while waiting: {what}"))
            if time.monotonic() > deadline:
                raise AssertionError(self.tell(f"not within {within:g} s: {what}"))
            time.sleep(poll_seconds)
        return found

    def holder(self, job_id: UUID) -> Process:
        """The process whose worker has the job now; waits until one does."""
        lease = Lease.objects.running().filter(job_id=job_id).values_list("worker", flat=True)
        workers = self.until(lambda: [one for one in lease.all() if one], f"a worker has {job_id}")
        pid = Worker.objects.get(pk__in=workers).pid
        return next(process for process in self.processes if process.pid == pid)

    def tell(self, what: str) -> str:
        """A failure message: what happened, and all that explains it: stacks, logs, sessions, histories."""
        for process in self.processes:
            process.log_stacks()
        logs = [process.last_lines() for process in self.processes]
        return "\n".join([what, *logs, *sessions(), *stories()])

    def _manage(self, command: str, *flags: str, **settings: object) -> Process:
        name = f"{command.removeprefix('run')}-{len(self.processes)}"
        if self._forks is not None and settings.keys() <= {"failpoints"}:
            log = self.folder / f"{len(self.processes)}-{name}.log"
            log.touch()
            failpoints = str(settings.get("failpoints", ""))
            fork = self._forks.fork(command, *flags, log=log, failpoints=failpoints, env=self._own)
            self.processes.append(Process(name, fork, log, prints_stacks=True))
            return self.processes[-1]
        return self.start(name, sys.executable, MANAGE, command, *flags, **settings)

    def _is_ready(self) -> bool:
        pids: dict[str, list[int]] = {"worker": [], "scheduler": []}
        for process in self.processes:
            kind = process.name.partition("-")[0]
            if kind in pids and not process.ended:
                pids[kind].append(process.pid)
        workers = Worker.objects.filter(pid__in=pids["worker"], state="running").count()
        nodes = list(
            SchedulerNode.objects.filter(pid__in=pids["scheduler"]).values_list("pk", flat=True)
        )
        total = Shard.objects.count()
        shares = [Shard.objects.filter(owner=node).count() for node in nodes]
        even = not nodes or (sum(shares) == total and max(shares) - min(shares) <= 1)
        return workers == len(pids["worker"]) and len(nodes) == len(pids["scheduler"]) and even


def sessions() -> Iterator[str]:
    """What the database sees of the processes."""
    yield "--- sessions"
    for session in rows(SESSIONS, {}):
        yield "  " + " | ".join(map(str, session))


def stories() -> Iterator[str]:
    """The histories of a few jobs, unfinished ones first."""
    unfinished_first = Job.objects.order_by("-finished_at", "created_at")
    for job in unfinished_first[:STORIES]:
        yield f"--- {job.handler} {job.pk}: {job.status}, attempt {job.attempt}"
        for event in JobEvent.objects.filter(job=job).order_by("seq"):
            yield f"  #{event.seq} {event.at} {event.kind} by {event.actor} {event.detail or ''}"


def _variable(name: str) -> str:
    return name if name.isupper() else f"DUEKEEPER_{name.upper()}"


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"text": line}
