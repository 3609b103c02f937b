"""KF-26: the database's clock decides, so no statement of the engine carries a time that a process has read."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from jobs.clock import database_now
from jobs.services.backlog import LATE_SECONDS
from jobs.services.dispatch import dispatch
from jobs.services.memory import Memory
from jobs.services.outcomes import AttemptOutcome, Ending, report_outcomes
from jobs.services.reaping import reap
from jobs.services.requests import parse_request
from jobs.services.submit import submit_job
from jobs.states import TRANSITIONS, Place
from tests.factories import (
    SCHEDULER,
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_handler,
    make_job,
    make_pool,
    make_tenant,
    make_worker,
    take,
)
from tests.support.moves import MOVES, extend_leases, reject_completion
from tests.support.places import Start, stand
from tests.support.sql import captured

pytestmark = pytest.mark.django_db

STARTS = {
    Place.NOWHERE: Start.MISSING,
    Place.DUE_ENTRY: Start.DUE,
    Place.PUBLISHED: Start.PUBLISHED,
    Place.RUNNING: Start.RUNNING,
    Place.DEAD_LETTER: Start.DEAD,
}
TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
ARRAY_LITERAL = re.compile(r"\{[0-9a-f-]+(,[0-9a-f-]+)*\}")
MONTH_SECONDS = 30 * 86_400.0


def times_in(value: Any) -> Iterator[object]:
    """Everything in a parameter that could be a reading of a clock: a time, its text, or seconds since 1970."""
    match value:
        case datetime():
            yield value
        case dict():
            for part in value.values():
                yield from times_in(part)
        case list() | tuple() | set():
            for part in value:
                yield from times_in(part)
        case str() if ARRAY_LITERAL.fullmatch(value):
            for part in value[1:-1].split(","):
                yield from times_in(int(part) if part.isdecimal() else part)
        case str() if value.startswith(("{", "[")):
            yield from times_in(json.loads(value))
        case str() if TIME_TEXT.search(value):
            yield value
        case float() | int() if abs(value - time.time()) < MONTH_SECONDS:
            yield value


WAYS = {
    f"{name} from {start}, {way}": (STARTS[start], call)
    for start, name in dict.fromkeys((move.start, move.function) for move in TRANSITIONS)
    for way, call in enumerate(MOVES[name])
}


@pytest.mark.parametrize(("start", "call"), WAYS.values(), ids=WAYS)
def test_kf26_a_transition_sends_no_time_of_its_process(start, call):
    it = stand(start, bystanders=False)
    with captured() as sent:
        call(it, now=None)
    assert sent
    assert [found for one in sent for found in times_in(one.params)] == []


def test_kf26_heartbeats_and_refusals_send_no_time_of_their_process():
    it = stand(Start.RUNNING, bystanders=False)
    with captured() as sent:
        assert extend_leases(it, now=None, progress={it.lease_id: {"fraction": 0.5}})
        assert reject_completion(it, now=None)
    assert [found for one in sent for found in times_in(one.params)] == []


def test_kf26_services_send_no_time_of_their_process():
    pool = make_pool()
    make_handler()
    make_worker(pool)
    wanted = parse_request({"handler": "billing.charge", "delay_seconds": 0})
    published = make_job(place=Place.PUBLISHED)
    taken = take(published.pk)
    tenant = make_tenant()
    with captured() as sent:
        submit_job(tenant=tenant, request=wanted, actor="token:test0001")
        dispatch(shards=all_shards(), memory=Memory(), scheduler_id=SCHEDULER_ID, fresh=True)
        outcome = AttemptOutcome(taken=taken, ending=Ending.FAILED, error={"message": "boom"})
        report_outcomes(
            shards=all_shards(), worker_id=WORKER, outcomes=[outcome], rng=random.Random(1)
        )
        reap(shards=all_shards(), actor=SCHEDULER, rng=random.Random(1))
    assert len(sent) > 10
    # Floors are due times and a moment that the database has told; the test below moves the clock away from them.
    own = [
        {**one.params, "floors": None} if isinstance(one.params, dict) else one.params
        for one in sent
    ]
    assert [found for params in own for found in times_in(params)] == []


def test_kf26_the_floors_of_a_scan_are_times_of_the_database(monkeypatch):
    make_worker(make_pool())
    memory = Memory()
    before = database_now().timestamp()
    monkeypatch.setattr(time, "time", lambda: before + MONTH_SECONDS)
    dispatch(shards=all_shards(), memory=memory, scheduler_id=SCHEDULER_ID, fresh=True)
    assert memory.backlog.floors.keys() == {*all_shards()}
    for floor in memory.backlog.floors.values():
        assert before <= floor + LATE_SECONDS <= database_now().timestamp()


def test_a_reading_of_a_clock_is_found_in_any_form():
    now = datetime.now().astimezone()
    for reading in (now, now.isoformat(), time.time(), {"a": [now]}, json.dumps({"at": str(now)})):
        assert list(times_in({"params": reading})), reading
    assert list(times_in({"ttl": 30.0, "shards": [1, 2], "actor": "worker:1", "now": None})) == []
