"""A fleet that dies as a whole and comes back: nothing is lost, and the database is not overrun."""

from __future__ import annotations

import signal
from collections import defaultdict
from datetime import datetime

import pytest

from jobs.database import rows
from jobs.models import JobEvent, Worker
from tests.process.kills import SLOTS, assert_each_effect_once, lost_attempts
from tests.process.stories import (
    assert_at_rest,
    database_now,
    finished,
    histories,
    seconds_between,
    submit_many,
)
from tests.support.process import T_REC, Fleet

pytestmark = pytest.mark.process

SCHEDULERS, WORKERS = 2, 8
# A scheduler has its loop and its listener, a worker a heartbeat besides; handlers that use the database add their own.
MOST_CONNECTIONS = 2 * SCHEDULERS + 3 * WORKERS
RETURN_SECONDS = 5.0
SESSIONS = """
select pid from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"""


@pytest.mark.timeout(180)
def test_f11_a_whole_fleet_killed_and_restarted_is_at_its_full_rate_in_time_and_loses_nothing(
    fleet,
):
    connections: list[int] = []
    of_the_dead: set[int] = set()  # a session outlives its client until the server has noticed

    def all_slots_work() -> bool:
        connections.append(len(_sessions() - of_the_dead))
        return _full_since(fleet) is not None

    _start_all(fleet)
    fleet.ready()
    jobs = submit_many(1200, "probe.effect", seconds=0.25, max_attempts=3)
    fleet.until(all_slots_work, "every slot works")
    dead = {str(one) for one in Worker.objects.values_list("pk", flat=True)}
    # All at one moment, and the schedulers last: until then no worker is without work.
    for process in reversed(fleet.processes):
        process.send(signal.SIGKILL)
    for process in fleet.processes:
        process.kill()
    of_the_dead |= _sessions()
    restarted_at = database_now()
    _start_all(fleet)
    fleet.until(all_slots_work, "every slot works again")
    full_since = _full_since(fleet)
    fleet.until(lambda: finished(*jobs), "all jobs are finished")

    assert full_since is not None
    assert seconds_between(restarted_at, full_since) <= T_REC + RETURN_SECONDS
    assert max(connections) <= MOST_CONNECTIONS
    lost = lost_attempts(histories(jobs))
    assert {event.detail["worker"] for event in lost} == dead
    assert max(seconds_between(restarted_at, event.at) for event in lost) <= T_REC + RETURN_SECONDS
    assert_each_effect_once(fleet, jobs)
    assert_at_rest()


def _sessions() -> set[int]:
    return {pid for (pid,) in rows(SESSIONS, {})}


def _start_all(fleet: Fleet) -> None:
    for _ in range(SCHEDULERS):
        fleet.scheduler()
    for _ in range(WORKERS):
        fleet.worker("--slots", str(SLOTS))


def _full_since(fleet: Fleet) -> datetime | None:
    """When the last of the workers that live had begun with as many jobs as it has slots; None before."""
    pids = [one.pid for one in fleet.processes if not one.ended and one.name.startswith("worker")]
    alive = [
        f"worker:{one}" for one in Worker.objects.filter(pid__in=pids).values_list("pk", flat=True)
    ]
    began: dict[str, list[datetime]] = defaultdict(list)
    starts = JobEvent.objects.filter(kind="started", actor__in=alive).order_by("at")
    for actor, at in starts.values_list("actor", "at"):
        began[actor].append(at)
    if len(began) < WORKERS or min(map(len, began.values())) < SLOTS:
        return None
    return max(starts[SLOTS - 1] for starts in began.values())
