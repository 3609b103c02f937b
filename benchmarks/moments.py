"""latency and precision: when single jobs begin, one a moment after it was handed in, one when it is due.

Measured from outside, on this machine's clock: by the client before it hands a job in, and by the handler as its first
act. The product, and its limit with the same client in raw SQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from benchmarks.accounting import CpuMeter
from benchmarks.database import connect
from benchmarks.engines import LIMIT, PRODUCT, Engine, wait
from benchmarks.handlers import NOTE
from benchmarks.limit import Creator
from benchmarks.processes import Running
from benchmarks.report import Figures, Result, alternate, say, spread
from benchmarks.starts import VARIABLE, Starts, starts_of
from benchmarks.workload import ACTOR, make_tenants, remove_jobs, request, settle
from jobs.services.submit import submit_jobs

IDLE_SECONDS = 2.0  # between the first job, which shows that all is up, and the others
LEAD_SECONDS = 4.0  # from making the jobs to the first due time

type Create = Callable[[Sequence[int], Sequence[datetime]], None]  # no times: due now


@dataclass(frozen=True, slots=True)
class Stage:
    """An engine that has begun its first job, and a client of it; job number `jobs` is that first one."""

    create: Create
    starts: Starts
    meter: CpuMeter
    processes: Running
    jobs: int

    def cost(self, work: Callable[[], None]) -> dict[str, float | None]:
        """CPU of database and processes while `work` runs and all jobs begin, per job."""
        start = self.meter.read()
        work()
        wait(self.starts.complete, 60, self.processes)
        used, micro = self.meter.read().since(start), 1e6 / self.jobs
        return {
            "db_cpu_us_per_job": None if used.database is None else used.database * micro,
            "python_cpu_us_per_job": sum(used.processes.values()) * micro,
            "foreign_cores": used.foreign / used.at,
        }


def measure_latency(url: str, *, jobs: int, gap_ms: int, slots: int, repeat: int) -> Result:
    """One job every `gap_ms`, by one client on an idle system: from before the call to the handler's first act."""

    def one_by_one(stage: Stage) -> Figures:
        called, returned = [0.0] * jobs, [0.0] * jobs

        def call() -> None:
            at = time.time()
            for number in range(jobs):
                time.sleep(max(0.0, at - time.time()))
                called[number] = time.time()
                stage.create([number], ())
                returned[number] = time.time()
                at += gap_ms / 1000

        cost = stage.cost(call)
        begun = stage.starts.read()[:jobs]
        after_commit = [end - start for start, end in zip(returned, begun, strict=True)]
        return {
            **spread("", [end - start for start, end in zip(called, begun, strict=True)]),
            "from_commit_p50_ms": spread("", after_commit)["p50_ms"],
            **cost,
        }

    size = {"jobs": jobs, "gap_ms": gap_ms, "slots": slots}
    return _in_turn("latency", url, one_by_one, size=size, jobs=jobs, slots=slots, repeat=repeat)


def measure_precision(url: str, *, jobs: int, seconds: int, slots: int, repeat: int) -> Result:
    """Jobs handed in ahead and due one after the other, evenly: from the due time to the handler's first act."""

    def on_time(stage: Stage) -> Figures:
        first = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS)
        due = [first + timedelta(seconds=seconds * number / jobs) for number in range(jobs)]

        def call() -> None:
            stage.create(range(jobs), due)
            time.sleep(max(0.0, (due[-1] - datetime.now(UTC)).total_seconds()))

        cost = stage.cost(call)
        begun = stage.starts.read()[:jobs]
        late = [end - at.timestamp() for at, end in zip(due, begun, strict=True)]
        return {**spread("", late), "early": sum(value < 0 for value in late), **cost}

    size = {"jobs": jobs, "seconds": seconds, "slots": slots}
    return _in_turn("precision", url, on_time, size=size, jobs=jobs, slots=slots, repeat=repeat)


def _in_turn(
    name: str,
    url: str,
    measure: Callable[[Stage], Figures],
    *,
    size: dict[str, int],
    jobs: int,
    slots: int,
    repeat: int,
) -> Result:
    def run(engine: Engine) -> Figures:
        with _stage(url, engine, jobs=jobs, slots=slots) as stage:
            figures = measure(stage)
        side = "product" if engine is PRODUCT else "limit"
        say(f"  {side:8} p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms")
        return figures

    return Result(
        name=name,
        size=size,
        runs=alternate(repeat, lambda: run(PRODUCT), lambda: run(LIMIT)),
        ratios={"ratio": "p50_ms"},
    )


@contextmanager
def _stage(url: str, engine: Engine, *, jobs: int, slots: int) -> Iterator[Stage]:
    with starts_of(jobs + 1) as starts, connect(url) as link, connect(url) as client:
        remove_jobs(link)
        settle(link)
        env = {VARIABLE: str(starts.path)}
        with engine.at_work(url, link, slots=slots, **env) as processes:
            create = _by_the_product() if engine is PRODUCT else _in_raw_sql(client)
            create([jobs], ())
            wait(lambda: starts.read()[jobs] > 0, 30, processes)
            time.sleep(IDLE_SECONDS)
            meter = CpuMeter(processes.pids, link)
            yield Stage(create, starts, meter, processes, jobs)


def _by_the_product() -> Create:
    (owner,) = make_tenants(1)

    def create(numbers: Sequence[int], due: Sequence[datetime]) -> None:
        times: Sequence[datetime | None] = due or [None] * len(numbers)
        requests = [
            request(number, handler=NOTE, payload={"number": number}, due_at=at)
            for number, at in zip(numbers, times, strict=True)
        ]
        submit_jobs(tenant=owner, requests=requests, actor=ACTOR)

    return create


def _in_raw_sql(client: psycopg.Connection) -> Create:
    (owner,) = make_tenants(1)
    limit = Creator(client, handler=NOTE)

    def create(numbers: Sequence[int], due: Sequence[datetime]) -> None:
        limit.create(owner.pk, numbers, [{"number": number} for number in numbers], due)

    return create
