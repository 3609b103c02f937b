"""dk history verify: flags, exit codes, and an answer for people and for programs."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Job, JobEvent, Occurrence, ScheduleVersion
from jobs.states import Place
from tests.console.test_poison import ODD_TEXT
from tests.factories import make_job, make_schedule
from tests.support.receivers import ApplyOnce, Fencing, Naive

pytestmark = pytest.mark.usefixtures("committed")
CLEAN, NOT_FOUND, UNHEALTHY = 0, 3, 7


@pytest.fixture
def job() -> Job:
    return make_job(place=Place.FINISHED)


@pytest.fixture
def dk(capsys):
    """Run it; its exit code and what it printed."""

    def run(*flags: object) -> tuple[int, str]:
        code = CLEAN
        try:
            call_command("dk", "history", "verify", *map(str, flags))
        except SystemExit as end:
            code = int(str(end.code))
        return code, capsys.readouterr().out

    return run


def spoil(job: Job) -> None:
    JobEvent.objects.filter(job=job, kind="succeeded").update(token=9)


def test_a_clean_history_says_so(dk, job):
    assert dk() == (CLEAN, "1 jobs, 4 events\nno violations\n")


def test_a_violation_comes_with_the_events_of_the_first_offending_job_in_order(dk, job):
    spoil(job)
    code, told = dk()
    lines = told.splitlines()
    assert code == UNHEALTHY
    assert lines[1] == "VIOLATIONS  I4: 1"
    assert lines[2].startswith(f"I4  job {job.pk}  event 4")
    assert lines[3] == f"events of job {job.pk}:"
    assert [line.split()[0] for line in lines[4:]] == ["1", "2", "3", "4"]
    assert [line.split()[2] for line in lines[4:]] == ["created", "leased", "started", "succeeded"]


def test_json_holds_the_same(dk, job):
    spoil(job)
    code, told = dk("--json")
    said: dict[str, Any] = json.loads(told)
    assert code == UNHEALTHY
    assert (said["clean"], said["by_invariant"]) == (False, {"I4": 1})
    (violation,) = said["violations"]
    assert (violation["job"], violation["event"]) == (str(job.pk), 4)
    assert said["first_job"] == str(job.pk)
    kinds = [line.split()[2] for line in said["first_story"]]
    assert kinds == ["created", "leased", "started", "succeeded"]


def test_only_the_jobs_of_a_handler_are_checked(dk, job):
    spoil(job)
    assert dk("--handler", "billing.refund")[0] == CLEAN
    assert dk("--handler", job.handler)[0] == UNHEALTHY


def test_an_unknown_tenant_or_job_is_told_apart_from_a_clean_one(dk, job):
    assert dk("--tenant", "nobody")[0] == NOT_FOUND
    assert dk("--job", UUID(int=1))[0] == NOT_FOUND


def deliver(kind, log, job: Job, *tokens: int) -> None:
    for token in tokens:
        kind(log).deliver("acme/k", job.pk, token)


def test_i16_i17_the_log_of_a_receiver_is_held_against_the_histories(dk, job, tmp_path):
    good, naive, fenced, late = (tmp_path / name for name in ("good", "naive", "fenced", "late"))
    deliver(ApplyOnce, good, job, 1)
    deliver(Naive, naive, job, 1, 1)
    deliver(Fencing, fenced, job, 1, 1)
    deliver(Naive, late, job, 1, 0)
    assert dk("--receiver-log", good)[0] == CLEAN
    code, told = dk("--receiver-log", naive)
    assert (code, told.splitlines()[1]) == (UNHEALTHY, "VIOLATIONS  I16: 2")
    assert dk("--receiver-log", fenced, "--receiver", "fencing")[0] == CLEAN
    code, told = dk("--receiver-log", late, "--receiver", "fencing")
    assert code == UNHEALTHY
    assert "I17" in told.splitlines()[1]


@pytest.mark.parametrize("text", ["{}\n", "{", "\xff"])
def test_f65_a_log_that_cannot_be_read_is_an_error_and_no_verdict(dk, job, tmp_path, text):
    (tmp_path / "log").write_bytes(text.encode("latin-1"))
    with pytest.raises(CommandError, match="--receiver-log"):
        dk("--receiver-log", tmp_path / "log")
    with pytest.raises(CommandError, match="--receiver-log"):
        dk("--receiver-log", tmp_path / "no such file")


def test_f65_stored_text_moves_no_terminal(dk, job):
    JobEvent.objects.filter(job=job).update(actor=ODD_TEXT, detail={"reason": ODD_TEXT})
    spoil(job)
    for flags in ([], ["--json"]):
        _, told = dk(*flags)
        assert all(character.isprintable() for character in told.replace("\n", ""))
        assert "🙂" in told or "\\ud83d\\ude42" in told


def test_i13_schedules_are_counted_and_a_hole_in_a_ledger_is_told(dk):
    schedule = make_schedule(cron="*/20 * * * *")
    count = Occurrence.objects.count()
    code, told = dk()
    assert (code, told.splitlines()[1]) == (CLEAN, f"1 schedules, {count} occurrences")
    first = Occurrence.objects.order_by("known_at")[0]
    first.delete()
    code, told = dk("--json")
    said: dict[str, Any] = json.loads(told)
    assert (code, said["by_invariant"]) == (UNHEALTHY, {"I13": 2})  # and a job without a firing
    assert (said["schedules"], said["occurrences"], said["unchecked"]) == (1, count - 1, 0)
    assert f"schedule {schedule.pk}: {first.slot} is missing" in said["violations"][0]["detail"]
    ScheduleVersion.objects.update(in_timezone="Europe/Madrid ")
    assert dk()[1].splitlines()[1] == f"1 schedules, {count - 1} occurrences, 1 unchecked"
