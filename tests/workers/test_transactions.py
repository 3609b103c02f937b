"""An old transaction is told once, and by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from jobs.conf import conf
from jobs.queries.sessions import oldest_transaction
from workers.transactions import TransactionWatch

pytestmark = pytest.mark.usefixtures("committed")


@contextmanager
def session(database_url: str, name: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, application_name=name) as link:
        yield link
        link.rollback()


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (one.__dict__["pid"], one.__dict__["application"])
        for one in caplog.records
        if one.message == "transaction.old"
    ]


def of_age(settings, seconds: float) -> None:
    settings.JOBS = {**settings.JOBS, "old_transaction_seconds": seconds}
    conf.cache_clear()


def test_kf59_the_owner_of_an_old_snapshot_is_named_once(database_url, settings, caplog):
    of_age(settings, 1e-6)
    watch = TransactionWatch()
    with caplog.at_level(logging.WARNING), session(database_url, "night report") as report:
        watch.look()
        assert told(caplog) == []
        report.execute("set transaction isolation level repeatable read")
        report.execute("select count(*) from jobs_job")
        for _ in range(2):
            watch.look()
        assert told(caplog) == [(report.info.backend_pid, "night report")]
        report.rollback()
        report.execute("select pg_current_xact_id()")  # the same session, and another transaction
        for _ in range(2):
            watch.look()
        assert told(caplog) == [(report.info.backend_pid, "night report")] * 2


def test_kf59_a_young_one_and_one_without_a_snapshot_are_not(database_url, settings, caplog):
    with caplog.at_level(logging.WARNING), session(database_url, "brief") as brief:
        brief.execute("begin")
        assert oldest_transaction() is None
        brief.execute("select pg_current_xact_id()")
        oldest = oldest_transaction()
        assert oldest is not None
        assert (oldest.pid, oldest.state) == (brief.info.backend_pid, "idle in transaction")
        of_age(settings, 60.0)
        TransactionWatch().look()
    assert told(caplog) == []
