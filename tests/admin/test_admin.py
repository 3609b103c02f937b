"""The admin shows every table; jobs and what belongs to them nobody changes there."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.admin.editable import EditableAdmin
from jobs.admin.read_only import COUNT_CAP, ReadOnlyAdmin
from jobs.models import (
    ApiToken,
    Calendar,
    ConcurrencyLimit,
    DeadLetter,
    DueEntry,
    Job,
    JobEvent,
    Lane,
    Lease,
    Pause,
    Pool,
    Reserve,
    SchedulerNode,
    StartBucket,
    Tenant,
)
from jobs.policies.tokens import mint
from jobs.states import Place
from tests.console.rows import analyze, clone
from tests.factories import make_job, make_pool, make_schedule, make_tenant, make_worker

MODELS = sorted(apps.get_app_config("jobs").get_models(), key=lambda model: model.__name__)
EDITED = {
    "Calendar",
    "ConcurrencyLimit",
    "Handler",
    "Lane",
    "Pause",
    "Reserve",
    "Schedule",
    "Tenant",
}
READ_ONLY = [model for model in MODELS if model.__name__ not in EDITED]


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def rows(db: None) -> dict[str, Job]:
    """At least one row of every model."""
    token = mint("test")
    ApiToken.objects.create(
        id=token.id,
        tenant=make_tenant(),
        name="ci",
        secret_hash=token.secret_hash,
        last4=token.last4,
    )
    make_worker()
    SchedulerNode.objects.create(id=uuid4(), host="h", pid=1, expires_at="2026-12-01T00:00:00Z")
    ConcurrencyLimit.objects.create(tenant=make_tenant(), key="db-7", slots=2)
    Reserve.objects.create(pool=make_pool(), lane=Lane.objects.get(name="urgent"), slots=1)
    Pause.objects.create(kind="lane", target="low", reason="billing run", paused_by="user:anna")
    StartBucket.objects.create(scope="tenant:7", tokens=1.0, filled_at="2026-12-01T00:00:00Z")
    Calendar.objects.create(tenant=make_tenant(), name="works")
    make_schedule()
    return {place.name: make_job(place=place) for place in
            (Place.DUE_ENTRY, Place.RUNNING, Place.DEAD_LETTER, Place.FINISHED)}  # fmt: skip


def address(model: type, action: str, *args: object) -> str:
    return reverse(f"admin:jobs_{model.__name__.lower()}_{action}", args=args)


def searched(root: Client, model: type, term: str) -> list[str]:
    answer = root.get(address(model, "changelist"), {"q": term})
    assert answer.status_code == 200
    return [str(row.pk) for row in answer.context["cl"].result_list]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_there_to_look_at(root: Client, rows: dict[str, Job], model: type) -> None:
    assert isinstance(admin.site.get_model_admin(model), ReadOnlyAdmin)
    answer = root.get(address(model, "changelist"))
    assert answer.status_code == 200
    listed = answer.context["cl"].result_list
    assert listed
    if model is JobEvent:
        return  # a list only
    page = root.get(address(model, "change", listed[0].pk))
    assert page.status_code == 200
    has_fields = model.__name__ in EDITED - {"Pause"}
    assert ('name="_save"' in page.content.decode()) is has_fields


def test_only_configuration_is_edited() -> None:
    edited = {
        model.__name__
        for model in MODELS
        if isinstance(admin.site.get_model_admin(model), EditableAdmin)
    }
    assert edited == EDITED


@pytest.mark.parametrize("model", READ_ONLY, ids=lambda model: model.__name__)
def test_nothing_can_be_added_changed_or_deleted(
    root: Client, rows: dict[str, Job], model: type
) -> None:
    before = list(model.objects.order_by("pk").values())  # type: ignore[attr-defined]
    key = before[0][model._meta.pk.attname]  # type: ignore[attr-defined]
    assert root.get(address(model, "add")).status_code == 403
    assert root.post(address(model, "add"), {}).status_code == 403
    assert root.post(
        address(model, "change", key), {"name": "x", "status": "dead"}
    ).status_code in (302, 403)
    assert root.post(address(model, "delete", key), {"post": "yes"}).status_code in (302, 403)
    words = {"action": "delete_selected", "_selected_action": [key], "post": "yes"}
    root.post(address(model, "changelist"), words)
    assert list(model.objects.order_by("pk").values()) == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_staff_without_the_permission_sees_nothing(rows: dict[str, Job], model: type) -> None:
    user = User.objects.create_user("anna", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get(address(model, "changelist")).status_code == 403
    name = f"view_{model.__name__.lower()}"
    user.user_permissions.add(Permission.objects.get(codename=name))
    assert client.get(address(model, "changelist")).status_code == 200


def test_the_hash_of_a_token_is_never_shown(root: Client, rows: dict[str, Job]) -> None:
    token = ApiToken.objects.get()
    for page in (address(ApiToken, "changelist"), address(ApiToken, "change", token.pk)):
        with CaptureQueriesContext(connection) as queries:
            text = root.get(page).content.decode()
        assert "secret" not in text.lower()
        assert bytes(token.secret_hash).hex() not in text
        assert not any("secret_hash" in query["sql"] for query in queries)


def test_secrets_in_payload_and_errors_are_masked(root: Client) -> None:
    job = make_job(payload={"card": "canary-1", "rows": [{"apiToken": "canary-2"}], "amount": 7})
    Job.objects.filter(pk=job.pk).update(last_error={"message": "password=canary-3"})
    JobEvent.objects.update(detail={"error": {"message": "token: canary-4"}})
    page = root.get(address(Job, "change", job.pk)).content.decode()
    assert "amount" in page
    assert "***" in page
    assert "canary" not in page


def test_a_job_page_shows_its_newest_events_and_leads_to_the_console(root: Client) -> None:
    job = make_job(place=Place.DEAD_LETTER)
    page = root.get(address(Job, "change", job.pk)).content.decode()
    for words in ("created", "leased", "started", "dead", "token:test0001"):
        assert words in page
    assert reverse("console:job", args=[job.pk]) in page


@pytest.mark.parametrize(
    "term", ["x", "'", "%", "\\", "<b>", "0" * 4000, "-", '"', "a b c", "١٢٣", "1" * 40]
)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_search_for_anything_is_no_error(
    root: Client, rows: dict[str, Job], model: type, term: str
) -> None:
    if not admin.site.get_model_admin(model).search_fields:
        return
    assert searched(root, model, term) == []


def test_a_search_finds_exact_matches_only(root: Client) -> None:
    job = make_job(request_key="invoice-1")
    other = make_job(place=Place.DEAD_LETTER)
    assert searched(root, Job, str(job.pk)) == [str(job.pk)]
    assert searched(root, Job, "invoice-1") == [str(job.pk)]
    assert searched(root, Job, "invoice") == []
    assert searched(root, DueEntry, str(job.pk)) == [str(job.pk)]
    assert len(searched(root, JobEvent, str(other.pk))) == 4
    assert searched(root, JobEvent, "billing") == []
    assert searched(root, Tenant, "acme") == [str(make_tenant().pk)]
    assert searched(root, Tenant, "acm") == []


@pytest.mark.parametrize("key", ["x", "0", str(UUID(int=0)), "9" * 30, "_00", "%"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_an_unknown_row_is_no_error(root: Client, model: type, key: str) -> None:
    if (model, key) == (apps.get_model("jobs", "Shard"), "0"):
        return  # there is a shard 0
    assert root.get(address(model, "change", key)).status_code == 302


@pytest.mark.parametrize(
    "query", ["status=dead", "handler__icontains=x", "payload__a=1", "o=3", "p=9999", "all="]
)
def test_addresses_cannot_filter_or_sort_by_columns_without_an_index(
    root: Client, query: str
) -> None:
    make_job()
    with CaptureQueriesContext(connection) as queries:
        answer = root.get(f"{address(Job, 'changelist')}?{query}")
    assert answer.status_code in (200, 302, 400)
    for sql in queries:
        assert "icontains" not in sql["sql"].lower()
        assert 'order by "jobs_job"."handler"' not in sql["sql"].lower()
        assert '"status" =' not in sql["sql"]


def test_rows_whose_neighbours_are_missing_stay_in_the_list(root: Client) -> None:
    job = make_job()
    Job.objects.update(tenant=987654, lane=99)
    DueEntry.objects.update(tenant=987654, route=987654)
    page = root.get(address(Job, "changelist")).content.decode()
    assert str(job.pk) in page
    assert "#987654 (missing)" in page
    assert str(job.pk) in root.get(address(DueEntry, "changelist")).content.decode()
    Lane.objects.all().delete()
    Pool.objects.all().delete()
    assert root.get(address(Job, "change", job.pk)).status_code == 200


def test_kf50_lists_count_to_a_cap_and_read_no_payload(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.admin.read_only.COUNT_CAP", 150)
    job = make_job()
    clone(job, 400)
    with CaptureQueriesContext(connection) as queries:
        answer = root.get(address(Job, "changelist"))
    assert answer.context["cl"].result_count == 150
    assert len(answer.context["cl"].result_list) == 100
    jobs_read = [query["sql"] for query in queries if "jobs_job" in query["sql"]]
    assert len(jobs_read) == 2  # the capped count, the page with its neighbours
    for sql in jobs_read:
        assert "LIMIT" in sql
        assert "payload" not in sql
        assert '"result"' not in sql


def test_kf50_first_page_and_searches_use_an_index(root: Client) -> None:
    job = make_job(request_key="some-key")
    clone(job, 20_000, waiting=True)
    analyze()
    assert COUNT_CAP <= 10_000
    for term in ("", str(job.pk), str(job.pk)[:8], "some-key", "nothing"):
        with CaptureQueriesContext(connection) as queries:
            assert (
                root.get(address(Job, "changelist"), {"q": term} if term else {}).status_code
                == 200
            )
        for query in queries:
            sql = query["sql"]
            if "jobs_job" not in sql or ("COUNT(" in sql and not term):
                continue  # the capped count of everything reads that many rows and stops
            with connection.cursor() as cursor:
                cursor.execute("explain " + sql)
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on jobs_job " not in plan + " ", f"{term}\n{sql}\n{plan}"


def test_f65_events_and_times_that_python_cannot_hold_are_shown_within_bounds(
    root: Client, rows: dict[str, Job]
) -> None:
    detail = '{"reason": [1], "cause": 5, "error": 7, "cancel": 1%s}' % ("0" * 5_000)
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_jobevent set at = 'infinity', due_at = '-infinity', detail = %s::jsonb",
            [detail],
        )
        cursor.execute("update jobs_job set due_at = '-infinity', seq = 0")
        cursor.execute("update jobs_dueentry set due_at = 'infinity'")
        cursor.execute("update jobs_lease set due_at = 'infinity', expires_at = 'infinity'")
        cursor.execute("update jobs_deadletter set died_at = 'infinity', due_at = '-infinity'")
    for job in rows.values():
        page = root.get(address(Job, "change", job.pk))
        assert page.status_code == 200
        text = page.content.decode()
        assert "1000-01-01 00:00:00 UTC" in text  # the job's due time
        assert "9000-01-01 00:00:00" in text  # its events' time
        assert "created" in text
        console = root.get(reverse("console:job", args=[job.pk]))
        assert console.status_code == 200
        assert "cannot be read" not in console.content.decode()
    for model in (Job, DueEntry, Lease, JobEvent, DeadLetter):
        assert root.get(address(model, "changelist")).status_code == 200
