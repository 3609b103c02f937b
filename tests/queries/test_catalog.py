"""catalog: one reading of the small tables, kept for a moment, without rows that would break its readers."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from jobs.models import Handler, Lane, Pool, Route
from jobs.queries.catalog import catalog, forget
from jobs.services.requests import parse_request
from jobs.services.submit import submit_job
from tests.factories import make_handler, make_pool, make_tenant


@pytest.mark.django_db
def test_lanes_are_ordered_from_the_highest_floor_down():
    assert [lane.name for lane in catalog().lanes] == [
        "urgent",
        "high",
        "normal",
        "low",
        "background",
    ]
    assert catalog().lane_named("low") == Lane.objects.get(name="low")
    assert catalog().lane_named("express") is None


@pytest.fixture
def long_moment(monkeypatch) -> None:
    """A reading does not become old between two lines of a test."""
    monkeypatch.setattr(catalog, "__kwdefaults__", {"max_age_seconds": 3600.0})


def test_a_reading_is_kept_for_a_moment_and_read_again_on_demand(committed, long_moment):
    make_handler()
    first = catalog()
    Pool.objects.create(name="new")
    assert catalog() is first
    again = catalog(max_age_seconds=0)
    assert [pool.name for pool in again.pools.values()] == ["new"]
    assert catalog() is again
    forget()
    assert catalog() is not again


def test_what_a_transaction_has_not_committed_is_not_kept_for_others(committed, long_moment):
    kept = catalog()
    with transaction.atomic():
        make_tenant()
        inside = catalog(max_age_seconds=0)
        assert [tenant.slug for tenant in inside.tenants.values()] == ["acme"]
        transaction.set_rollback(True)
    assert catalog() is kept
    assert not kept.tenants


def test_a_transaction_that_only_reads_may_keep_its_reading(committed, long_moment):
    with transaction.atomic():
        inside = catalog(max_age_seconds=0)
    assert catalog() is inside


@pytest.mark.django_db
@pytest.mark.parametrize("labels", [None, [], 17, "region=eu", {"region": 1}, {"region": None}])
def test_a_pool_or_route_with_labels_that_are_none_is_left_out(labels):
    make_pool("good", labels={"region": "eu"})
    if labels is not None:  # the column takes no null
        Pool.objects.create(name="bad", labels=labels)
        Pool.objects.create(name="bad-too", exclusive_labels=labels)
        Route.objects.create(handler="a", labels=labels, labels_text="x")
    found = catalog(max_age_seconds=0)
    assert [pool.name for pool in found.pools.values()] == ["good"]
    assert not found.routes
    assert not found.route_ids


HUGE = "1" + "0" * 5_000
BROKEN = {
    "a number Python cannot hold": f'{{"region": {HUGE}}}',
    "deep": "[" * 5_000 + "]" * 5_000,
    "deep below a label": '{"region": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001,
}


@pytest.mark.django_db
@pytest.mark.parametrize("broken", BROKEN)
def test_f65_a_row_whose_json_cannot_be_read_is_left_out_and_the_others_stay(broken):
    make_pool("good", labels={"region": "eu"})
    make_pool("bad")
    make_pool("bad-too")
    make_handler("mail.send")
    make_handler("billing.charge")
    good = Route.objects.create(handler="a", labels={"region": "eu"}, labels_text="region=eu")
    bad = Route.objects.create(handler="b", labels_text="")
    with connection.cursor() as cursor:
        for sql in (
            "update jobs_pool set labels = %s::jsonb where name = 'bad'",
            "update jobs_pool set exclusive_labels = %s::jsonb where name = 'bad-too'",
            "update jobs_handler set retry = %s::jsonb where name = 'mail.send'",
            f"update jobs_route set labels = %s::jsonb where id = {bad.pk}",
        ):
            cursor.execute(sql, [BROKEN[broken]])
    found = catalog(max_age_seconds=0)
    assert [pool.name for pool in found.pools.values()] == ["good"]
    assert found.pools.popitem()[1].labels == {"region": "eu"}
    assert {pk: route.labels for pk, route in found.routes.items()} == {good.pk: {"region": "eu"}}
    assert found.route_ids == {("a", "region=eu"): good.pk}
    assert list(found.handlers) == ["billing.charge"]
    assert (
        found.handlers["billing.charge"].retry == Handler.objects.get(name="billing.charge").retry
    )


@pytest.mark.django_db
def test_f65_times_that_python_cannot_hold_do_not_stop_a_reading():
    make_pool("good")
    make_handler("mail.send")
    make_tenant()
    with connection.cursor() as cursor:
        cursor.execute("update jobs_pool set created_at = 'infinity'")
        cursor.execute("update jobs_handler set last_advertised_at = 'infinity'")
        cursor.execute("update jobs_tenant set created_at = '-infinity'")
    found = catalog(max_age_seconds=0)
    assert (len(found.pools), len(found.handlers), len(found.tenants)) == (1, 1, 1)


@pytest.mark.django_db
def test_f65_a_job_is_accepted_beside_a_route_and_a_pool_that_cannot_be_read():
    tenant = make_tenant()
    make_pool("good")
    make_pool("bad")
    make_handler("billing.charge")
    Route.objects.create(handler="billing.charge", labels_text="")
    with connection.cursor() as cursor:
        cursor.execute("update jobs_pool set labels = %s::jsonb where name = 'bad'", [HUGE])
        cursor.execute("update jobs_route set labels = %s::jsonb", [HUGE])
    request = parse_request({"handler": "billing.charge", "payload": 1})
    assert submit_job(tenant=tenant, request=request, actor="token:t").created
