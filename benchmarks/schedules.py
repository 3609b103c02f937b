"""schedules: what recurring rules cost, and whether ten thousand of them come through a night with a moved clock.

Three parts: the CPU of one process that expands schedules which are all due at once; single rules at their worst; and
schedulers that are killed at random while they catch up over such a night, whose ledger is then held against a calendar
that shares no code with them. Beside each figure stands what is promised.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any

from django.db import connection
from django.utils import timezone

from benchmarks.handlers import NOOP
from benchmarks.nights import make_near, make_nights
from benchmarks.processes import ROOT, BenchmarkError, environment
from benchmarks.report import Result, say
from benchmarks.workload import ACTOR, make_tenants, request
from jobs.clock import database_now
from jobs.conf import conf
from jobs.errors import InvalidField, ValidationFailed
from jobs.models import Job, Schedule
from jobs.policies.misfire import plan
from jobs.policies.recurrence import expand
from jobs.policies.timing import Timing
from jobs.services.expansion import expand_schedules
from jobs.services.preview import check_upcoming, parse_recurrence
from jobs.services.submit import submit_jobs
from jobs.services.verifying import verify_history
from workers.tied import spawn

PROMISED = {
    "expand_cpu_ms": 5_000.0,
    "worst_round_ms": 50.0,
    "worst_year_ms": 50.0,
    "worst_refusal_ms": 100.0,
    "night_violations": 0.0,
}
SCHEDULERS, SEED = 3, 1
SHORT = {"DUEKEEPER_SHARD_LEASE_SECONDS": "2", "DUEKEEPER_TICK_SECONDS": "0.5"}
KILL_SECONDS = 0.3, 2.0  # between two kills
PATIENCE_SECONDS = 600.0
YEAR = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
CASES = ROOT / "tests" / "support" / "calendar" / "cases.json"
_MINUTES = ",".join(map(str, range(60)))
WORST = (
    "* * * * * *",
    "0 0 29 2 *",
    "59 59 23 31 12 *",
    "0 0 * * 1#5",
    "0 0 L * 1#5,5L",
    "0 0 31 * 0-6/2",
    f"{_MINUTES} 0,1,2,3,4,5,6,7,8,9,10,11,12 1,2,3,4,5 1,2,3 0,1,2",
    "0 * * * *",
    "30 2 * * *",
)
REFUSED = (
    *(
        "0 0 * 2 1#5",
        "0 0 30 2 *",
        ",".join(["*/7"] * 60),
        "*" * 255,
        "1-59/59 " * 31,
        "0 0 31 2 1L",
    ),
    *("9" * 255, f"{'0,' * 120}0 0 * * x", "@every 5m", "* * * * * * *"),
)


def measure(url: str, *, schedules: int, zones: int, kills: int, repeat: int) -> Result:
    """All runs of this benchmark, each beside what is promised."""
    runs = []
    for number in range(1, repeat + 1):
        say(f"run {number} of {repeat}; load {os.getloadavg()[0]:.1f}")
        figures = {
            **_expansion(schedules, zones),
            **_rules(),
            **_night(url, schedules, zones, kills),
        }
        runs.append((figures, {name: PROMISED.get(name) for name in figures}))
    return Result(
        name="schedules",
        size={"schedules": schedules, "zones": zones, "kills": kills},
        runs=runs,
        ratios={"expand_cpu_ratio": "expand_cpu_ms"},
        other="promised",
    )


def _expansion(schedules: int, zones: int) -> dict[str, float | None]:
    """Python's CPU for 10,000 schedules with one firing each, from row to job."""
    _empty()
    make_near(schedules, zones, NOOP, database_now())
    _analyze()
    began, cpu = time.perf_counter(), time.process_time()
    made = 0
    while (done := expand_schedules(shards=range(conf().shards), actor=ACTOR)).schedules:
        made += done.made
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    if made < schedules or Job.objects.count() != made:
        raise BenchmarkError(f"{schedules} schedules made {made} jobs")
    say(f"  expansion {cpu:6.2f} s of CPU, {wall:6.2f} s")
    scale = 10_000 / schedules * 1000
    return {"expand_cpu_ms": cpu * scale, "expand_wall_ms": wall * scale}


