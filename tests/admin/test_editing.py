"""Staff edit configuration in the admin: what is accepted, what gets an error at its field, and who may."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from jobs.models import ConcurrencyLimit, Handler, Lane, Pause, Reserve, Tenant
from jobs.states import Place
from tests.factories import make_handler, make_job, make_pool, make_tenant

TENANT = {"name": "Acme", "timezone": "Europe/Berlin", "weight": "3", "start_burst": "1"}
LANE = {"priority_floor": "60", "head_start_seconds": "120", "target_start_seconds": "5"}


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def address(model: type, action: str, *args: object) -> str:
    return reverse(f"admin:jobs_{model.__name__.lower()}_{action}", args=args)


def errors(answer) -> dict[str, list[str]]:
    """Field → errors of the form that came back."""
    assert answer.status_code == 200
    return dict(answer.context["adminform"].form.errors)


def test_a_tenants_shares_and_limits_are_edited_and_its_slug_is_not(root):
    tenant = make_tenant(shard_spread=2)
    given = {**TENANT, "slug": "other", "shard_spread": "9", "max_running": "8", "max_backlog": "0",
             "start_rate": "0.5"}  # fmt: skip
    assert root.post(address(Tenant, "change", tenant.pk), given).status_code == 302
    stored = Tenant.objects.get(pk=tenant.pk)
    assert (stored.slug, stored.shard_spread) == ("acme", 2)
    assert (stored.name, stored.timezone, stored.weight) == ("Acme", "Europe/Berlin", 3)
    assert (stored.max_running, stored.max_backlog, stored.start_rate) == (8, 0, 0.5)
    entry = LogEntry.objects.get()
    assert entry.user.get_username() == "root"
    assert "Weight" in entry.get_change_message()


def test_a_tenant_is_added_with_a_slug(root):
    given = {**TENANT, "slug": "globex", "shard_spread": "4"}
    assert root.post(address(Tenant, "add"), given).status_code == 302
    assert Tenant.objects.get(slug="globex").shard_spread == 4
    assert set(errors(root.post(address(Tenant, "add"), given))) == {"slug"}
    assert set(errors(root.post(address(Tenant, "add"), {**given, "slug": "A b"}))) == {"slug"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timezone", "Mars/Olympus"),
        ("timezone", "../../etc/passwd"),
        ("weight", "0"),
        ("weight", "1001"),
        ("max_running", "-1"),
        ("max_backlog", "99999999999"),
        ("start_rate", "0"),
        ("start_rate", "-1"),
        ("start_rate", "nan"),
        ("start_rate", "inf"),
        ("start_rate", "1e-300"),
        ("start_burst", "0"),
        ("name", "a\x00b"),
    ],
)
def test_a_bad_value_of_a_tenant_gets_an_error_at_its_field(root, name, value):
    tenant = make_tenant()
    answer = root.post(address(Tenant, "change", tenant.pk), {**TENANT, name: value})
    assert set(errors(answer)) == {name}
    assert Tenant.objects.values().get() == Tenant.objects.filter(pk=tenant.pk).values().get()
    assert Tenant.objects.get().weight == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_start_seconds", "nan"),
        ("head_start_seconds", "-1"),
        ("head_start_seconds", str(30 * 86_400 + 1)),
        ("head_start_seconds", "inf"),
        ("target_start_seconds", "0"),
        ("priority_floor", "101"),
        ("priority_floor", "-101"),
    ],
)
def test_a_bad_value_of_a_lane_gets_an_error_at_its_field(root, name, value):
    lane = Lane.objects.get(name="low")
    before = Lane.objects.filter(pk=lane.pk).values().get()
    answer = root.post(address(Lane, "change", lane.pk), {**LANE, name: value})
    assert set(errors(answer)) == {name}
    assert Lane.objects.filter(pk=lane.pk).values().get() == before


def test_a_lane_is_added_with_a_number_of_its_own_and_edited(root):
    numbers = set(Lane.objects.values_list("pk", flat=True))
    assert root.post(address(Lane, "add"), {**LANE, "name": "express"}).status_code == 302
    lane = Lane.objects.get(name="express")
    assert lane.pk == max(numbers) + 1
    assert set(errors(root.post(address(Lane, "add"), {**LANE, "name": "express"}))) == {"name"}
    given = {**LANE, "head_start_seconds": "0", "name": "renamed"}
    assert root.post(address(Lane, "change", lane.pk), given).status_code == 302
    lane.refresh_from_db()
    assert (lane.name, lane.head_start_seconds) == ("express", 0.0)


@pytest.mark.parametrize("place", [Place.DUE_ENTRY, Place.RUNNING, Place.FINISHED])
def test_a_lane_that_jobs_use_cannot_be_deleted(root, place):
    make_job(place=place, lane="low")
    lane = Lane.objects.get(name="low")
    page = root.get(address(Lane, "delete", lane.pk)).content.decode()
    assert "jobs that use it" in page
    root.post(address(Lane, "delete", lane.pk), {"post": "yes"})
    assert Lane.objects.filter(name="low").exists()


def test_a_lane_that_no_job_uses_can_be_deleted_but_not_the_last_one(root):
    make_job(lane="normal")
    low = Lane.objects.get(name="low")
    assert root.post(address(Lane, "delete", low.pk), {"post": "yes"}).status_code == 302
    assert not Lane.objects.filter(name="low").exists()
    last = Lane.objects.get(name="high")
    Lane.objects.exclude(pk=last.pk).delete()
    assert "the last lane" in root.get(address(Lane, "delete", last.pk)).content.decode()
    root.post(address(Lane, "delete", last.pk), {"post": "yes"})
    assert Lane.objects.exists()


def test_reserves_are_added_once_per_pool_and_lane_edited_and_deleted(root):
    pool, lane = make_pool(), Lane.objects.get(name="urgent")
    given = {"pool": str(pool.pk), "lane": str(lane.pk), "slots": "2"}
    assert root.post(address(Reserve, "add"), given).status_code == 302
    assert errors(root.post(address(Reserve, "add"), given)) != {}
    reserve = Reserve.objects.get()
    page = address(Reserve, "change", reserve.pk)
    for bad in ("0", "-1", "x", "100001"):
        assert set(errors(root.post(page, {"slots": bad}))) == {"slots"}
    assert root.post(page, {"slots": "5", "pool": "999"}).status_code == 302
    reserve.refresh_from_db()
    assert (reserve.pool_id, reserve.slots) == (pool.pk, 5)
    root.post(address(Reserve, "delete", reserve.pk), {"post": "yes"})
    assert not Reserve.objects.exists()


def test_limits_of_concurrency_keys_are_edited(root):
    given = {"tenant": str(make_tenant().pk), "key": "db-7", "slots": "3"}
    assert root.post(address(ConcurrencyLimit, "add"), given).status_code == 302
    assert errors(root.post(address(ConcurrencyLimit, "add"), given)) != {}
    limit = ConcurrencyLimit.objects.get()
    page = address(ConcurrencyLimit, "change", limit.pk)
    assert set(errors(root.post(page, {"slots": "1001"}))) == {"slots"}
    assert root.post(page, {"slots": "4"}).status_code == 302
    assert ConcurrencyLimit.objects.get().slots == 4


def test_of_a_handler_only_its_rate_is_edited(root):
    make_handler()
    page = address(Handler, "change", "billing.charge")
    given = {"start_rate": "2.5", "start_burst": "4", "max_attempts": "99"}
    assert root.post(page, given).status_code == 302
    handler = Handler.objects.get()
    assert (handler.start_rate, handler.start_burst, handler.max_attempts) == (2.5, 4, 3)
    assert set(errors(root.post(page, {**given, "start_rate": "0"}))) == {"start_rate"}
    assert root.get(address(Handler, "add")).status_code == 403
    assert root.post(page, {"start_rate": "", "start_burst": "1"}).status_code == 302
    assert Handler.objects.get().start_rate is None


def test_a_pause_is_added_with_a_reason_under_the_users_name_and_deleted_to_resume(root):
    given = {"kind": "lane", "target": "low", "reason": "billing run"}
    page = address(Pause, "add")
    assert set(errors(root.post(page, {**given, "reason": " "}))) == {"reason"}
    assert set(errors(root.post(page, {**given, "target": "nothing"}))) == {"target"}
    assert set(errors(root.post(page, {**given, "kind": "schedule"}))) == {"kind"}
    past = {"resume_at_0": "2020-01-01", "resume_at_1": "00:00:00"}
    assert set(errors(root.post(page, {**given, **past}))) == {"resume_at"}
    assert not Pause.objects.exists()
    assert root.post(page, {**given, "paused_by": "user:mallory"}).status_code == 302
    assert root.post(page, {**given, "reason": "longer"}).status_code == 302
    pause = Pause.objects.get()
    assert (pause.kind, pause.target, pause.reason) == ("lane", "low", "longer")
    assert pause.paused_by == "user:root"
    assert root.post(address(Pause, "change", pause.pk), given).status_code == 403
    root.post(address(Pause, "delete", pause.pk), {"post": "yes"})
    assert not Pause.objects.exists()


@pytest.mark.parametrize("model", [Tenant, Lane, Reserve, ConcurrencyLimit, Handler, Pause])
def test_s09_staff_who_may_only_look_change_nothing(root, model):
    make_handler()
    pool, lane, tenant = make_pool(), Lane.objects.get(name="low"), make_tenant()
    Reserve.objects.create(pool=pool, lane=lane, slots=1)
    ConcurrencyLimit.objects.create(tenant=tenant, key="k", slots=1)
    Pause.objects.create(kind="lane", target="low", reason="x", paused_by="user:anna")
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename=f"view_{model.__name__.lower()}"))
    client = Client()
    client.force_login(user)
    before = list(model.objects.order_by("pk").values())
    key = model.objects.order_by("pk").first().pk
    page = client.get(address(model, "change", key))
    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()
    given = {**TENANT, **LANE, "slots": "9", "start_rate": "9"}
    for action, args in (("add", ()), ("change", (key,)), ("delete", (key,))):
        answer = client.post(address(model, action, *args), {**given, "post": "yes"})
        assert answer.status_code == 403
    assert list(model.objects.order_by("pk").values()) == before
