"""Wake-up hints: heard at once, and again after the connection was lost; nothing is ever raised to the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import psycopg
import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from jobs.conf import conf
from jobs.database import notify, rows
from tests.workers.stage import PATIENCE_SECONDS, end_threads, until
from workers.listen import Listener

CHANNEL = "duekeeper_workers"
# Its last statement is the LISTEN, or a ping.
LISTENERS = """
select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
    and (query ilike 'listen %%' or query = 'show transaction_read_only')"""

pytestmark = pytest.mark.usefixtures("committed")


class Ear:
    """Collects what a listener hears."""

    def __init__(self) -> None:
        self.words: SimpleQueue[str] = SimpleQueue()
        self.listener = Listener(CHANNEL, self.words.put)

    def hears(self, word: str) -> bool:
        """True once the next word is this one."""
        try:
            return self.words.get(timeout=PATIENCE_SECONDS) == word
        except Empty:
            return False


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.listener.stop()
    end_threads()


def pids() -> list[int]:
    return [pid for (pid,) in rows(LISTENERS, {})]


def test_a_new_connection_counts_as_a_hint_for_it_may_have_missed_some(ear):
    ear.listener.start()
    assert ear.hears("")


def test_each_notification_of_its_channel_is_heard_and_no_other(ear):
    ear.listener.start()
    assert ear.hears("")
    notify("duekeeper_due", "not for workers")
    notify(CHANNEL, "pool:1")
    notify(CHANNEL, "cancel:7")
    assert ear.hears("pool:1")
    assert ear.hears("cancel:7")


def test_kf54_a_terminated_listener_comes_back_and_says_so(ear, caplog):
    ear.listener.start()
    assert ear.hears("")
    notify(CHANNEL, "pool:1")
    assert ear.hears("pool:1")
    (pid,) = until(pids, "the listener's session is seen")
    with caplog.at_level(logging.WARNING):
        rows("select pg_terminate_backend(%(pid)s)", {"pid": pid})
        assert ear.hears("")
    # The old session has told its end before it leaves the list.
    until(lambda: pid not in pids(), "the old session is gone")
    notify(CHANNEL, "pool:2")
    assert ear.hears("pool:2")
    assert [one.message for one in caplog.records].count("notify.lost") == 1


def test_a_database_that_is_away_at_the_start_is_tried_again(ear, monkeypatch):
    connect: Callable[..., psycopg.Connection] = psycopg.connect
    tries = []

    def refuse_twice(*args, **kwargs):
        tries.append(kwargs)
        if len(tries) < 3:
            raise psycopg.OperationalError("connection refused")
        return connect(*args, **kwargs)

    monkeypatch.setattr(psycopg, "connect", refuse_twice)
    ear.listener.start()
    assert ear.hears("")
    assert len(tries) == 3
    notify(CHANNEL, "pool:1")
    assert ear.hears("pool:1")


def test_hints_can_come_over_a_direct_url_of_their_own(ear, settings: Settings, monkeypatch):
    """A pooler in transaction mode cannot carry LISTEN."""
    given = connection.get_connection_params()
    url = f"dbname={given['dbname']} host={given.get('host', '')} user={given.get('user', '')}"
    if given.get("port"):
        url += f" port={given['port']}"
    if given.get("password"):
        url += f" password={given['password']}"
    settings.JOBS = {"listen_url": url}
    conf.cache_clear()
    asked = []
    connect: Callable[..., psycopg.Connection] = psycopg.connect

    def remember(*args, **kwargs):
        asked.append(args)
        return connect(*args, **kwargs)

    monkeypatch.setattr(psycopg, "connect", remember)
    ear.listener.start()
    assert ear.hears("")
    assert asked == [(url,)]
    notify(CHANNEL, "pool:1")
    assert ear.hears("pool:1")


def test_stop_ends_the_thread_and_its_session(ear):
    ear.listener.start()
    assert ear.hears("")
    until(pids, "the listener's session is seen")
    ear.listener.stop()
    end_threads()
    until(lambda: not pids(), "its session is gone")


def test_f38_a_server_that_takes_no_writes_any_more_is_left(ear):
    with ear.listener._connect() as link:
        ear.listener._ping(link)
        link.execute("set default_transaction_read_only = on")
        with pytest.raises(psycopg.OperationalError, match="takes no writes"):
            ear.listener._ping(link)
