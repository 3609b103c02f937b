"""One job's page: its story in sentences, what is known, what is hidden, what could be done."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.console.timeline import Entry, timeline
from jobs.models import Job, JobEvent, Lease, Worker
from jobs.policies.sharding import new_job_id
from jobs.queries.history import job_detail, job_events
from jobs.services.reaping import reap
from jobs.states import EventKind, Place
from jobs.transitions.cancel import acknowledge_cancels, cancel_job
from jobs.transitions.claim import claim_batch
from jobs.transitions.edit import edit_job
from jobs.transitions.finish import complete_jobs, reject_completion, retry_jobs, snooze_jobs
from jobs.transitions.lease import expire_published, extend_leases, release_jobs
from jobs.transitions.requeue import discard_dead_letter, requeue_dead_letter
from jobs.transitions.take import Taken, take_batch
from tests.factories import (
    BOOM,
    OTHER_WORKER,
    SCHEDULER,
    WORKER,
    dead_letter_of,
    make_job,
    make_pool,
    make_worker,
    publish,
    take,
)


def page_of(staff: Client, job: Job) -> str:
    answer = staff.get(reverse("console:job", args=[job.pk]))
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def story(job: Job) -> list[Entry]:
    detail = job_detail(tenant_id=None, job_id=job.pk)
    return timeline(detail, job_events(detail))


def sentences(job: Job) -> list[str]:
    return [entry.sentence for entry in story(job)]


def facts(entry: Entry) -> dict[str, str]:
    return dict(entry.facts)


def lease_at(job: Job, now: datetime) -> Lease:
    claim_batch(shards=[job.shard], job_ids=[job.pk], pool=make_pool(), actor=SCHEDULER, now=now)
    return Lease.objects.get(job=job)


def take_at(job: Job, now: datetime, worker: UUID = WORKER) -> Taken:
    lease = Lease.objects.get(job=job)
    (taken,) = take_batch(
        shards=[job.shard],
        pool_id=lease.pool_id,
        handlers=["billing.charge"],
        worker_id=worker,
        limit=1,
        now=now,
    )
    return taken


@pytest.fixture
def retried(db: None) -> Job:
    """Failed once, lost its worker once, whose late report was refused, and succeeded at the third attempt."""
    make_worker(id=WORKER, host="worker-a", pid=4121)
    make_worker(id=OTHER_WORKER, host="worker-b", pid=977)
    job = make_job(request_key="invoice-8812", due_at="2026-12-01T00:00:00Z")
    start = job.created_at
    Job.objects.filter(pk=job.pk).update(due_at=start + timedelta(seconds=60))
    edit_job(
        shard=job.shard,
        job_id=job.pk,
        actor="user:anna",
        due_at=start + timedelta(seconds=60),
        now=start,
    )

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    shards = [job.shard]
    lease_at(job, at(72))
    first = take_at(job, at(72.2))
    item = {"delay": 2.0, "cause": "error", "error": BOOM}
    retry_jobs(shards=shards, worker_id=WORKER, failures={first.lease_id: item}, now=at(75))
    lease_at(job, at(77.2))
    second = take_at(job, at(77.4))
    reap(shards=shards, actor=SCHEDULER, rng=random.Random(1), now=at(120))
    lease_at(job, at(180))
    late: dict[str, Any] = {
        "lease_id": second.lease_id,
        "token": second.token,
        "worker_id": WORKER,
    }
    reject_completion(shard=job.shard, job_id=job.pk, **late, reported="succeeded", now=at(180.5))
    third = take_at(job, at(181), OTHER_WORKER)
    done = {third.lease_id: {"charge": "ch_1"}}
    complete_jobs(shards=shards, worker_id=OTHER_WORKER, results=done, now=at(185))
    return job


def test_a_retried_job_tells_its_story_newest_first(retried: Job) -> None:
    entries = story(retried)
    assert [entry.sentence for entry in entries] == [
        "Succeeded, reported by worker worker-b:977",
        "Started by worker worker-b:977",
        "Refused: “succeeded”, reported too late by worker worker-a:4121",
        "Leased by scheduler 00000000… and published to pool default",
        "Attempt 2 lost: its lease expired, worker lost",
        "Started by worker worker-a:4121",
        "Leased by scheduler 00000000… and published to pool default",
        "Attempt 1 failed: ValueError: boom",
        "Started by worker worker-a:4121",
        "Leased by scheduler 00000000… and published to pool default",
        "Changed by anna",
        "Created by API token test0001",
    ]
    assert [entry.seq for entry in entries] == list(range(12, 0, -1))
    assert facts(entries[2])["Tokens"] == "it presented 2; the job is at 3"
    assert facts(entries[3])["Attempt"] == "3, fencing token 3"
    assert facts(entries[4])["Worker"] == "worker-a:4121"
    assert facts(entries[4])["Lease ran out"] == "13 s before this"
    assert facts(entries[7])["Where"] == "shop:charge:12"
    assert facts(entries[7])["Retry"].endswith(" UTC, 2 s later")
    assert facts(entries[10])["Due"].startswith("2026-12-01 00:00:00 UTC → ")
    assert [entry.by for entry in entries[-2:]] == ["person", "API"]


def test_gaps_of_a_second_and_more_say_what_was_waited_for(retried: Job) -> None:
    gaps = [entry.gap for entry in story(retried)]
    assert gaps[0] == "4 s running"
    assert gaps[4] == "43 s running"
    assert gaps[7] == "2.8 s running"
    assert gaps[8] == ""  # 0.2 s
    assert gaps[9] == "1 m until it was due, then 12 s waiting for a free slot"
    assert gaps[11] == ""


def test_the_page_shows_what_is_known_and_what_nobody_can_know(
    staff: Client, retried: Job
) -> None:
    page = page_of(staff, retried)
    for words in (
        "Succeeded",
        "started 12 s late",
        "acme/invoice-8812",
        "What happened outside?",
        "Attempt 2 did not report success",
        "3 of 3",
        '"charge": "ch_1"',
        "always 10 s",
        "43 s running",
    ):
        assert words in page
    assert "Cancel job" not in page  # it is finished


def test_a_job_that_never_failed_raises_no_doubt_about_the_outside(staff: Client) -> None:
    assert "What happened outside?" not in page_of(staff, make_job(place=Place.FINISHED))


def test_a_job_page_takes_few_statements(staff: Client, retried: Job) -> None:
    with CaptureQueriesContext(connection) as queries:
        page_of(staff, retried)
    # session, user, begin, timeout, job, first start, events, workers, lanes, commit, handler
    assert len(queries) == 11


@pytest.mark.parametrize(
    ("place", "cancel_asked", "words"),
    [
        (Place.DUE_ENTRY, False, "No worker has this job. Once cancelled it will never run."),
        (Place.PUBLISHED, False, "It is published to pool default and no worker has taken it."),
        (Place.RUNNING, False, "it may already have done its work outside"),
        (Place.RUNNING, True, "The worker has not stopped yet."),
    ],
)
def test_a_cancel_says_what_it_would_mean(
    staff: Client, place: Place, cancel_asked: bool, words: str
) -> None:
    page = page_of(staff, make_job(place=place, cancel_asked=cancel_asked))
    assert words in page
    assert ("Cancel job" in page) is not cancel_asked


@pytest.mark.django_db
def test_an_unfinished_job_begins_with_what_it_does_now() -> None:
    waiting, published = make_job(delay_seconds=600), make_job(place=Place.PUBLISHED)
    running = make_job(place=Place.RUNNING)
    lease = Lease.objects.get(job=running)
    extend_leases(
        shards=[running.shard],
        worker_id=WORKER,
        lease_ids=[lease.pk],
        progress={lease.pk: {"fraction": 0.5, "note": "password=hunter2"}},
    )
    assert re.fullmatch(r"Waits: due in (10 m|9 m 5\d s)", sentences(waiting)[0])
    stopping = make_job(place=Place.RUNNING, cancel_asked=True)
    assert sentences(stopping)[0] == "Running on 00000000…, asked to stop"
    assert sentences(make_job())[0] == "Due: waits to be leased to a pool"
    assert sentences(published)[0] == "Published to pool default: no worker has taken it yet"
    now = story(running)[0]
    assert now.sentence == "Running on 00000000…"
    assert "0.5" in facts(now)["Progress"]
    assert "hunter2" not in facts(now)["Progress"]
    assert facts(now)["Lease"].endswith("without a heartbeat")
    Lease.objects.filter(pk=lease.pk).update(
        published_at=lease.published_at - timedelta(hours=2),
        expires_at=lease.published_at - timedelta(hours=1),
    )
    assert "is about to be taken back" in facts(story(running)[0])["Lease"]


@pytest.mark.django_db
def test_every_kind_of_event_has_a_sentence_of_its_own() -> None:
    told: dict[str, str] = {}

    def tell(job: Job) -> None:
        detail = job_detail(tenant_id=None, job_id=job.pk)
        for event, entry in zip(
            job_events(detail), [e for e in reversed(story(job)) if e.seq], strict=True
        ):
            told[event.kind] = entry.sentence

    dead = make_job(place=Place.DEAD_LETTER)
    letter = dead_letter_of(dead)
    requeue_dead_letter(
        shard=dead.shard, dead_letter_id=letter.pk, actor="user:anna", note="fixed"
    )
    taken = take(publish(dead.pk, dead.shard).job_id)
    nap = {taken.lease_id: {"delay": 60.0, "reason": "closed on Sundays"}}
    snooze_jobs(shards=[dead.shard], worker_id=WORKER, snoozes=nap)
    taken = take(publish(dead.pk, dead.shard).job_id)
    back = {taken.lease_id: {"reason": "worker stops"}}
    release_jobs(shards=[dead.shard], worker_id=WORKER, reasons=back)
    lease = publish(dead.pk, dead.shard)
    later = lease.expires_at + timedelta(minutes=5)
    expire_published(shards=[dead.shard], lease_ids=[lease.pk], actor=SCHEDULER, now=later)
    edit_job(shard=dead.shard, job_id=dead.pk, actor="user:anna", tags=["vip"], lane_id=1)
    assert facts(story(dead)[1]) == {"Lane": "normal → urgent", "Tags": '["vip"]'}
    taken = take(publish(dead.pk, dead.shard).job_id)
    again = {taken.lease_id: {"delay": 1.0, "cause": "timeout", "error": BOOM}}
    retry_jobs(shards=[dead.shard], worker_id=WORKER, failures=again)
    taken = take(publish(dead.pk, dead.shard).job_id)
    cancel_job(shard=dead.shard, job_id=dead.pk, actor="user:anna", reason="withdrawn")
    stopped = {taken.lease_id: {"cancel": "honoured"}}
    acknowledge_cancels(shards=[dead.shard], worker_id=WORKER, stopped=stopped)
    reject_completion(
        shard=dead.shard,
        job_id=dead.pk,
        lease_id=uuid4(),
        token=1,
        worker_id=WORKER,
        reported="failed",
    )
    tell(dead)
    discarded = make_job(place=Place.DEAD_LETTER)
    letter = dead_letter_of(discarded)
    discard_dead_letter(shard=letter.shard, dead_letter_id=letter.pk, actor="user:anna", note="x")
    tell(discarded)
    tell(make_job(place=Place.FINISHED))
    assert set(told) == set(EventKind)
    assert told["snoozed"] == "Snoozed by its handler; the attempt is not counted"
    assert told["requeued"] == "Requeued by anna with a new budget of attempts"
    assert told["discarded"] == "Dead letter closed by anna; the job stays dead"
    assert told["failed"] == "Attempt 5 ran out of time: ValueError: boom"
    assert told["cancelled"] == "Cancelled: worker 00000000… stopped it"
    assert not any("Unknown" in sentence or "Stored" in sentence for sentence in told.values())


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("honoured", "The worker stopped."), ("by_handler", "The handler cancelled itself.")],
)
def test_the_page_says_how_a_cancel_ended(staff: Client, outcome: str, words: str) -> None:
    job = make_job(place=Place.RUNNING, cancel_asked=True)
    stopped = {Lease.objects.get(job=job).pk: {"cancel": outcome}}
    acknowledge_cancels(shards=[job.shard], worker_id=WORKER, stopped=stopped)
    page = page_of(staff, job)
    assert words in page
    assert "order withdrawn" in page


def test_secrets_are_masked_wherever_they_stand(staff: Client) -> None:
    job = make_job(
        place=Place.FINISHED,
        payload={
            "card": {"number": "4111-canary"},
            "rows": [{"apiToken": "canary-token"}],
            "ok": 1,
        },
    )
    Job.objects.filter(pk=job.pk).update(
        result={"password": "canary-result"},
        last_error={"type": "X", "message": "login password=canary-error", "secret": "canary-key"},
    )
    page = page_of(staff, job)
    assert '"ok": 1' in page
    assert "***" in page
    assert "canary" not in page
    assert "canary" not in unescape(staff.get(reverse("console:jobs")).content.decode())


def test_a_history_longer_than_a_page_is_shown_in_part_and_on_demand(staff: Client) -> None:
    job = make_job()
    event = JobEvent.objects.get(job=job)
    JobEvent.objects.bulk_create(
        JobEvent(id=number, shard=event.shard, job_id=job.pk, seq=number, tenant_id=event.tenant_id,
                 at=event.at + timedelta(seconds=number), kind="edited", from_status="scheduled",
                 to_status="scheduled", attempt=0, actor="user:anna", detail=None)
        for number in range(2, 302)
    )  # fmt: skip
    page = page_of(staff, job)
    assert "#302" not in page
    assert "#301" in page
    assert "Created by" not in page
    assert "Older events exist" in page
    everything = staff.get(reverse("console:job", args=[job.pk]) + "?events=all").content.decode()
    assert "Created by" in everything
    assert "Older events exist" not in everything


def test_a_worker_whose_row_is_gone_is_named_by_its_id(retried: Job) -> None:
    Worker.objects.all().delete()
    assert sentences(retried)[0] == "Succeeded, reported by worker 00000000…"


@pytest.mark.parametrize(
    "job_id",
    [
        new_job_id(shard=1, unix_ms=1, rand_b=1),
        new_job_id(shard=4095, unix_ms=1, rand_b=1),
        UUID("00000000-0000-4000-8000-000000000001"),
        UUID(int=0),
    ],
)
def test_an_unknown_job_is_a_page_that_says_so(staff: Client, job_id: UUID) -> None:
    for method in (staff.get, staff.post):
        url = reverse("console:job" if method == staff.get else "console:cancel", args=[job_id])
        answer = method(url, {"reason": "x"} if method == staff.post else {})
        assert answer.status_code in (404, 302)
    assert (
        "No job has this id" in staff.get(reverse("console:job", args=[job_id])).content.decode()
    )


def test_an_address_that_is_no_id_is_not_found(staff: Client) -> None:
    assert staff.get("/console/jobs/not-an-id/").status_code == 404
