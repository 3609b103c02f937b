"""why: what stands between a job and its next step, or stood, as far as the database can tell. Reads only.

Bounded: one job and its newest events, small tables, and what queries.competition reads. What follows from it all is
decided in policies.why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from jobs.clock import NOW_SQL
from jobs.conf import conf
from jobs.database import rows
from jobs.errors import NotFound
from jobs.models import ConcurrencyLimit, JobEvent, Pause
from jobs.policies.sharding import shards_of
from jobs.policies.times import format_time
from jobs.policies.why import (
    Klass,
    PoolState,
    Reason,
    Turn,
    fitting_pools,
    no_turn_yet,
    nowhere,
    span,
    usable_pools,
)
from jobs.queries.catalog import catalog
from jobs.queries.competition import (
    holders_of_key,
    holders_of_tenant,
    pool_states,
    work_ahead,
)
from jobs.queries.fleet import start_tokens
from jobs.queries.history import JobDetail, is_remark, job_detail, job_events
from jobs.queries.lists import plain_time
from jobs.queries.pauses import Paused, pauses_in_force
from jobs.queries.schedules import SCHEDULE_KEY
from jobs.states import EventKind, JobStatus

NEWEST_EVENTS = 200
LATE_SECONDS = 1.0

SCHEDULERS = f"""
select shard.owner is not null and shard.expires_at >= {NOW_SQL}, shard.owner, node.host, node.clock_skew_seconds,
    greatest(0, extract(epoch from {NOW_SQL} - {plain_time("shard.expires_at")}))::float8,
    (select count(*) from jobs_schedulernode where expires_at > {NOW_SQL})
