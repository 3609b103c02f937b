"""pause and resume: what is paused is not claimed, all else goes on, and who stopped it and why is kept."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

import pytest

from jobs.clock import database_now
from jobs.errors import InvalidField, NotFound, NotPaused
from jobs.models import DueEntry, Job, JobEvent, Lease, Pause
from jobs.queries.catalog import forget
from jobs.services.dispatch import dispatch
from jobs.services.memory import Memory
from jobs.services.pausing import end_pauses, pause, resume
from jobs.states import Place
from tests.factories import (
    SCHEDULER_ID,
    WORKER,
    all_shards,
    make_job,
    make_pool,
    make_tenant,
    make_worker,
)
from tests.support.places import unchanged

pytestmark = pytest.mark.django_db
Kind = Pause.Kind


def published(now=None) -> set[UUID]:
    """Ids of jobs that one turn published."""
    before = set(Lease.objects.values_list("job_id", flat=True))
    forget()
    dispatch(shards=all_shards(), memory=Memory(), scheduler_id=SCHEDULER_ID, fresh=True, now=now)
    return set(Lease.objects.values_list("job_id", flat=True)) - before


def stop(kind, target, **more):
    return pause(kind=Kind(kind), target=target, actor="user:anna", reason="billing run", **more)


def go_on(kind, target):
    return resume(kind=Kind(kind), target=target, actor="user:ben")


def two_jobs(kind):
    """One that belongs to what is paused, and one that does not; and the name of what is paused."""
    eu = make_pool("eu", labels={"region": "eu"})
    make_worker(make_pool(), ("billing.charge", "mail.send"))
    make_worker(eu, ("billing.charge",), pid=2)
    other = make_job()
    match kind:
        case "tenant":
            return make_job(tenant=make_tenant("globex")), other, "globex"
        case "lane":
            return make_job(lane="urgent"), other, "urgent"
        case "pool":
            return make_job(labels={"region": "eu"}, pool=eu), other, "eu"
        case _:
            return make_job(handler="mail.send"), other, "mail.send"


KINDS = ["tenant", "lane", "pool", "handler"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_paused_is_not_published_while_others_go_on_until_it_is_resumed(kind):
    paused, other, target = two_jobs(kind)
    stop(kind, target)
    with NoChangeOf(paused):
        assert published() == {other.pk}
        assert published() == set()
    go_on(kind, target)
    assert published() == {paused.pk}


class NoChangeOf:
    """The job, its entry and its history stay as they are."""

    def __init__(self, job):
        self._job = job

    def _rows(self):
        return (
            list(Job.objects.filter(pk=self._job.pk).values()),
            list(DueEntry.objects.filter(pk=self._job.pk).values()),
            list(JobEvent.objects.filter(job=self._job.pk).values()),
        )

    def __enter__(self):
        self._before = self._rows()

    def __exit__(self, *error):
        assert self._rows() == self._before


def test_what_was_published_before_still_runs():
    job = make_job(place=Place.PUBLISHED)
    with NoChangeOf(job):
        stop("tenant", "acme")
        assert Lease.objects.published().filter(job=job).exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_ends_by_itself_at_its_time_by_the_databases_clock(kind):
    paused, other, target = two_jobs(kind)
    stop(kind, target, resume_at=database_now() + timedelta(hours=1))
    assert published() == {other.pk}
    assert end_pauses() == 0
    Pause.objects.update(resume_at=database_now() - timedelta(milliseconds=1))
    assert published() == {paused.pk}  # whether or not the row is gone
    assert end_pauses() == 1
    assert not Pause.objects.exists()


def test_both_of_two_pauses_must_end():
    job = make_job(lane="urgent")
    make_worker()
    stop("tenant", "acme")
    stop("lane", "urgent")
    assert published() == set()
    go_on("tenant", "acme")
    assert published() == set()
    go_on("lane", "urgent")
    assert published() == {job.pk}


def test_s10_a_pause_is_recorded_with_who_when_and_why(caplog):
    make_tenant()
    before = database_now()
    with caplog.at_level(logging.INFO):
        done = stop("tenant", "acme")
        again = pause(kind=Kind.TENANT, target="acme", actor="user:ben", reason="longer")
        ended = go_on("tenant", "acme")
    assert (done.paused_by, done.reason, done.already) == ("user:anna", "billing run", False)
    assert (again.paused_by, again.reason, again.already) == ("user:ben", "longer", True)
    assert before <= done.paused_at == again.paused_at
    assert (ended.reason, ended.paused_by) == ("longer", "user:ben")
    told = [
        (one.getMessage(), one.kind, one.target, one.reason, one.by)
        for one in caplog.records
        if one.getMessage().startswith("pause.")
    ]
    assert told == [
        ("pause.begun", "tenant", "acme", "billing run", "user:anna"),
        ("pause.changed", "tenant", "acme", "longer", "user:ben"),
        ("pause.ended", "tenant", "acme", "longer", "user:ben"),
    ]


def test_a_pause_that_has_ended_by_its_time_counts_as_none(caplog):
    make_tenant()
    first = stop("tenant", "acme", resume_at=database_now() + timedelta(hours=1))
    Pause.objects.update(resume_at=database_now() - timedelta(seconds=1))
    again = stop("tenant", "acme")
    assert not again.already
    assert (again.paused_at > first.paused_at, again.resume_at) == (True, None)
    Pause.objects.update(resume_at=database_now() - timedelta(seconds=1))
    with pytest.raises(NotPaused):
        go_on("tenant", "acme")


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_exists_is_paused_and_only_what_is_paused_is_resumed(kind):
    with unchanged():
        with pytest.raises(NotFound):
            stop(kind, "nobody")
        with pytest.raises(NotPaused):
            go_on(kind, "nobody")
    assert not Pause.objects.exists()


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"reason": ""}, "/reason"),
        ({"reason": " \n"}, "/reason"),
        ({"reason": "x" * 1_001}, "/reason"),
        ({"reason": "a\x00b"}, "/reason"),
        ({"reason": "a\ud800b"}, "/reason"),
        ({"target": "a\x00b"}, "/target"),
        ({"kind": "schedule"}, "/kind"),
        ({"resume_at": database_now}, "/resume_at"),
        ({"resume_at": lambda: database_now().replace(tzinfo=None)}, "/resume_at"),
    ],
    ids=["empty", "blank", "long", "NUL", "surrogate", "odd-name", "kind", "past", "naive"],
)
def test_a_faulty_pause_is_refused_and_nothing_is_stored(fields, pointer):
    make_tenant()
    given = {"kind": Kind.TENANT, "target": "acme", "actor": "user:anna", "reason": "x", **fields}
    if callable(given.get("resume_at")):
        given["resume_at"] = given["resume_at"]()
    with pytest.raises(InvalidField) as refused:
        pause(**given)
    assert refused.value.pointer == pointer
    assert not Pause.objects.exists()


def test_a_claim_tells_that_the_job_waited_for_a_pause():
    """The worker row makes the pool live; the delays are those that one scheduler process has seen."""
    job = make_job()
    make_worker(id=WORKER)
    DueEntry.objects.filter(pk=job.pk).update(due_at=database_now() - timedelta(seconds=30))
    memory, began = Memory(), database_now()
    stop("tenant", "acme")
    for seconds in (0, 1, 2):
        forget()
        dispatch(
            shards=all_shards(),
            memory=memory,
            scheduler_id=SCHEDULER_ID,
            fresh=True,
            now=began + timedelta(seconds=seconds),
        )
    go_on("tenant", "acme")
    forget()
    dispatch(
        shards=all_shards(),
        memory=memory,
        scheduler_id=SCHEDULER_ID,
        fresh=True,
        now=began + timedelta(seconds=3),
    )
    event = JobEvent.objects.get(job=job, kind="leased")
    assert (event.detail or {})["waited"] == {"tenant_paused": 2.0}
