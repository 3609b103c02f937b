"""GET /api/v1/jobs/{id}."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from jobs.api.serializers import idempotency_token
from jobs.models import DueEntry, JobEvent, Lease
from jobs.policies.sharding import new_job_id
from jobs.queries.history import Phase, job_detail, job_events
from jobs.states import Place
from jobs.transitions.cancel import acknowledge_cancels, cancel_job
from jobs.transitions.finish import complete_jobs, retry_jobs
from jobs.transitions.lease import expire_started
from tests.api.caller import JOBS, Caller, assert_problem, call
from tests.factories import BOOM, SCHEDULER, WORKER, lease_of, make_job, make_worker, publish, take


def fail(job, delay=60.0):
    lease = lease_of(job)
    done = retry_jobs(
        shards=[job.shard],
        worker_id=WORKER,
        failures={lease.pk: {"delay": delay, "cause": "error", "error": BOOM}},
    )
    assert done == {lease.pk}


def test_phase_of_a_job_in_each_place(owner):
    future = (timezone.now() + timedelta(hours=1)).isoformat()
    jobs = {
        "upcoming": make_job(due_at=future),
        "due": make_job(),
        "retry_wait": make_job(place=Place.RUNNING),
        "published": make_job(place=Place.PUBLISHED),
        "running": make_job(place=Place.RUNNING),
        "cancelling": make_job(place=Place.RUNNING, cancel_asked=True),
        "succeeded": make_job(place=Place.FINISHED),
        "dead": make_job(place=Place.DEAD_LETTER),
        "cancelled": make_job(),
    }
    fail(jobs["retry_wait"])
    owner.cancel(jobs["cancelled"].pk)
    shown = {phase: owner.get(job.pk).body["phase"] for phase, job in jobs.items()}
    assert shown == {phase: phase for phase in jobs}
    assert set(shown) == {phase.value for phase in Phase}


def test_a_retry_whose_time_has_come_is_due_again(owner):
    job = make_job(place=Place.RUNNING)
    fail(job, delay=0.0)
    body = owner.get(job.pk).body
    assert (body["phase"], body["attempt"]) == ("due", 1)
    assert body["last_error"]["type"] == "ValueError"


def test_a_running_job_shows_who_has_it(owner):
    job = make_job(place=Place.RUNNING)
    lease = lease_of(job)
    body = owner.get(job.pk).body
    assert body["lease"].keys() == {"pool", "worker", "started_at", "expires_at"}
    assert body["lease"]["pool"] == "default"
    assert body["lease"]["worker"] == str(WORKER)
    assert body["started_at"] == body["lease"]["started_at"]
    assert lease.started_at is not None
    assert body["start_lag_seconds"] == pytest.approx(
        (lease.started_at - job.due_at).total_seconds(), abs=1e-6
    )


def test_started_at_stays_the_first_start_and_the_lag_counts_from_the_due_time(owner):
    job = make_job(place=Place.RUNNING)
    first = owner.get(job.pk).body["started_at"]
    fail(job, delay=0.0)
    publish(job.pk, job.shard)
    take(job.pk)
    body = owner.get(job.pk).body
    assert body["attempt"] == 2
    assert body["started_at"] == first < body["lease"]["started_at"]


def test_a_result_and_the_end_are_shown(owner):
    job = make_job(place=Place.RUNNING)
    complete_jobs(
        shards=[job.shard], worker_id=WORKER, results={lease_of(job).pk: {"charge": "ch_1"}}
    )
    body = owner.get(job.pk).body
    assert (body["status"], body["result"], body["lease"]) == (
        "succeeded",
        {"charge": "ch_1"},
        None,
    )
    assert body["finished_at"] >= body["started_at"] >= body["created_at"]
    assert body["cancel"] is None


def test_include_events_tells_the_story_in_order(owner):
    job = make_job(place=Place.DEAD_LETTER)
    assert "events" not in owner.get(job.pk).body
    events = owner.get(job.pk, "?include=events").body["events"]
    assert [event["seq"] for event in events] == [1, 2, 3, 4]
    assert [event["kind"] for event in events] == ["created", "leased", "started", "dead"]
    assert events[0].keys() == {
        "seq",
        "at",
        "kind",
        "from_status",
        "to_status",
        "attempt",
        "actor",
        "token",
        "detail",
    }
    assert (events[0]["from_status"], events[0]["to_status"]) == (None, "scheduled")
    assert events[2]["actor"] == f"worker:{WORKER}"
    assert events[3]["detail"]["error"]["message"] == "boom"


def test_events_of_a_long_history_are_the_newest(owner):
    job = make_job(place=Place.FINISHED)
    detail = job_detail(tenant_id=None, job_id=job.pk)
    assert [event.seq for event in job_events(detail, limit=2)] == [3, 4]


@pytest.mark.parametrize(
    "query", ["?include=reasons", "?include=", "?include=events&include=events"]
)
def test_an_include_that_is_not_known_is_refused(owner, query):
    assert_problem(owner.get(make_job().pk, query), 400, "invalid_parameter")


@pytest.mark.parametrize("query", ["?fields=id", "?format=json", "?%00=1", "?tenant=globex"])
def test_an_unknown_query_parameter_is_refused(owner, query):
    assert_problem(owner.get(make_job().pk, query), 400, "unknown_parameter")


def test_without_the_right_to_payloads_secrets_are_masked_at_any_depth(owner, viewer):
    payload = {"card": {"number": "4111"}, "items": [{"apiToken": "t", "sku": 7}], "note": "hi"}
    job = make_job(place=Place.RUNNING, payload=payload)
    complete_jobs(
        shards=[job.shard],
        worker_id=WORKER,
        results={lease_of(job).pk: {"client_secret": "s", "ok": True}},
    )
    assert owner.get(job.pk).body["payload"] == payload
    body = viewer.get(job.pk).body
    assert body["payload"] == {
        "card": "***",
        "items": [{"apiToken": "***", "sku": 7}],
        "note": "hi",
    }
    assert body["result"] == {"client_secret": "***", "ok": True}


def test_secrets_in_error_texts_are_masked_for_everyone(owner, viewer):
    job = make_job(place=Place.RUNNING)
    error = {**BOOM, "message": "login failed: password=hunter2 for ann"}
    retry_jobs(
        shards=[job.shard],
        worker_id=WORKER,
        failures={lease_of(job).pk: {"delay": 1.0, "cause": "error", "error": error}},
    )
    for caller in (owner, viewer):
        body = caller.get(job.pk, "?include=events").body
        assert body["last_error"]["message"] == "login failed: password=*** for ann"
        assert b"hunter2" not in caller.get(job.pk, "?include=events").content


def test_the_outcome_of_a_cancel_is_shown(owner):
    actor, reason = "user:anna", "order withdrawn"
    waiting, honoured, late, lost = (
        make_job(place=Place.DUE_ENTRY),
        *(make_job(place=Place.RUNNING) for _ in range(3)),
    )
    for job in (waiting, honoured, late, lost):
        cancel_job(shard=job.shard, job_id=job.pk, actor=actor, reason=reason)
    pending = owner.get(honoured.pk).body["cancel"]
    assert (pending["by"], pending["reason"], pending["outcome"]) == (actor, reason, None)
    acknowledge_cancels(
        shards=[honoured.shard],
        worker_id=WORKER,
        stopped={lease_of(honoured).pk: {"cancel": "honoured"}},
    )
    complete_jobs(shards=[late.shard], worker_id=WORKER, results={lease_of(late).pk: None})
    plan = {lease_of(lost).pk: {"delay": 1.0, "cause": "worker_lost", "error": BOOM}}
    expire_started(
        shards=[lost.shard],
        actor=SCHEDULER,
        retries=plan,
        deaths={},
        now=timezone.now() + timedelta(hours=1),
    )
    outcomes = [
        owner.get(job.pk).body["cancel"]["outcome"] for job in (waiting, honoured, late, lost)
    ]
    assert outcomes == ["cancelled", "honoured", "too_late", "lease_lost"]


def test_a_job_that_its_handler_declared_void_says_so(owner):
    job = make_job(place=Place.RUNNING)
    acknowledge_cancels(
        shards=[job.shard],
        worker_id=WORKER,
        stopped={lease_of(job).pk: {"cancel": "by_handler"}},
        by_handler=True,
    )
    cancel = owner.get(job.pk).body["cancel"]
    assert cancel == {"requested_at": None, "by": None, "reason": None, "outcome": "by_handler"}


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "c4f4e009-5d90-42d2-a729-1ec44eb55089",  # version 4
        str(new_job_id(shard=4095, unix_ms=1, rand_b=1)),  # there are 64 shards
        str(new_job_id(shard=7, unix_ms=1, rand_b=1)),
        "{01a22b0c-8dc0-7027-9b31-efcad9c585ca}",
        "01a22b0c8dc070279b31efcad9c585ca",
        "urn:uuid:01a22b0c-8dc0-7027-9b31-efcad9c585ca",
        "01a22b0c-8dc0-7027-9b31-efcad9c585c\u0661",  # an Arabic digit
        "%00",
    ],
)
def test_what_is_no_job_id_is_not_found(owner, name):
    assert_problem(owner.get(name), 404, "not_found")


def test_an_id_in_capitals_is_the_same_id(owner):
    job = make_job()
    assert owner.get(str(job.pk).upper()).body["id"] == str(job.pk)


def test_s05_a_foreign_job_looks_exactly_like_none(owner, stranger, django_assert_num_queries):
    job = make_job(tenant=owner.tenant)
    unknown = new_job_id(shard=job.shard, unix_ms=1, rand_b=1)
    bodies = []
    for name in (job.pk, unknown, "x"):
        body = assert_problem(stranger.get(name), 404, "not_found")
        bodies.append({**body, "instance": None})
    assert bodies[0] == bodies[1] == bodies[2]
    for name in (job.pk, unknown):  # as much work for the one as for the other
        with django_assert_num_queries(2):
            stranger.get(name)


def test_without_a_token_or_the_scope_nothing_is_shown(owner):
    job = make_job()
    assert_problem(call("GET", f"{JOBS}/{job.pk}"), 401, "token_missing")
    others = Caller(scopes=["jobs:write", "jobs:cancel", "payload:read"])
    assert assert_problem(others.get(job.pk), 403, "scope_missing")["scope"] == "jobs:read"


def test_head_is_get_without_the_body(owner):
    job = make_job()
    head = owner.call("HEAD", f"{JOBS}/{job.pk}")
    got = owner.get(job.pk)
    assert (head.status, head.content) == (200, b"")
    assert head.headers["Content-Length"] == got.headers["Content-Length"] == str(len(got.content))


def test_an_unchanged_job_is_answered_304(owner):
    job = make_job()
    tag = owner.get(job.pk).headers["ETag"]
    path = f"{JOBS}/{job.pk}"
    same = owner.call("GET", path, headers={"If-None-Match": tag})
    assert (same.status, same.content) == (304, b"")
    owner.cancel(job.pk)
    changed = owner.call("GET", path, headers={"If-None-Match": tag})
    assert (changed.status, changed.body["status"]) == (200, "cancelled")


def test_answers_are_compressed_for_who_asks(owner):
    job = make_job(payload={"text": "x" * 5_000})
    answer = owner.call("GET", f"{JOBS}/{job.pk}", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.content) < 2_000
    assert answer.body["payload"]["text"] == "x" * 5_000
    assert "Authorization" in answer.headers["Vary"]
    assert "private" in answer.headers["Cache-Control"]


def test_a_read_is_one_statement_for_the_job_and_names_its_shard(owner, django_assert_num_queries):
    job = make_job(place=Place.RUNNING)
    with django_assert_num_queries(3) as captured:  # token, job, first start
        owner.get(job.pk)
    for query in captured.captured_queries[1:]:
        assert f'shard" = {job.shard} ' in query["sql"] or f"shard = {job.shard} " in query["sql"]


def test_the_idempotency_token_is_the_one_the_handler_presents(owner):
    from workers.handlers import JobContext

    for job in (make_job(request_key="k-1"), make_job()):
        publish(job.pk, job.shard)
        context = JobContext(take(job.pk), tenant="acme", stop=None)  # type: ignore[arg-type]
        shown = idempotency_token(job_detail(tenant_id=None, job_id=job.pk))
        assert shown == context.idempotency_token == owner.get(job.pk).body["idempotency_token"]


def test_a_worker_that_is_gone_does_not_hide_the_lease(owner):
    worker = make_worker()
    job = make_job(place=Place.RUNNING, worker_id=worker.pk)
    lease = job_detail(tenant_id=None, job_id=job.pk).lease
    assert lease is not None
    assert (lease.worker_host, lease.worker_pid) == (worker.host, worker.pid)
    worker.delete()
    assert owner.get(job.pk).body["lease"]["worker"] == str(lease.worker)


def test_f65_rows_written_past_validation_are_shown_all_the_same(owner):
    job = make_job(place=Place.RUNNING)
    deep = "[" * 5_000 + "]" * 5_000
    wide = "9" * 5_000  # Python reads no integer of more than 4,300 digits
    with connection.cursor() as cursor:
        cursor.execute(
            """update jobs_job set payload = %s::jsonb, result = %s::jsonb, last_error = '[1]', tags = '{"a": 1}',
                retry = '"never"', due_at = 'infinity' where id = %s""",
            [deep, wide, job.pk],
        )
        cursor.execute(
            "update jobs_jobevent set detail = %s::jsonb where job_id = %s", [deep, job.pk]
        )
        cursor.execute("delete from jobs_route")
    answer = owner.get(job.pk, "?include=events")
    assert answer.status == 200
    assert answer.body["payload"] == {"unreadable": True, "characters": 10_000}
    assert answer.body["result"] == {"unreadable": True, "characters": 5_000}
    assert (answer.body["last_error"], answer.body["tags"]) == ([1], {"a": 1})
    assert (answer.body["due_at"], answer.body["labels"]) == ("9000-01-01T00:00:00Z", None)
    assert answer.body["start_lag_seconds"] == 0
    assert answer.body["events"][0]["detail"] == {"unreadable": True, "characters": 10_000}


def test_a_job_whose_history_was_dropped_is_shown_without_it(owner):
    job = make_job()
    owner.cancel(job.pk)
    JobEvent.objects.all().delete()
    body = owner.get(job.pk, "?include=events").body
    assert (body["events"], body["started_at"]) == ([], None)
    assert body["cancel"]["outcome"] == "cancelled"


def test_a_leased_job_without_a_lease_row_is_shown(owner):
    job = make_job(place=Place.RUNNING)
    Lease.objects.all().delete()
    assert owner.get(job.pk).body["phase"] == "published"
    waiting = make_job()
    DueEntry.objects.filter(job=waiting).delete()
    assert owner.get(waiting.pk).body["phase"] == "due"
