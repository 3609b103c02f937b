"""Distributed mode: every statement of the engine names its shards, and nothing in the schema spans them.

The statements are taken as they are sent, while everything the engine can do is done once. A statement that stands in
the engine's modules and was not sent here fails too, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jobs.services
import jobs.transitions
import workers
from jobs.clock import database_now
from jobs.conf import conf
from jobs.database import rows
from jobs.models import DueEntry, Job, JobEvent, Pause, Tenant
from jobs.policies.sharding import shard_of_id
from jobs.queries import candidates, fleet
from jobs.services.catching_up import catch_up
from jobs.services.dispatch import dispatch
from jobs.services.expansion import expand_schedules
from jobs.services.memory import Memory
from jobs.services.missed import decide_running, judge_missed_jobs, settle_occurrences
from jobs.services.outcomes import AttemptOutcome, Ending, report_outcomes
from jobs.services.pausing import end_pauses, pause, resume
from jobs.services.reaping import reap
from jobs.services.requests import parse_request
from jobs.services.revision import mark_stale_schedules
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.services.submit import submit_jobs
from jobs.services.timings import tenant_defaults
from jobs.states import TRANSITIONS, Place
from jobs.transitions.cancel import cancel_job
from jobs.transitions.requeue import requeue_dead_letter
from jobs.transitions.unpark import unpark_jobs
from tests.factories import (
    SCHEDULER,
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_handler,
    make_job,
    make_pool,
    make_schedule,
    make_tenant,
    make_worker,
    publish,
    take,
)
from tests.support import moves
from tests.support.places import Start, stand
from tests.support.sql import (
    JOB_TABLES,
    Statement,
    captured,
    faults,
    normal,
    statements_of,
)
from workers.scheduler import Scheduler

pytestmark = pytest.mark.django_db


def modules(package: ModuleType) -> list[ModuleType]:
    folder = Path(str(package.__file__)).parent
    return [
        import_module(f"{package.__name__}.{path.stem}")
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    ]


ENGINE = [
    *modules(jobs.transitions),
    *modules(jobs.services),
    *modules(workers),
    candidates,
    fleet,
]
STARTS = {
    Place.NOWHERE: Start.MISSING,
    Place.DUE_ENTRY: Start.DUE,
    Place.PUBLISHED: Start.PUBLISHED,
    Place.RUNNING: Start.RUNNING,
    Place.DEAD_LETTER: Start.DEAD,
}


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(Exception, match=r"."):
        call()


def every_transition() -> None:
    """Each of the table from each place it starts from, the accepted way; then against a place where it loses."""
    for number, (start, name, *_) in enumerate(TRANSITIONS):
        for way, call in enumerate(moves.MOVES[name]):
            call(stand(STARTS[start], bystanders=False, request_key=f"t{number}-{way}"))
    asked = stand(Start.STOPPING, bystanders=False, request_key="stopping")
    moves.cancel_job(asked)
    moves.complete_jobs(asked)
    moves.reject_completion(asked)
    beating = stand(Start.RUNNING, bystanders=False, request_key="beating")
    moves.extend_leases(beating, progress={beating.lease_id: {"fraction": 0.5}})
    moves.reject_completion(beating, lease_id=moves.NOBODY)
    refused(lambda: moves.cancel_job(beating, if_running="refuse"))
    finished = stand(Start.SUCCEEDED, bystanders=False, request_key="finished")
    refused(lambda: moves.cancel_job(finished))
    refused(lambda: moves.edit_job(finished))
    discarded = stand(Start.DISCARDED, bystanders=False, request_key="discarded")
    refused(lambda: moves.requeue_dead_letter(discarded))


def every_service() -> None:
    """One job of each fate through submit, dispatch, report and reap."""
    tenant, pool, name = (
        make_tenant("large", shard_spread=64),
        make_pool("services"),
        "billing.refund",
    )
    make_handler(name)
    make_worker(pool, (name,), slots=100)
    requests = [parse_request({"handler": name, "request_key": f"s{n}"}) for n in range(20)]
    for _ in range(2):  # the second time each key finds its job
        submit_jobs(tenant=tenant, requests=requests, actor="token:test0001")
    done = dispatch(shards=all_shards(), memory=Memory(), scheduler_id=SCHEDULER_ID, fresh=True)
    assert done.published >= 20
    limited = make_tenant("limited", max_running=3, max_backlog=9, start_rate=1.0, start_burst=2)
    keyed = [parse_request({"handler": name, "concurrency_key": "k"})] * 2
    submit_jobs(tenant=limited, requests=keyed, actor="token:test0001")
    for shards in (all_shards(), all_shards()[:-1]):
        dispatch(shards=shards, memory=Memory(), scheduler_id=SCHEDULER_ID, fresh=True)
    unpark_jobs(shards=all_shards())
    pause(kind=Pause.Kind.LANE, target="low", actor="user:anna", reason="billing run")
    resume(kind=Pause.Kind.LANE, target="low", actor="user:anna")
    end_pauses()
    heads = candidates.due_groups(shards=all_shards())
    candidates.group_rows(limits={head.key: 2 for head in heads})
    floors = dict.fromkeys(all_shards(), 0.0)
    candidates.due_rows(shards=all_shards(), limit=9, floors=floors)
    candidates.due_groups(shards=all_shards(), floors=floors)
    candidates.group_rows(limits={head.key: 2 for head in heads}, floors=floors)
    candidates.seconds_to_next_due(shards=all_shards(), floors=floors)
    fleet.held_leases(shards=all_shards(), mine=[0])
    outcomes = []
    endings = [*Ending, Ending.FAILED, Ending.CANCELLED]
    for number, ending in enumerate(endings):
        job = make_job(handler=name, request_key=f"s{number}", tenant=tenant)
        taken = take(job.pk)
        if ending is Ending.CANCELLED and number < len(Ending):
            cancel_job(shard=job.shard, job_id=job.pk, actor="user:anna", reason="withdrawn")
        outcomes.append(
            AttemptOutcome(
                taken=taken,
                ending=ending,
                permanent=number > len(Ending),
                by_handler=number > len(Ending),
            )
        )
    for _ in range(2):  # the second report finds that it was accepted before, or is refused
        report_outcomes(
            shards=all_shards(), worker_id=WORKER, outcomes=outcomes, rng=random.Random(1)
        )
    fleet.pool_loads(shards=all_shards())
    candidates.seconds_to_next_due(shards=all_shards())
    it = stand(Start.RUNNING, bystanders=False, request_key="lost")
    reap(shards=all_shards(), actor=SCHEDULER, rng=random.Random(1), now=it.now)


def every_schedule() -> None:
    """Expanded, edited, paused and deleted; missed, run late, and settled."""
    # The earliest of its jobs is out of reach: what was made is missed whatever the policy, or let late.
    now = database_now()
    for policy in ("skip", "all"):
        schedule = make_schedule(name=policy, cron="*/5 * * * *", misfire=policy, now=now)
        who: dict[str, Any] = {
            "tenant": schedule.tenant,
            "schedule_id": schedule.pk,
            "actor": "user:anna",
        }
        later = now + timedelta(minutes=15)
        judge_missed_jobs(shards=all_shards(), actor=SCHEDULER, now=later)
        decide_running(shards=all_shards(), actor=SCHEDULER, now=later)
        settle_occurrences(shards=all_shards(), now=later)
        expand_schedules(shards=all_shards(), actor=SCHEDULER, now=later + timedelta(hours=1))
        request = parse_schedule(
            {"name": policy, "cron": "*/7 * * * *", "job": {"handler": "billing.charge"}},
            defaults=tenant_defaults(schedule.tenant),
        )
        edit_schedule(**who, version=1, request=request, now=later)
        pause_schedule(**who, reason="billing run", now=later)
        resume_schedule(**who, now=later)
        trigger_schedule(**who)
        catch_up(**who, begin=now - timedelta(hours=1), until=later, now=later)
        Tenant.objects.update(timezone="Asia/Kolkata" if policy == "skip" else "UTC")
        mark_stale_schedules(shards=all_shards(), now=later)
        delete_schedule(**who, now=later)


def every_rival() -> None:
    """A run of a schedule is under way when the next one is due."""
    make_schedule(name="rival", cron="* * * * *", on_running="cancel_running")
    first, second = DueEntry.objects.filter(concurrency_key__startswith="schedule:").order_by(
        "due_at"
    )[:2]
    publish(first.job_id, first.shard)
    DueEntry.objects.filter(pk=second.pk).update(parked=True, due_at=database_now())
    assert decide_running(shards=all_shards(), actor=SCHEDULER) == 1


def every_loop() -> None:
    """A turn of the scheduler, which owns all shards for this."""
    assert Scheduler(shards=all_shards()).run_once().published >= 0


@pytest.fixture
def sent() -> list[Statement]:
    with captured() as found:
        every_transition()
        every_service()
        every_schedule()
        every_rival()
        every_loop()
    return found


def test_every_statement_on_a_job_table_names_its_shards(sent):
    bad = {normal(one.sql): faults(one.sql) for one in sent if faults(one.sql)}
    assert bad == {}
    touched = {table for one in sent for table in JOB_TABLES if table in one.sql}
    assert touched == JOB_TABLES


def test_every_statement_of_the_engine_was_sent(sent):
    told = "\n".join(normal(one.sql) for one in sent)
    known = statements_of(ENGINE)
    assert len(known) > 20
    assert [name for name, sql in known.items() if normal(sql) not in told] == []


def test_every_transition_was_called():
    assert {transition.function for transition in TRANSITIONS} == moves.MOVES.keys()


def test_job_ids_and_rows_carry_their_shard(sent):
    jobs = dict(Job.objects.values_list("pk", "shard"))
    assert len(set(jobs.values())) > 10
    assert {job_id for job_id, shard in jobs.items() if shard_of_id(job_id) != shard} == set()
    assert set(jobs.values()) <= set(range(conf().shards))
    events = JobEvent.objects.values_list("job_id", "shard")
    assert {job_id for job_id, shard in events if jobs[job_id] != shard} == set()


def test_shards_given_to_a_statement_are_those_of_its_rows():
    """A lease of another shard is out of reach, whatever its id: the shard is a guard and not a decoration."""
    it = stand(Start.RUNNING, bystanders=False)
    other = (it.shard + 1) % conf().shards
    assert moves.complete_jobs(it, shards=[other]) == set()
    assert moves.extend_leases(it, shards=[other]) == {}
    refused(lambda: cancel_job(shard=other, job_id=it.job_id, actor="user:anna", reason=""))
    refused(
        lambda: requeue_dead_letter(
            shard=other, dead_letter_id=it.dead_letter_id, actor="user:anna", note=""
        )
    )
    job = make_job(request_key="published")
    publish(job.pk, job.shard)
    assert reap(shards=[other], actor=SCHEDULER, rng=random.Random(1), now=it.now).seen == 0


TABLES = "select unnest(%(tables)s::text[])::regclass"
PROBES = {
    "triggers": f"select tgname from pg_trigger where not tgisinternal and tgrelid in ({TABLES})",
    "rules": f"select rulename from pg_rewrite where ev_class in ({TABLES})",
    "exclusion constraints": f"select conname from pg_constraint where contype = 'x' and conrelid in ({TABLES})",
    "foreign keys": f"select conname from pg_constraint where contype = 'f' and conrelid in ({TABLES})",
    "identity columns": f"select attname from pg_attribute where attidentity <> '' and attrelid in ({TABLES})",
    "sequences": "select pg_get_expr(adbin, adrelid) from pg_attrdef"
    f" where pg_get_expr(adbin, adrelid) like '%%nextval%%' and adrelid in ({TABLES})",
    "nullable shards": "select attrelid::regclass::text from pg_attribute"
    f" where attname = 'shard' and not attnotnull and attrelid in ({TABLES})",
}


@pytest.mark.parametrize("sql", PROBES.values(), ids=PROBES)
def test_job_tables_have_nothing_that_spans_shards(sql):
    assert rows(sql, {"tables": sorted(JOB_TABLES)}) == []


def test_unique_keys_across_jobs_contain_the_shard():
    """Ids are unique by themselves; a key of the caller is unique only together with the shard it leads to."""
    keys = rows(
        "select pg_get_indexdef(indexrelid) from pg_index where indisunique and not indisprimary"
        f" and indrelid in ({TABLES})",
        {"tables": sorted(JOB_TABLES)},
    )
    assert keys
    for (definition,) in keys:
        # Slots of a concurrency key: of one shard unless the tenant is spread, and then counted under a lock as well.
        if "lease_concurrency_slot_once" not in definition:
            assert "shard" in definition or definition.endswith("(job_id)"), definition
