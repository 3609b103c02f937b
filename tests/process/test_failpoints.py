"""A crash at every durable step: at each commit that the code has, a process dies before it and one dies after it."""

from __future__ import annotations

import importlib
import pkgutil
import re
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.db import transaction
from pytest_django.fixtures import Settings

import jobs
import workers
from jobs.conf import conf
from jobs.database import rows
from jobs.failpoints import BEFORE, COMMITS, COMMITTED
from jobs.models import Job, JobEvent
from jobs.queries.catalog import forget
from tests.conftest import refill_lanes_and_shards, url_of_test_database
from tests.process.crash_stories import STORIES, Fatal, go_on
from tests.process.scenes import Scene, Story
from tests.process.stories import assert_at_rest, story
from tests.support.crashes import Nursery
from tests.support.process import PROFILE, environment

# Two thirds of a flush are for the tables and signals of other apps.
pytestmark = [
    pytest.mark.process,
    pytest.mark.django_db(transaction=True, available_apps=["jobs"]),
]

MOST_STATEMENTS = 50


def commits_of_the_code() -> set[str]:
    for package in (jobs, workers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in module.name:
                importlib.import_module(module.name)
    return set(COMMITS)


TOLD = [
    pytest.param(commit, told, id=f"{commit}-{number}")
    for commit in sorted(commits_of_the_code())
    for number, told in enumerate(STORIES.get(commit, ()), start=1)
]


@pytest.fixture(scope="module")
def nursery(django_db_setup: None, django_db_blocker, tmp_path_factory) -> Iterator[Nursery]:
    log = tmp_path_factory.mktemp("nursery") / "log"
    with Nursery(env=environment(url_of_test_database()), log=log) as nursery:
        yield nursery
    with django_db_blocker.unblock():
        refill()


def refill() -> None:
    """What the flush takes away and only a migration's signal would bring back."""
    refill_lanes_and_shards(apps.get_app_config("jobs"))


def test_f03_every_commit_has_a_story():
    assert set(STORIES) == commits_of_the_code()


@pytest.mark.parametrize("moment", [BEFORE, COMMITTED])
@pytest.mark.parametrize(("commit", "told"), TOLD)
def test_f03_others_finish_the_step_of_a_process_that_died_at_its_commit(
    commit, told, moment, scene, nursery, log
):
    before = everything()
    whole = everything_after(told, scene, before)

    died = nursery.run(told.act, scene, dies_at=f"{commit}:{moment}")
    assert died == -signal.SIGKILL, "the process has come by the failpoint"
    if moment == BEFORE:
        assert everything() == before
    else:
        assert alike(everything(), before) == alike(whole, before)

    if told.repeats:
        nursery.run(told.act, scene)
    nursery.run(go_on, log)
    job = Job.objects.get(request_key=scene.it.request_key)
    assert " ".join(story(job.pk)) == (told.before if moment == BEFORE else told.after)
    assert job.attempt == job.lease_token == story(job.pk).count("leased")
    assert_at_rest(receiver_log=log)


@pytest.mark.parametrize(("commit", "told"), TOLD)
def test_f03_a_death_between_two_statements_leaves_all_or_nothing(commit, told, scene, nursery):
    before = everything()
    whole = everything_after(told, scene, before)
    for statements in range(1, MOST_STATEMENTS):
        died = nursery.run(Fatal(told.alone or told.act, statements), scene)
        if (left := everything()) != before:
            assert alike(left, before) == alike(whole, before)
            return
        assert died, "the process went through, and nothing is done"
    raise AssertionError(f"nothing is done after {MOST_STATEMENTS} statements")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "receiver.ndjson"
    log.touch()
    return log


@pytest.fixture
def scene(nursery: Nursery, settings: Settings, told: Story, log: Path) -> Iterator[Scene]:
    settings.JOBS = PROFILE
    conf.cache_clear()
    refill()
    yield told.arrange(log)
    JobEvent.objects.all().delete()


type Row = tuple[str, dict[str, Any]]


def everything() -> list[Row]:
    """Every row of every table, and the tables of the history."""
    found: list[Row] = []
    for model in apps.get_app_config("jobs").get_models():
        found += [(model.__name__, row) for row in model._default_manager.order_by("pk").values()]
    parts = rows(
        "select relname from pg_class where relname like 'jobs_jobevent%%' order by 1", {}
    )
    return found + [("partition", {"name": name}) for (name,) in parts]


def everything_after(told: Story, scene: Scene, before: list[Row]) -> list[Row]:
    """What there is when it is done without a crash; undone again."""
    with transaction.atomic():
        (told.alike or told.act)(scene)
        whole = everything()
        transaction.set_rollback(True)
    forget()
    assert alike(whole, before) != alike(before, before), "the act leaves a trace"
    return whole


# Of the process, not of its work; or drawn by lot; or the minute of a time that is compared itself.
OWN = {"pid", "clock_skew_seconds", "secret_hash", "last4", "bucket"}
# Table → its columns that hold a key, and whose.
KEYS: dict[str, dict[str, str]] = {
    model.__name__: {
        field.attname: (field.related_model or model).__name__
        for field in model._meta.concrete_fields
        if field.primary_key or field.is_relation
    }
    for model in apps.get_app_config("jobs").get_models()
}


def alike(later: list[Row], before: list[Row]) -> list[str]:
    """The rows with a sign for each time and id that was not there before: no two runs have the same."""
    keys = {key for table, row in before for key in keys_of(table, row).values()}
    known = {str(value) for _, row in before for value in row.values()}
    found = []
    for table, row in later:
        new = {name for name, key in keys_of(table, row).items() if key not in keys}
        signs = {
            name: "new key" if name in new else sign(value, known)
            for name, value in row.items()
            if name not in OWN
        }
        found.append(f"{table} {signs}")
    return sorted(found)


def keys_of(table: str, row: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    return {name: (of, row[name]) for name, of in KEYS.get(table, {}).items()}


def sign(value: Any, known: set[str]) -> Any:
    match value:
        case dict():
            return {name: sign(one, known) for name, one in value.items()}
        case UUID() | datetime() if str(value) not in known:
            return f"new {type(value).__name__}"
        case str() if re.fullmatch(
            r"\d{4}-\d\d-\d\d[T ].*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-.{12}", value
        ):
            return value if value in known else "new text"
    return value
