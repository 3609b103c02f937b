"""catalog: one reading of the small tables, kept for a moment, without rows that would break its readers."""

from __future__ import annotations

import pytest
from django.db import transaction

from jobs.models import Lane, Pool, Route
from jobs.queries.catalog import catalog, forget
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


def test_a_reading_is_kept_for_a_moment_and_read_again_on_demand(committed):
    make_handler()
    first = catalog()
    Pool.objects.create(name="new")
    assert catalog() is first
    again = catalog(max_age_seconds=0)
    assert [pool.name for pool in again.pools.values()] == ["new"]
    assert catalog() is again
    forget()
    assert catalog() is not again


def test_what_a_transaction_has_not_committed_is_not_kept_for_others(committed):
    kept = catalog()
    with transaction.atomic():
        make_tenant()
        inside = catalog(max_age_seconds=0)
        assert [tenant.slug for tenant in inside.tenants.values()] == ["acme"]
        transaction.set_rollback(True)
    assert catalog() is kept
    assert not kept.tenants


def test_a_transaction_that_only_reads_may_keep_its_reading(committed):
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
