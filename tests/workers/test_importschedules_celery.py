"""django-celery-beat's tables: rows as they come from sqlite and PostgreSQL, and what beat makes of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from workers.importing.celery_beat import read_rows, unwrapped
from workers.importing.celery_tables import read_tables
from workers.importing.entries import Context, Entry, Kind, Unreadable, Zone

NOW = datetime(2027, 1, 1, 12, 0, 0, 500, tzinfo=UTC)
CONTEXT = Context(Zone("UTC", "a test"), NOW)
TABLES = (
    "crontabschedule (id integer primary key, minute text, hour text, day_of_week text, day_of_month text,"
    " month_of_year text, timezone text)",
    "intervalschedule (id integer primary key, every integer, period text)",
    "solarschedule (id integer primary key, event text)",
    "clockedschedule (id integer primary key, clocked_time {time})",
    "periodictask (id integer primary key, name text, task text, args text, kwargs text, queue text, exchange text,"
    " routing_key text, expires {time}, enabled boolean, last_run_at {time}, crontab_id integer,"
    " interval_id integer, solar_id integer, clocked_id integer, one_off boolean, start_time {time},"
    " priority integer, expire_seconds integer)",
)
ROWS = (
    "crontabschedule values (1, '30', '2', '*', '*', '*', 'Europe/Berlin')",
    "crontabschedule values (2, '0', '9', 'mon', '1-7', '*', 'UTC')",
    "crontabschedule values (3, '0', '9', 'mon', '13', '*', 'UTC')",
    "intervalschedule values (1, 2, 'days')",
    "intervalschedule values (2, 500, 'microseconds')",
    "solarschedule values (1, 'sunset')",
    "clockedschedule values (1, '2027-05-01 00:00:00')",
    "periodictask (id, name, task, args, kwargs, enabled, one_off, crontab_id, queue) values"
    " (1, 'nightly', 'shop.report', '[1]', '{{\"day\": \"x\"}}', true, false, 1, 'slow'),"
    " (2, 'first monday', 'shop.bill', '[]', '{{}}', true, false, 2, null),"
    " (3, 'friday 13', 'shop.bill', '[]', '{{}}', false, true, 3, null)",
    "periodictask (id, name, task, args, kwargs, enabled, one_off, interval_id, last_run_at, expire_seconds) values"
    " (4, 'every two days', 'shop.sync', '[]', '{{}}', true, false, 1, '2026-12-31 07:00:01.5', 90),"
    " (5, 'too often', 'shop.sync', '[]', '{{}}', true, false, 2, null, null)",
    "periodictask (id, name, task, args, kwargs, enabled, one_off, solar_id) values"
    " (6, 'evening', 'shop.lamp', '[]', '{{}}', true, false, 1)",
    "periodictask (id, name, task, args, kwargs, enabled, one_off, clocked_id) values"
    " (7, 'once', 'shop.lamp', '[]', '{{}}', true, true, 1)",
    "periodictask (id, name, task, args, kwargs, enabled, one_off) values"
    " (8, 'nothing', 'shop.lamp', '[]', '{{}}', true, false),"
    " (9, 'bad', 'celery.backend_cleanup', '{{', '{{}}', true, false)",
)


def fill(execute: Callable[[str], Any], time: str) -> None:
    for table in TABLES:
        execute("create table django_celery_beat_" + table.format(time=time))
    for row in ROWS:
        execute("insert into django_celery_beat_" + row.format())


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    file = tmp_path / "beat db.sqlite3"
    with closing(sqlite3.connect(file)) as link:
        fill(link.execute, "datetime")
        link.commit()
    return f"sqlite:///{file}"


@pytest.fixture
def postgresql(committed: None) -> Iterator[str]:
    """Their tables in a schema of their own, gone afterwards."""
    given = connection.settings_dict
    url = psycopg.conninfo.make_conninfo(
        dbname=given["NAME"],
        user=given["USER"] or None,
        password=given["PASSWORD"] or None,
        host=given["HOST"] or None,
        port=given["PORT"] or None,
    )
    parts = psycopg.conninfo.conninfo_to_dict(url)
    query = "&".join(f"{name}={value}" for name, value in parts.items() if name != "dbname")
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("create schema beat")
        try:
            link.execute("set search_path to beat")
            fill(link.execute, "timestamptz")
            yield f"postgresql:///{parts['dbname']}?{query}&options=-csearch_path%3Dbeat%20-ctimezone%3DUTC"
        finally:
            link.execute("drop schema beat cascade")


def entries(url: str) -> dict[str, Entry]:
    return {one.key: one for one in read_rows(read_tables(url), context=CONTEXT).entries}


def test_rows_of_sqlite_become_entries(sqlite: str) -> None:
    found = entries(sqlite)
    nightly = found["nightly"]
    assert (nightly.rule, nightly.zone.key) == ("30 2 * * *", "Europe/Berlin")
    assert nightly.recurrence == {"cron": "30 2 * * *"}
    assert nightly.facts["args"] == [1]
    assert nightly.facts["kwargs"] == {"day": "x"}
    assert {"dst", "missed_runs", "routing", "retries"} == {one.code for one in nightly.findings}
    assert not nightly.paused


def test_both_day_fields_must_match_in_celery(sqlite: str) -> None:
    found = entries(sqlite)
    assert found["first monday"].recurrence["cron"] == "0 9 * * mon#1".replace("mon", "1")
    assert {(one.code, one.kind) for one in found["first monday"].findings} >= {
        ("day_rule", Kind.KEPT)
    }
    friday = found["friday 13"]
    assert [one.code for one in friday.findings if one.other_days] == ["day_rule"]
    assert friday.paused
    assert friday.fields["max_runs"] == 1


def test_days_of_an_interval_are_24_hours_counted_from_the_last_run(sqlite: str) -> None:
    entry = entries(sqlite)["every two days"]
    assert entry.recurrence == {"every": "48h", "anchor": "2026-12-31T07:00:01Z"}
    assert entry.fields == {"misfire": "skip", "grace_seconds": 90}
    assert [one.code for one in entry.findings] == ["anchor", "expires", "retries"]


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("0 22-5 * * *", "0 22,23,0,1,2,3,4,5 * * *"),
        ("0 22-5/3 * * *", "0 22,1,4 * * *"),
        ("50-10/20 * * * *", "50,10 * * * *"),
        ("0 9 * nov-feb *", "0 9 * 11,12,1,2 *"),
        ("0 9 30-2 * *", "0 9 30,31,1,2 * *"),
        ("0 9 * * friday,5-1", "0 9 * * fri,5,6,0,1"),
        ("0 9 * * 7-1", "0 9 * * 7-1"),  # celery knows no 7
        ("0 9 1-7 * mon-fri", "0 9 1-7 * mon-fri"),
    ],
)
def test_ranges_past_the_top_are_celerys_own(text: str, here: str) -> None:
    assert unwrapped(text) == here


def test_what_has_no_rule_here_is_refused_by_name(sqlite: str) -> None:
    refused = {name: one.refusal.code for name, one in entries(sqlite).items() if one.refusal}
    assert refused == {
        "too often": "sub_second",
        "evening": "solar",
        "once": "one_off",
        "nothing": "required",
        "bad": "malformed_json",
    }


@pytest.mark.django_db(transaction=True)
def test_postgresql_gives_the_same_as_sqlite(sqlite: str, postgresql: str) -> None:
    assert entries(postgresql) == entries(sqlite)


@pytest.mark.django_db(transaction=True)
def test_nothing_can_be_written_through_the_connection(postgresql: str) -> None:
    with psycopg.connect(postgresql, autocommit=True) as link:
        link.execute("create table seen (n integer)")
        link.execute(
            "create function note() returns integer language sql volatile"
            " as 'insert into beat.seen values (1) returning n'"
        )
        link.execute("alter table django_celery_beat_periodictask rename to tasks")
        link.execute(
            "create view django_celery_beat_periodictask as select *, note() as noted from tasks"
        )
        with pytest.raises(Unreadable, match="ReadOnlySqlTransaction"):
            read_tables(postgresql)
        assert link.execute("select count(*) from seen").fetchone() == (0,)


def test_an_older_version_has_fewer_tables_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "old"
    with closing(sqlite3.connect(file)) as link:
        link.execute(
            "create table django_celery_beat_periodictask (id, name, task, args, kwargs, enabled, interval_id)"
        )
        link.execute("create table django_celery_beat_intervalschedule (id, every, period)")
        link.execute("insert into django_celery_beat_intervalschedule values (1, 30, 'seconds')")
        link.execute(
            "insert into django_celery_beat_periodictask values (1, 'a', 't', '[]', '{}', 1, 1)"
        )
        link.commit()
    assert entries(f"sqlite:///{file}")["a"].recurrence["every"] == "30s"


def test_a_file_is_only_read(sqlite: str) -> None:
    file = Path(sqlite.removeprefix("sqlite:///"))
    before = file.read_bytes()
    file.chmod(0o400)
    entries(sqlite)
    assert file.read_bytes() == before
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@db/beat",
        "postgresql://me:secret@127.0.0.1:1/beat",
        "sqlite:///nowhere/secret",
        "secret",
        "postgresql://[secret",
    ],
)
def test_a_database_that_cannot_be_read_is_told_without_its_url(url: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_tables(url)
    assert "secret" not in str(refused.value)


def test_a_database_of_something_else_is_told(tmp_path: Path) -> None:
    file = tmp_path / "other"
    with closing(sqlite3.connect(file)) as link:
        link.execute("create table x (y)")
    with pytest.raises(Unreadable, match="no tables"):
        read_tables(f"sqlite:///{file}")
    file.write_text("no database at all, but long enough to look like one" * 100)
    with pytest.raises(Unreadable, match="cannot be read"):
        read_tables(f"sqlite:///{file}")
