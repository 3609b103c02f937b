"""The two engines under measurement, each a scheduler and a worker process: the product, and its raw-SQL limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from benchmarks.database import true
from benchmarks.handlers import NOOP
from benchmarks.processes import BenchmarkError, Running, running

READY_SECONDS = 60.0
POLL_SECONDS = 0.1  # how often the end is looked for


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start an engine, and the query that says whether it is at work."""

    scheduler: tuple[str, ...]
    worker: tuple[str, ...]
    ready: str

    @contextmanager
    def at_work(
        self, url: str, link: psycopg.Connection, *, slots: int, **env: str
    ) -> Iterator[Running]:
        """Run both processes; the number of slots is the last argument of the worker."""
        commands = {"scheduler": [*self.scheduler], "worker": [*self.worker, str(slots)]}
        with running(commands, url, **env) as processes:
            wait(lambda: true(link, self.ready), READY_SECONDS, processes)
            yield processes


# Ready: the worker has made its handler known and the scheduler owns every shard.
PRODUCT = Engine(
    scheduler=("manage.py", "runscheduler"),
    worker=("manage.py", "runworker", "--slots"),
    ready=f"""
select exists (select from jobs_worker where state = 'running' and handlers ? '{NOOP}')
    and not exists (select from jobs_shard where owner is null or owner not in (select id from jobs_schedulernode))""",
)
# The handlers and the default pool must be known to the database.
LIMIT = Engine(
    scheduler=("-m", "benchmarks.limit", "scheduler"),
    worker=("-m", "benchmarks.limit", "worker"),
    ready="""
select count(*) = 2 from pg_stat_activity where datname = current_database() and state = 'idle'
    and application_name in ('duekeeper_limit_scheduler', 'duekeeper_limit_worker')""",
)


def introduce(url: str, link: psycopg.Connection) -> None:
    """Let a worker of the product make handlers and pool known, as the limit and every client need them."""
    with PRODUCT.at_work(url, link, slots=1):
        pass


def wait(condition: Callable[[], bool], seconds: float, processes: Running) -> None:
    """Wait until a condition holds.

    Raises:
        BenchmarkError: It does not within so many seconds, or a process ended meanwhile.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        processes.check()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"no end within {seconds:g} s:\n{processes.log_end()}")
        time.sleep(POLL_SECONDS)
