"""What one test leaves in the database does not reach the next, committed rows included."""

from __future__ import annotations

import os

import psycopg
import pytest
from django.db import connection

from jobs.models import Lane, Shard, Tenant


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", [1, 2])
def test_lanes_and_shards_survive_a_test_with_real_commits_and_its_rows_do_not(turn):
    assert not Tenant.objects.filter(slug="committed").exists()
    Tenant.objects.create(slug="committed", name="Committed")
    assert Lane.objects.count() == 5
    assert Shard.objects.count() > 0


def test_database_url_leads_another_process_to_the_database_of_this_test(database_url):
    Tenant.objects.create(slug="committed", name="Committed")
    with psycopg.connect(database_url) as other:
        assert other.info.dbname == connection.settings_dict["NAME"]
        assert str(os.getpid()) in other.info.dbname
        found = other.execute("select name from jobs_tenant where slug = 'committed'").fetchone()
    assert found == ("Committed",)
