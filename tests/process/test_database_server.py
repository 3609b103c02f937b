"""A database server that is killed and comes back: whatever it had acknowledged is there, and work goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
import pytest

from tests.process.stories import seconds_between
from tests.support.process import MANAGE, Fleet
from tests.support.submitter import acknowledged_jobs
from workers import embedded
from workers.embedded import EmbeddedServer

# The fleet's failure message reads the database of the test run; this one works on a server of its own.
pytestmark = [pytest.mark.process, pytest.mark.django_db]

# The figure promised is 20 (DB_KILLS=20); an ordinary run does fewer.
KILLS = int(os.environ.get("DB_KILLS") or 3)
SEED, JOBS_A_ROUND, AT_WORK_SECONDS = 32, 15, 5.0
SLOTS, BACKLOG_A_ROUND = 4, 200  # of jobs that keep the slots busy, whatever the client does
RATE_SECONDS, FULL_RATE = (
    2.0,
    0.75,
)  # counted over so long; so much of the rate before the kill is as before
SETTINGS = {"shared_buffers": "32MB", "max_connections": "50"}
REGISTERED = """select (select count(*) from jobs_worker where state = 'running'),
    (select count(*) from jobs_schedulernode)"""
FIRST_DONE_SINCE = """
select min(ended.at) from jobs_jobevent ended join jobs_job job on job.id = ended.job_id
where ended.kind = 'succeeded' and job.created_at > %s"""
DONE_BETWEEN = """
select count(*) from jobs_jobevent where kind = 'succeeded' and at >= %(since)s::timestamptz
    and at < %(since)s::timestamptz + %(seconds)s * interval '1 second'"""
STORED = "select status, count(*) from jobs_job where id = any(%s) group by status"
WAITING = "select count(*) from jobs_dueentry"
UNFINISHED = "select count(*) from jobs_job where finished_at is null"


class OwnServer:
    """A server that can be killed together with all its processes, and started again on the same files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: EmbeddedServer = embedded.start(folder, settings=SETTINGS)
        self.url = self._server.url

    def kill(self) -> None:
        """kill -9: the postmaster first stopped, so that it starts no child that would be overlooked."""
        postmaster = psutil.Process(self._server.pid)
        postmaster.send_signal(signal.SIGSTOP)
        children = postmaster.children(recursive=True)
        for process in (postmaster, *children):
            process.kill()
        self._server.stop()  # reaps it, and frees the folder
        psutil.wait_procs(children, timeout=60)

    def start(self) -> None:
        """Start again; on return it has replayed its log and takes connections."""
        self._server = embedded.start(self._folder, settings=SETTINGS)
        assert self._server.url == self.url

    def stop(self) -> None:
        self._server.stop()

    def ask(self, sql: str, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as link:
            return link.execute(sql, named or values).fetchall()

    def now(self) -> datetime:
        """Its clock."""
        at: datetime = self.ask("select clock_timestamp()")[0][0]
        return at

    def rate(self, since: datetime) -> float:
        """Jobs that succeeded a second, in RATE_SECONDS from then on."""
        ((done,),) = self.ask(DONE_BETWEEN, since=since, seconds=RATE_SECONDS)
        return float(done / RATE_SECONDS)


@pytest.fixture
def server() -> Iterator[OwnServer]:
    folder = Path(tempfile.mkdtemp(prefix="duekeeper-killed-"))
    folder.chmod(0o711)  # or root would use another place
    server = OwnServer(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def fleet(server: OwnServer, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(database_url=server.url, folder=tmp_path) as fleet:
        yield fleet


def run(fleet: Fleet, name: str, *command: str) -> None:
    """Run a command of manage.py to its end, which must be good."""
    process = fleet.start(name, sys.executable, MANAGE, *command)
    process.may_end = True
    assert process.exit_code(within=60.0) == 0, process.log.read_text()


@pytest.mark.timeout(120 + 30 * KILLS)
def test_f32_what_a_killed_server_had_acknowledged_is_finished_and_the_full_rate_is_soon_back(
    server, fleet, tmp_path
):
    rng = random.Random(SEED)
    noted = tmp_path / "acknowledged"
    run(fleet, "migrate", "migrate", "--verbosity", "0")
    loops = [fleet.scheduler(), fleet.worker("--slots", str(SLOTS))]
    fleet.until(lambda: server.ask(REGISTERED) == [(1, 1)], "both are registered")
    backlog = str(BACKLOG_A_ROUND * KILLS)
    client = fleet.start("client", sys.executable, "-m", "tests.support.submitter", noted, backlog)

    def acknowledged() -> list[UUID]:
        return acknowledged_jobs(noted)

    def is_over(since: datetime, seconds: float) -> bool:
        return seconds_between(since, server.now()) > seconds

    fleet.until(acknowledged, "the client is answered")
    for _ in range(KILLS):
        wanted, begun_at = len(acknowledged()) + JOBS_A_ROUND, server.now()
        fleet.until(lambda wanted=wanted: len(acknowledged()) >= wanted, "the client is answered")
        fleet.until(lambda since=begun_at: is_over(since, RATE_SECONDS), "a rate can be measured")
        time.sleep(rng.uniform(0, 0.1))  # where in the work the kill strikes
        before = server.rate(begun_at)
        server.kill()
        server.start()
        ready_at = server.now()

        def first_done(since: datetime = ready_at) -> datetime | None:
            at: datetime | None = server.ask(FIRST_DONE_SINCE, since)[0][0]
            return at

        done_at = fleet.until(first_done, f"a new job went all the way (seed {SEED})")
        assert seconds_between(ready_at, done_at) <= AT_WORK_SECONDS
        full_at = ready_at + timedelta(seconds=AT_WORK_SECONDS)
        fleet.until(lambda since=full_at: is_over(since, RATE_SECONDS), "the rate is measured")
        assert server.ask(WAITING)[0][0] >= SLOTS, "the backlog is too small to tell the rate"
        assert before > 2 * SLOTS, "the slots were not busy before"
        assert server.rate(full_at) >= FULL_RATE * before, fleet.tell(f"{before} a second before")
    client.kill()
    fleet.until(lambda: server.ask(UNFINISHED) == [(0,)], "all are finished")

    jobs = acknowledged()
    assert len(jobs) >= KILLS * JOBS_A_ROUND
    assert len(set(jobs)) == len(jobs)
    assert server.ask(STORED, jobs) == [("succeeded", len(jobs))]
    assert not any(process.ended for process in loops)
    for process in loops:
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0, process.last_lines()
    run(fleet, "verify", "dk", "history", "verify", "--at-rest")
