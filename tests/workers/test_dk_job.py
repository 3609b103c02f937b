"""dk job why: the first sentence, then the reasons; exit codes."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from django.core.management import call_command

from jobs.models import Pause
from jobs.services.pausing import pause
from tests.factories import make_job, make_tenant, make_worker

pytestmark = pytest.mark.django_db
DONE, USAGE, NOT_FOUND = 0, 2, 3


@pytest.fixture
def why(capsys):
    """Run it; exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        code = DONE
        try:
            call_command("dk", "job", "why", *map(str, words))
        except SystemExit as end:
            code = int(str(end.code))
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_the_first_line_is_the_sentence_then_come_the_reasons_with_evidence(why):
    job = make_job(request_key="order-8812")
    make_worker()
    pause(kind=Pause.Kind.TENANT, target="acme", actor="user:anna", reason="billing run")
    code, told, _ = why(job.pk)
    lines = told.splitlines()
    assert (code, lines[0].startswith(f"{job.pk} blocked: tenant acme is paused")) == (DONE, True)
    assert lines[1].split()[:2] == ["tenant_paused", "ineligible"]
    assert "by=user:anna" in lines[2]
    assert "reason=billing run" in lines[2]
    assert why("order-8812")[1].startswith(str(job.pk))
    assert why(str(job.pk)[:8])[0] == DONE


def test_one_document_for_programs(why):
    job = make_job()
    code, told, _ = why(job.pk, "--json")
    document = json.loads(told)
    assert (code, document["job"]) == (DONE, str(job.pk))
    assert document["sentence"] == document["reasons"][0]["sentence"]


def test_a_job_that_is_not_there_and_a_key_of_several_have_exit_codes_of_their_own(why):
    assert why(uuid4())[0] == NOT_FOUND
    assert why("a\ud800\x00b")[0] == NOT_FOUND
    make_job(request_key="twice")
    make_job(request_key="twice", tenant=make_tenant("globex"))
    code, told, complaint = why("twice")
    assert (code, told, complaint.startswith("2 jobs: ")) == (USAGE, "", True)


def test_f65_stored_text_moves_no_terminal(why):
    job = make_job()
    make_worker()
    pause(kind=Pause.Kind.TENANT, target="acme", actor="user:anna", reason="a\x1b[2Jb\n\x07")
    for flags in ([], ["--json"]):
        told = why(job.pk, *flags)[1]
        assert all(character.isprintable() for character in told.replace("\n", ""))
