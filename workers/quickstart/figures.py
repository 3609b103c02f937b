"""Numbers of a run, read from the database: what is where now, how late it is, and what it took to recover."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from examples.books import Books, balance
from jobs.database import rows
from jobs.models import Job, SchedulerNode, Worker
from jobs.services.verifying import Verdict, verify_history
from workers.quickstart.demo import TENANTS
from workers.quickstart.loopback import fetch_json

NOW = """
select (select count(*) from jobs_dueentry where due_at > statement_timestamp()),
    (select count(*) from jobs_dueentry where due_at <= statement_timestamp()),
    (select count(*) from jobs_lease where worker is null),
    (select count(*) from jobs_lease where worker is not null)"""
FINISHED = """select status, count(*) from jobs_job where id = any(%(jobs)s::uuid[]) and finished_at is not null
group by status"""
OLDEST = """
select extract(epoch from statement_timestamp() - entry.due_at)::float8, job.handler, tenant.slug
from jobs_dueentry entry join jobs_job job on job.id = entry.job_id and job.shard = entry.shard
    join jobs_tenant tenant on tenant.id = entry.tenant_id
where entry.due_at <= statement_timestamp() order by entry.due_at limit 1"""
# Start lag: from the due time in force, which the claim recorded, to the worker's start.
LAG = """
select percentile_cont(array[0.5, 0.95, 1.0]) within group (order by extract(epoch from started.at - due))
from (select job_id, token, due_at as due from jobs_jobevent
      where kind = 'leased' and at > statement_timestamp() - interval '60 seconds') leased
    join jobs_jobevent started on started.job_id = leased.job_id and started.token = leased.token
        and started.kind = 'started'"""
REJECTED = """select count(*) from jobs_jobevent
where kind = 'completion_rejected' and job_id = any(%(jobs)s::uuid[])"""
# From the last heartbeat of the lost worker to the moment another claim had the job.
RECOVERIES = """
select extract(epoch from min(again.at) - (lost.detail ->> 'heartbeat_at')::timestamptz)::float8
from jobs_jobevent lost join jobs_jobevent again
    on again.job_id = lost.job_id and again.kind = 'leased' and again.seq > lost.seq
where lost.kind = 'failed' and lost.detail ->> 'cause' = 'lease_expired' and lost.job_id = any(%(jobs)s::uuid[])
group by lost.job_id, lost.seq, lost.detail order by 1"""


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at the running system. Lags are seconds; None where nothing was measured."""

    upcoming: int
    due: int
    published: int
    running: int
    finished: dict[str, int]
    oldest: tuple[float, str, str] | None  # age in seconds, handler, tenant
    lag: tuple[float, float, float] | None  # p50, p95, max of the last minute


def look(job_ids: Sequence[str]) -> Figures:
    """Counts of everything waiting and owned, and of these jobs what has finished."""
    ((upcoming, due, published, running),) = rows(NOW, {})
    ((lag,),) = rows(LAG, {})
    oldest = rows(OLDEST, {})
    return Figures(
        upcoming=upcoming,
        due=due,
        published=published,
        running=running,
        finished=dict(rows(FINISHED, {"jobs": _ids(job_ids)})),
        oldest=oldest[0] if oldest else None,
        lag=tuple(lag) if lag else None,
    )


def registered() -> set[int]:
    """Process ids of all workers and schedulers that have ever come up here."""
    return {
        pid
        for model in (Worker, SchedulerNode)
        for pid in model.objects.filter(host=socket.gethostname()).values_list("pid", flat=True)
    }


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended: the books, and what the engine had to do to keep them."""

    books: Books
    stopped_early: bool  # then unfinished jobs are no discrepancy: they go on at the next start
    stale_completions_refused: int
    recoveries: list[float]  # seconds, ascending
    verdict: Verdict  # of every history in the database

    @property
    def problems(self) -> list[str]:
        """What is wrong: lost jobs, missing or doubled effects, histories that break a rule.

        Unfinished jobs too, if the run is complete.
        """
        books = [
            problem
            for problem in self.books.problems
            if not (self.stopped_early and problem.startswith("unfinished: "))
        ]
        history = [
            f"history: {one.invariant}, job {job}: {one.detail}"
            for job, one in self.verdict.violations
        ]
        return books + history


def report(
    accepted: Mapping[str, str], provider_url: str, *, since: datetime, stopped_early: bool
) -> Report:
    """Compare accepted requests, job rows and the provider's own store.

    Args:
        accepted: Idempotency token → job id.
        provider_url: Base URL of the payment provider.
        since: When the run began, aware. What an earlier run, stopped by Ctrl-C, had left was carried on in this one
            and has its effects at this run's provider.
        stopped_early: Ctrl-C came; jobs may be unfinished.

    Raises:
        OSError: The provider does not answer.
    """
    seen = fetch_json(f"{provider_url}/report?tokens=1")
    ids = _ids(accepted.values())
    carried_on = Q(tenant__slug__in=TENANTS) & (Q(finished_at=None) | Q(finished_at__gte=since))
    jobs = [
        {
            "status": job.status,
            "handler": job.handler,
            "attempt": job.attempt,
            "idempotency_token": f"{job.tenant.slug}/{job.request_key or job.pk}",
        }
        for job in Job.objects.filter(Q(pk__in=ids) | carried_on)
        .select_related("tenant")
        .only("status", "handler", "attempt", "request_key", "tenant__slug")
    ]
    ((rejected,),) = rows(REJECTED, {"jobs": ids})
    return Report(
        books=balance(accepted=accepted, jobs=jobs, provider_report=seen),
        stopped_early=stopped_early,
        stale_completions_refused=rejected,
        recoveries=[seconds for (seconds,) in rows(RECOVERIES, {"jobs": ids})],
        verdict=verify_history(),
    )


def _ids(texts: Any) -> list[UUID]:
    return [UUID(text) for text in texts]
