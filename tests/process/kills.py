"""Workers that die at their work, one after the other, and what must be true of their jobs afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from uuid import UUID

from jobs.models import DueEntry, Job, Lease, Worker
from tests.process.stories import Event, finished, histories, recoveries, submit_many
from tests.support.process import T_REC, Fleet, Process
from tests.support.receivers import ApplyOnce

SLOTS, LEFT_AT_WORK = 4, 3


def end_at_work(
    fleet: Fleet,
    end: Callable[[Process], None],
    *,
    times: int,
    seed: int,
    portion: int,
    seconds: float,
) -> tuple[list[UUID], set[str]]:
    """Let `end` end one busy worker after the other, as soon as enough others are there to take over.

    There are always jobs of so many seconds due, made in portions. On return all of them are finished.

    Returns:
        The jobs, and the ids of the workers that were ended.
    """
    rng = random.Random(seed)
    workers = [fleet.worker("--slots", str(SLOTS)) for _ in range(2 * LEFT_AT_WORK)]
    fleet.ready()
    jobs: list[UUID] = []
    ended: set[str] = set()

    def met_at_work() -> list[Process]:
        if DueEntry.objects.count() < portion / 2:
            jobs.extend(submit_many(portion, "probe.effect", seconds=seconds, max_attempts=1000))
        return _at_work(workers)

    for _ in range(times):
        victim = rng.choice(fleet.until(met_at_work, f"work goes on (seed {seed})"))
        ended.add(str(victim.worker_id))
        end(victim)
        workers.remove(victim)
        workers.append(fleet.worker("--slots", str(SLOTS)))
    fleet.until(lambda: finished(*jobs), f"all jobs are finished (seed {seed})")
    assert len(ended) == times
    return jobs, ended


def assert_recovered_in_time(jobs: Collection[UUID], ended: Collection[str]) -> None:
    """The workers that were ended took attempts along, nobody else did, and each came back within T_REC."""
    told = histories(jobs)
    met = {event.detail["worker"] for event in lost_attempts(told)}
    assert met <= {*ended}, "a worker lost a lease that nobody had ended"
    assert len(met) >= len(ended) / 2, "too few ends have met running jobs"
    slowest = max(told, key=lambda job: max(recoveries(told[job]), default=0.0))
    assert max(recoveries(told[slowest])) <= T_REC, told[slowest]


def assert_each_effect_once(fleet: Fleet, jobs: Collection[UUID]) -> None:
    """Every job succeeded and had one effect, and no effect was sent that no claim stood for."""
    assert Job.objects.filter(pk__in=jobs, status="succeeded").count() == len(jobs)
    deliveries = ApplyOnce(fleet.folder / "apply-once.log").deliveries()
    assert Counter(one.job for one in deliveries if one.applied) == dict.fromkeys(jobs, 1)
    sent, claims = Counter(one.job for one in deliveries), Counter[UUID]()
    for job, story in histories(jobs).items():
        claims[job] = sum(event.kind == "leased" for event in story)
    assert sent <= claims


def lost_attempts(told: dict[UUID, list[Event]]) -> list[Event]:
    """The failures of these histories; all of them must be workers that went silent."""
    lost = [event for story in told.values() for event in story if event.kind == "failed"]
    assert {event.detail["cause"] for event in lost} == {"lease_expired"}
    return lost


def _at_work(processes: list[Process]) -> list[Process]:
    """Those that hold a lease now; none while too few would be left to take over."""
    running = Worker.objects.filter(state="running", pid__in=[one.pid for one in processes])
    if running.count() <= LEFT_AT_WORK:
        return []
    busy = set(
        running.filter(pk__in=Lease.objects.running().values("worker")).values_list(
            "pid", flat=True
        )
    )
    return [one for one in processes if one.pid in busy]
