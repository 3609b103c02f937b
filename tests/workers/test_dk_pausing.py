"""dk tenant, lane, pool, handler: pause and resume; dk pause list."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.core.management import CommandError

from jobs.clock import database_now
from jobs.models import Pause
from tests.factories import make_handler, make_pool, make_tenant
from tests.support.commands import caller

pytestmark = pytest.mark.django_db
DONE, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 4
TARGETS = {"tenant": "acme", "lane": "urgent", "pool": "default", "handler": "billing.charge"}


@pytest.fixture
def dk(capsys):
    """Run it; exit code, standard output and standard error."""
    make_tenant()
    make_pool()
    make_handler()
    return caller(capsys, "dk")


@pytest.mark.parametrize("kind", TARGETS)
def test_pause_and_resume_say_what_was_before_and_what_is_now(dk, kind):
    name = TARGETS[kind]
    code, told, _ = dk(kind, "pause", name, "--reason", "billing run")
    assert (code, told.startswith(f"{kind} {name}: going on → paused")) == (DONE, True)
    assert "what was published before still runs" in told
    stored = Pause.objects.get()
    assert (stored.kind, stored.target, stored.reason) == (kind, name, "billing run")
    assert stored.paused_by.startswith("command:")
    code, told, _ = dk(kind, "pause", name, "--reason", "longer")
    assert (code, "paused already" in told) == (DONE, True)
    code, told, _ = dk("pause", "list")
    assert (code, f"{kind} {name}" in told, "longer" in told) == (DONE, True, True)
    assert dk(kind, "resume", name)[:2] == (DONE, f"{kind} {name}: paused → going on\n")
    assert dk("pause", "list")[:2] == (DONE, "nothing is paused\n")


def test_a_pause_may_have_an_end(dk):
    dk("lane", "pause", "low", "--reason", "x", "--for", "3600")
    end = Pause.objects.get().resume_at
    assert end is not None
    assert 3000 < (end - database_now()).total_seconds() <= 3600
    dk("lane", "pause", "low", "--reason", "x", "--until", "2099-12-01T00:00:00+01:00")
    assert Pause.objects.get().resume_at == datetime(2099, 11, 30, 23, tzinfo=UTC)
    code, _, told = dk("lane", "pause", "low", "--reason", "x", "--until", "2020-01-01T00:00:00Z")
    assert (code, "future" in told) == (USAGE, True)


def test_one_document_for_programs(dk):
    code, told, _ = dk("lane", "pause", "low", "--reason", "x", "--json")
    document = json.loads(told)
    assert (code, document["already"], document["paused"]["target"]) == (DONE, False, "low")
    (listed,) = json.loads(dk("pause", "list", "--json")[1])["pauses"]
    assert listed == document["paused"]
    assert json.loads(dk("lane", "resume", "low", "--json")[1])["resumed"] == listed


def test_what_cannot_be_done_has_an_exit_code_of_its_own(dk):
    assert dk("lane", "pause", "nothing", "--reason", "x")[0] == NOT_FOUND
    assert dk("lane", "resume", "low")[0] == REFUSED
    assert dk("lane", "pause", "low", "--reason", " ")[0] == USAGE
    assert not Pause.objects.exists()


@pytest.mark.parametrize(
    "flags", [[], ["--reason", "x", "--for", "0"], ["--reason", "x", "--for", "nan"],
              ["--reason", "x", "--until", "tomorrow"],
              ["--reason", "x", "--for", "5", "--until", "2099-01-01T00:00:00Z"]],
)  # fmt: skip
def test_faulty_flags_are_refused(dk, flags):
    with pytest.raises(CommandError):
        dk("lane", "pause", "low", *flags)
    assert not Pause.objects.exists()


def test_f65_a_stored_reason_moves_no_terminal(dk):
    Pause.objects.create(
        kind="lane", target="low", reason="a\x1b[2Jb\n\x07", paused_by="user:anna"
    )
    for flags in ([], ["--json"]):
        told = dk("pause", "list", *flags)[1]
        assert all(character.isprintable() for character in told.replace("\n", "", 1))
