"""backlog: a drain out of very many due jobs of many tenants, lanes and routes, beside a drain of few. The product both.

The scheduler runs in this process, so that its turns and claims can be timed; the worker is a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

import psycopg

from benchmarks.database import connect, row, true
from benchmarks.depth import COLUMNS, NEW_ID
from benchmarks.engines import READY_SECONDS, wait
from benchmarks.handlers import NOOP
from benchmarks.processes import running
from benchmarks.report import Figures, Result, alternate, say, spread
from benchmarks.workload import make_tenants, remove_jobs, request, settle
from jobs.conf import conf
from jobs.models import Handler, Lane, Pool
from jobs.services.submit import submit_jobs
from jobs.transitions.claim import claim_batch
from workers.scheduler import Scheduler

ACTOR = "token:benchmark"
LANES, ROUTES = 4, 3
LABELS = [{"k": f"r{n}"} for n in range(ROUTES)]
# One model job of each group, then copies of it: due one after the other, the last ones long after now.
COPY = """
insert into {table} ({columns}) select {values} from {table}, generate_series(1, {copies}) copy
where {key} = any(%(models)s::uuid[]) order by copy"""


def measure(
    url: str,
    *,
    due: int,
    future: int,
    few: int,
    tenants: int,
    slots: int,
    seconds: int,
    repeat: int,
) -> Result:
    """All runs of this benchmark, in turn."""

    def run(name: str, *, due: int, future: int) -> Figures:
        with connect(url) as link:
            remove_jobs(link)
            make_backlog(link, due=due, future=future, tenants=tenants)
            settle(link)
            with worker_at_work(url, link, slots=slots):
                figures = _drain(link, seconds=seconds)
        say(f"  {name:8} {figures['jobs_per_s'] or 0:8.0f} jobs/s")
        return figures

    return Result(
        name="backlog",
        size={
            "due": due,
            "future": future,
            "few": few,
            "tenants": tenants,
            "slots": slots,
            "seconds": seconds,
        },
        runs=alternate(
            repeat,
            lambda: run("many", due=due, future=future),
            lambda: run("few", due=few, future=0),
        ),
        ratios={"ratio": "jobs_per_s"},
        other="few",
    )


def make_backlog(link: psycopg.Connection, *, due: int, future: int, tenants: int) -> None:
    """Jobs of every tenant in every lane of every route, due over the last hours; and as many for later days."""
    began = time.monotonic()
    pool, _ = Pool.objects.get_or_create(name="default")
    Pool.objects.filter(pk=pool.pk).update(labels={})
    for labels in LABELS:
        Pool.objects.get_or_create(name=labels["k"], defaults={"labels": labels})
    Handler.objects.get_or_create(
        name=NOOP, defaults={"max_attempts": 5, "timeout_seconds": 30, "retry": {}}
    )
    lanes = list(Lane.objects.order_by("id").values_list("name", flat=True))[:LANES]
    (now,) = row(link, "select clock_timestamp()")
    models: dict[bool, list[str]] = {True: [], False: []}
    for is_due, count in ((True, due), (False, future)):
        if not count:
            continue
        for number, owner in enumerate(make_tenants(tenants)):
            requests = [
                request(
                    number,
                    lane=lane,
                    key=f"{is_due}-{lane}-{route}",
                    labels=LABELS[route] if route else {},
                    due_at=now + (-timedelta(hours=3) if is_due else timedelta(days=30)),
                )
                for lane in lanes
                for route in range(ROUTES)
            ]
            made = submit_jobs(tenant=owner, requests=requests, actor=ACTOR)
            models[is_due] += [str(one.job_id) for one in made]
        copies = count // len(models[is_due]) - 1
        if copies > 0:
            _copy(link, models[is_due], copies, apart="1 s" if is_due else "40 s")
    say(f"  {due} due, {future} for later, made in {time.monotonic() - began:.0f} s")


def _copy(link: psycopg.Connection, models: list[str], copies: int, *, apart: str) -> None:
    ms = f"{time.time_ns() // 1_000_000:x}"
    for table, key in (("jobs_job", "id"), ("jobs_dueentry", "job_id")):
        changed = {
            key: NEW_ID.format(ms=ms, id=key),
            "request_key": "request_key || '-' || copy",
            "due_at": f"due_at + copy * interval '{apart}'",
        }
        (columns,) = row(link, COLUMNS, table)
        sql = COPY.format(
            table=table,
            key=key,
            columns=", ".join(columns),
            values=", ".join(changed.get(name, name) for name in columns),
            copies=copies,
        )
        link.execute(sql.encode(), {"models": models})


@contextmanager
def worker_at_work(url: str, link: psycopg.Connection, *, slots: int) -> Iterator[None]:
    """One worker for each pool."""
    names = ["default", *(labels["k"] for labels in LABELS[1:])]
    commands = {
        f"worker-{name}": [
            "manage.py",
            "runworker",
            "--pool",
            name,
            "--slots",
            str(max(1, slots // len(names))),
        ]
        for name in names
    }
    with running(commands, url) as processes:
        wait(
            lambda: true(
                link, f"select count(*) = {len(names)} from jobs_worker where state = 'running'"
            ),
            READY_SECONDS,
            processes,
        )
        yield


def _drain(link: psycopg.Connection, *, seconds: int) -> Figures:
    """Turn for so many seconds, or until nothing due is left."""
    scheduler = Scheduler(shards=list(range(conf().shards)))
    claims: list[float] = []
    ticks: list[float] = []
    published = 0
    with patch("jobs.services.publishing.claim_batch", _timed(claim_batch, claims)):
        began = time.perf_counter()
        while (at := time.perf_counter()) - began < seconds:
            turn = scheduler.run_once()
            ticks.append(time.perf_counter() - at)
            published += turn.published
            if not turn.published and turn.pause > 0.5:
                break
            time.sleep(min(turn.pause, 0.05))
        (finished,) = row(link, "select count(*) from jobs_job where status = 'succeeded'")
        elapsed = time.perf_counter() - began
    scheduler._ownership.give_up()  # or the next run's scheduler is not alone
    return {
        "jobs_per_s": finished / elapsed,
        "ticks": len(ticks),
        **spread("tick_", ticks),
        **spread("claim_", claims),
        "jobs_per_claim": published / max(1, len(claims)),
    }


def _timed[**P, R](function: Callable[P, R], seconds: list[float]) -> Callable[P, R]:
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    return timed