from jobs_shard shard left join jobs_schedulernode node on node.id = shard.owner where shard.number = %(shard)s"""
WORKER_SKEW = "select clock_skew_seconds, host from jobs_worker where id = %(worker)s"


def why(job_id: UUID, shard: int) -> list[Reason]:
    """Reasons of any job, those with the most effect first; see `why_of`.

    Args:
        job_id: The job.
        shard: Its shard; whoever asks for a tenant has found it with `locate_job`.

    Raises:
        NotFound: There is no such job in this shard.
    """
    job = job_detail(tenant_id=None, job_id=job_id)
    if job.shard != shard:
        raise NotFound
    return why_of(job)


def why_of(job: JobDetail) -> list[Reason]:
    """Why this job is where it is; at least one reason for every job.

    For a job that waits: what keeps it from being claimed, then what keeps it from its turn. Then what is odd in the
    system, then what earlier claims told that it had waited for.
    """
    events = job_events(job, limit=NEWEST_EVENTS)
    if job.status == JobStatus.SCHEDULED:
        reasons = list(_Waiting(job, events).reasons())
    elif job.status == JobStatus.LEASED:
        reasons = list(_leased(job))
    else:
        reasons = [_finished(job)]
    return [*reasons, *_past(job, events)]


class _Waiting:
    """One waiting job, with everything that is read once."""

    def __init__(self, job: JobDetail, events: Sequence[JobEvent]) -> None:
        self._job, self._events = job, events
        self._found = catalog()
        self._lane = self._found.lane_named(job.lane or "")
        self._needed = _labels(job)
        self._pauses = {(one.kind, one.target): one for one in pauses_in_force()}
        self._pools = pool_states(self._found, job.handler)
        due = job.waits_until or job.due_at
        self._late = (job.read_at - due).total_seconds()

    def reasons(self) -> Iterator[Reason]:
        """All of them, in order of effect."""
        found: list[Reason] = []
        if self._job.waits_until is None:
            words = "its row in the calendar is missing: no scheduler can see it"
            found.append(Reason("not_in_calendar", Klass.SYSTEM, f"blocked: {words}"))
        elif self._late < 0:
            found.append(self._not_due())
        found += self._paused()
        found += self._placed()
        system = list(self._skewed())
        if self._late >= 0:
            found += self._limited()
            found += self._turn(blocked=bool(found))
        yield from found
        yield from system

    def _not_due(self) -> Reason:
        job, left = self._job, -self._late
        at = format_time(job.waits_until or job.due_at)
        evidence: dict[str, Any] = {"due_at": at, "seconds_left": round(left, 1)}
        moved = {EventKind.FAILED, EventKind.SNOOZED, EventKind.REQUEUED, EventKind.EDITED}
        last = next((one.kind for one in reversed(self._events) if one.kind in moved), None)
        if last == EventKind.FAILED:
            policy = job.retry.get("kind") if isinstance(job.retry, dict) else None
            evidence |= {"attempt": job.attempt, "attempts": job.attempt_limit, "policy": policy}
            words = f"attempt {job.attempt} of {job.attempt_limit} failed; the next is due"
            code = "retry_backoff"
        elif last == EventKind.SNOOZED:
            code, words = "snoozed", "its handler asked to be called again later; due"
            evidence["attempt"] = job.attempt
        else:
            code, words = "not_due", "due"
        sentence = f"waiting: {words} in {span(left)}, at {at}"
        return Reason(code, Klass.INELIGIBLE, sentence, evidence)

    def _paused(self) -> Iterator[Reason]:
        targets = {
            Pause.Kind.TENANT: self._job.tenant,
            Pause.Kind.LANE: self._job.lane,
            Pause.Kind.HANDLER: self._job.handler,
        }
        for kind, target in targets.items():
            if target and (pause := self._pauses.get((kind.value, target))):
                yield _paused(pause)

    def _placed(self) -> Iterator[Reason]:
        if self._needed is None:
            yield Reason("no_pool", Klass.INELIGIBLE, "blocked: its labels cannot be read")
            return
        for reason in nowhere(self._needed, self._job.handler, self._pools):
            name = str(reason.evidence.get("pool"))
            if reason.code == "pool_paused" and (pause := self._pauses.get(("pool", name))):
                yield _paused(pause)
            else:
                yield reason

    def _limited(self) -> Iterator[Reason]:
        job = self._job
        tenant = self._found.tenants.get(job.tenant_id)
        own = shards_of(
            tenant_id=job.tenant_id,
            spread=tenant.shard_spread if tenant else conf().shards,
            shards=conf().shards,
        )
        if tenant is not None and (limit := tenant.max_running) is not None:
            used, holders = holders_of_tenant(own, job.tenant_id)
            if used >= limit:
                words = f"the tenant runs {used} of {limit} jobs that it may run at once"
                yield _limit("tenant_max_running", words, used, limit, holders)
        if job.concurrency_key is not None:
            limits = ConcurrencyLimit.objects.filter(tenant=job.tenant_id, key=job.concurrency_key)
            limit = limits.values_list("slots", flat=True).first() or 1
            used, holders = holders_of_key(own, job.tenant_id, job.concurrency_key)
            if used >= limit:
                words = (
                    "an earlier run of its schedule is still under way"
                    if job.concurrency_key.startswith(SCHEDULE_KEY)
                    else f"{used} of {limit} jobs with the concurrency key {job.concurrency_key!r} run"
                )
                yield _limit("concurrency_key", words, used, limit, holders)
        handler = self._found.handlers.get(job.handler)
        for code, scope, owner in (
            ("tenant_rate", f"tenant:{job.tenant_id}", tenant),
            ("handler_rate", f"handler:{job.handler}", handler),
        ):
            rate = owner.start_rate if owner else None
            if owner is None or rate is None or not 0 < rate < math.inf:
                continue
            if start_tokens({scope: (rate, owner.start_burst)})[scope] < 1:
                of = "this tenant" if code == "tenant_rate" else "this handler"
                sentence = (
                    f"blocked: {of} may start {rate:g} jobs a second, and has started as many"
                )
                evidence = {"starts_per_second": rate, "burst": owner.start_burst}
                yield Reason(code, Klass.INELIGIBLE, sentence, evidence)

    def _turn(self, *, blocked: bool) -> Iterator[Reason]:
        """What a job meets that may be claimed; `blocked`: it may not, so silence of the others needs no reason."""
        found = list(self._scheduled())
        usable = usable_pools(fitting_pools(self._needed or {}, self._pools))
        if usable and not blocked:
            found += no_turn_yet(usable, self._competition(usable[0]))
        yield from found
        if found or blocked:
            return
        late, turns = self._late, 3 * conf().tick_seconds
        evidence = {"due_seconds_ago": round(late, 1), "tick_seconds": conf().tick_seconds}
        if late > max(5.0, turns):
            sentence = f"waiting: due for {span(late)}, nothing stands in its way, and its scheduler has not come to it"
            yield Reason("shard_lagging", Klass.ELIGIBLE, sentence, evidence)
        else:
            sentence = "waiting: nothing stands in its way; a scheduler takes it at its next turn"
            yield Reason("next_turn", Klass.ELIGIBLE, sentence, evidence)

    def _scheduled(self) -> Iterator[Reason]:
        owned, owner, host, _, since, alive = self._scheduler()
        internal = {"owner": owner and str(owner), "host": host}
        if not alive:
            sentence = "waiting: no scheduler is alive"
            yield Reason("scheduler_down", Klass.ELIGIBLE, sentence, {"schedulers": 0}, internal)
        elif not owned:
            evidence = {"shard": self._job.shard, "unowned_seconds": since and round(since, 1)}
            sentence = f"waiting: no scheduler looks after shard {self._job.shard} now"
            yield Reason("shard_unowned", Klass.ELIGIBLE, sentence, evidence, internal)

    def _scheduler(self) -> tuple[Any, ...]:
        found = rows(SCHEDULERS, {"shard": self._job.shard, "now": None})
        return found[0] if found else (False, None, None, None, None, 0)

    def _skewed(self) -> Iterator[Reason]:
        _, _, host, skew, _, _ = self._scheduler()
        yield from _skew(skew, host, "the scheduler of its shard")

    def _competition(self, home: PoolState) -> Turn:
        job = self._job
        head_start = self._lane.head_start_seconds if self._lane else 0.0
        if not math.isfinite(head_start):  # a lane written by hand
            head_start = 0.0
        due = (job.waits_until or job.due_at).timestamp()
        ahead, capped = work_ahead(
            self._found,
            self._pools,
            home,
            job_id=job.id,
            due=due,
            rank=due - head_start - job.priority,
        )
        tenants = self._found.tenants
        return Turn(
            lane=self._lane.pk if self._lane else -1,
            tenant=job.tenant_id,
            head_start_seconds=head_start,
            priority=job.priority,
            ahead=ahead,
            capped=capped,
            weights={pk: float(tenant.weight) for pk, tenant in tenants.items()},
            lane_names={lane.pk: lane.name for lane in self._found.lanes},
        )


def _leased(job: JobDetail) -> Iterator[Reason]:
    lease = job.lease
    if lease is None:
        words = "blocked: it is called owned, and its lease is missing"
        yield Reason("lease_missing", Klass.SYSTEM, words)
        return
    left = (lease.expires_at - job.read_at).total_seconds()
    evidence: dict[str, Any] = {
        "pool": lease.pool,
        "published_at": format_time(lease.published_at),
        "expires_in_seconds": round(left, 1),
    }
    if lease.worker is None:
        waited = (job.read_at - lease.published_at).total_seconds()
        sentence = f"published to pool {lease.pool} {span(max(0.0, waited))} ago; no worker has taken it yet"
        yield Reason("published_waiting", Klass.LEASED, sentence, evidence)
        found = catalog()
        for pool in pool_states(found, job.handler):
            if pool.name == lease.pool:
                yield from nowhere(_labels(job) or {}, job.handler, [pool])
        return
    beat = lease.heartbeat_at or lease.started_at or lease.published_at
    silent = (job.read_at - beat).total_seconds()
    evidence |= {"attempt": lease.attempt, "last_heartbeat_seconds": round(silent, 1)}
    internal = {"worker": str(lease.worker), "host": lease.worker_host, "pid": lease.worker_pid}
    if silent > 2 * conf().heartbeat_seconds + conf().clock_tolerance_seconds:
        ends = f"its lease ends in {span(left)}" if left > 0 else "its lease is over"
        sentence = f"running, but its worker has been silent for {span(silent)}; {ends}"
        yield Reason("lease_silent", Klass.LEASED, sentence, evidence, internal)
    else:
        began = lease.started_at or lease.published_at
        ran = (job.read_at - began).total_seconds()
        sentence = f"running: attempt {lease.attempt} began {span(max(0.0, ran))} ago"
        yield Reason("running", Klass.LEASED, sentence, evidence, internal)
    for skew, host in rows(WORKER_SKEW, {"worker": lease.worker}):
        yield from _skew(skew, host, "its worker")


def _finished(job: JobDetail) -> Reason:
    at = job.finished_at and format_time(job.finished_at)
    evidence: dict[str, Any] = {"finished_at": at, "attempt": job.attempt}
    if job.status == JobStatus.CANCELLED:
        evidence |= {"by": job.cancel_requested_by or None, "reason": job.cancel_reason or None}
        return Reason("cancelled", Klass.FINISHED, f"cancelled at {at}", evidence)
    if job.status == JobStatus.DEAD:
        letter = job.dead_letter
        if letter is not None:
            evidence |= {"reason": letter.reason, "error_type": letter.error_type}
        sentence = f"dead since {at}, after {job.attempt} attempts; a person may requeue it"
        return Reason("dead", Klass.FINISHED, sentence, evidence)
    return Reason("finished", Klass.FINISHED, f"succeeded at {at}", evidence)


def _past(job: JobDetail, events: Sequence[JobEvent]) -> Iterator[Reason]:
    early = (job.created_at - job.due_at).total_seconds()
    if early > LATE_SECONDS:
        sentence = f"it was created {span(early)} after its due time"
        evidence = {"due_at": format_time(job.due_at), "created_at": format_time(job.created_at)}
        yield Reason("created_late", Klass.PAST, sentence, evidence)
    for event in events:
        detail = event.detail
        waited = detail.get("waited") if isinstance(detail, dict) else None
        if event.kind != EventKind.LEASED or not isinstance(waited, dict):
            continue
        told = {code: s for code, s in waited.items() if isinstance(s, int | float)}
        for code, seconds in sorted(told.items(), key=lambda one: -one[1]):
            sentence = f"before attempt {event.attempt} it waited {span(seconds)}: {code}"
            yield Reason(
                code, Klass.PAST, sentence, {"attempt": event.attempt, "seconds": seconds}
            )


def _labels(job: JobDetail) -> dict[str, str] | None:
    given = job.labels
    if isinstance(given, dict) and not is_remark(given):
        return {str(name): str(text) for name, text in given.items()}
    return None


def _paused(pause: Paused) -> Reason:
    since = format_time(pause.paused_at)
    end = f" until {format_time(pause.resume_at)}" if pause.resume_at else ""
    evidence: dict[str, Any] = {
        pause.kind: pause.target,
        "since": since,
        "until": pause.resume_at and format_time(pause.resume_at),
    }
    sentence = f"blocked: {pause.kind} {pause.target} is paused since {since}{end}"
    internal = {"by": pause.paused_by, "reason": pause.reason}
    return Reason(f"{pause.kind}_paused", Klass.INELIGIBLE, sentence, evidence, internal)


def _limit(code: str, words: str, used: int, limit: int, holders: list[str]) -> Reason:
    evidence = {"used": used, "limit": limit, "holders": holders}
    return Reason(code, Klass.INELIGIBLE, f"blocked: {words}", evidence)


def _skew(skew: float | None, host: str | None, whose: str) -> Iterator[Reason]:
    if skew is not None and math.inf > abs(skew) > conf().clock_tolerance_seconds:
        sentence = f"the clock of {whose} is {span(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
        evidence = {"seconds": round(skew, 3)}
        yield Reason("clock_skew", Klass.SYSTEM, sentence, evidence, {"host": host})