def _rules() -> dict[str, float | None]:
    """The worst rule that is accepted, in one round and in a whole year of it, and the worst that is not."""
    rounds, years, refusals = {}, {}, {}
    for text in WORST:
        timing = Timing(
            recurrence=parse_recurrence({"cron": text, "timezone": "Africa/Casablanca"})
        )
        rounds[text] = _milliseconds(partial(_round, timing))
        count, bound = len(_round(timing)), conf().expand_firings
        if count < bound:  # else the round was cut
            years[text] = _milliseconds(partial(_year, timing))
        told = f"{years[text]:7.2f} ms a year" if text in years else "   cut"
        say(f"  {rounds[text]:7.2f} ms a round of {count:3} {told}  {text[:60]}")
    invalid = [case["cron"] for case in json.loads(CASES.read_text("utf-8"))["invalid"]]
    for text in [*invalid, *REFUSED]:
        refusals[text] = _milliseconds(partial(_refused, text))
    slowest = max(refusals, key=lambda text: refusals[text])
    say(
        f"  {refusals[slowest]:7.2f} ms until the slowest of {len(refusals)} is refused: {slowest[:60]}"
    )
    return {
        "worst_round_ms": max(rounds.values()),
        "worst_year_ms": max(years.values()),
        "worst_refusal_ms": max(refusals.values()),
    }


def _round(timing: Timing) -> list[Any]:
    made = plan(
        timing,
        expanded_until=YEAR[0],
        now=YEAR[0],
        ahead_seconds=(YEAR[1] - YEAR[0]).total_seconds(),
        most=conf().expand_firings,
    )
    return made.decisions


def _year(timing: Timing) -> None:
    for _ in expand(timing.recurrence, *YEAR):
        pass


def _refused(text: str) -> None:
    try:
        check_upcoming(parse_recurrence({"cron": text}), YEAR[0])
    except (InvalidField, ValidationFailed):
        return
    raise BenchmarkError(f"{text!r} is accepted")


def _milliseconds(work: Callable[[], object]) -> float:
    """The first time, with nothing remembered, or the second, whichever is worse."""
    costs = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        costs.append((time.perf_counter() - began) * 1000)
    return max(costs)


def _night(url: str, schedules: int, zones: int, kills: int) -> dict[str, float | None]:
    """Schedulers are killed until the night is over for every schedule; then the ledger is read."""
    _empty()
    make_nights(schedules, zones, NOOP)
    _analyze()
    began = time.perf_counter()
    killed = _kill_schedulers(url, kills)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    verdict = verify_history()
    say(
        f"  night: {killed} kills in {seconds:.1f} s; verified in {time.perf_counter() - began:.1f} s"
    )
    for _, one in verdict.violations[:10]:
        say(f"  {one.invariant} {one.detail}")
    if verdict.unchecked or verdict.schedules != schedules:
        raise BenchmarkError(f"{verdict.schedules} schedules, {verdict.unchecked} unchecked")
    return {
        "night_violations": float(sum(verdict.by_invariant.values())),
        "night_kills": float(killed),
        "night_occurrences": float(verdict.occurrences),
        "night_jobs": float(verdict.jobs),
        "night_seconds": seconds,
    }


def _kill_schedulers(url: str, kills: int) -> int:
    """Three at work, one killed every now and then and replaced, until nothing is left to expand."""
    rng = random.Random(SEED)
    deadline = time.monotonic() + PATIENCE_SECONDS
    killed = 0
    with _schedulers(url) as (start, alive):
        for _ in range(SCHEDULERS):
            start()
        while Schedule.objects.filter(look_at__lte=timezone.now(), fault__isnull=True).exists():
            time.sleep(rng.uniform(*KILL_SECONDS))
            if killed < kills:
                victim = alive.pop(rng.randrange(len(alive)))
                victim.kill()
                killed += victim.wait() == -signal.SIGKILL
                start()
            for process in alive:
                if process.poll() is not None:
                    raise BenchmarkError(f"a scheduler ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise BenchmarkError("the schedulers do not come to an end")
    return killed


@contextmanager
def _schedulers(
    url: str,
) -> Iterator[tuple[Callable[[], None], list[subprocess.Popen[bytes]]]]:
    alive: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as log:
        try:
            yield lambda: alive.append(_scheduler(environment(url) | SHORT, log)), alive
        finally:
            for process in alive:
                process.kill()
                process.wait()


def _scheduler(env: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return spawn(
        [sys.executable, ROOT / "manage.py", "runscheduler"],
        parting_signal=signal.SIGKILL,
        output=log,
        cwd=ROOT,
        env=env,
    )


def _empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "truncate jobs_schedule, jobs_scheduleversion, jobs_occurrence, jobs_job, jobs_dueentry, jobs_lease,"
            " jobs_jobevent, jobs_deadletter"
        )
    submit_jobs(
        tenant=make_tenants(1)[0], requests=[request(0)], actor=ACTOR
    )  # now there is a route
    with connection.cursor() as cursor:
        cursor.execute("truncate jobs_job, jobs_dueentry, jobs_jobevent")


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("analyze")
