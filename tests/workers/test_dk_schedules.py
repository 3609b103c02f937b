"""dk schedule list, pause, resume, run, catch-up, transitions; dk calendar list, show, import."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError

from jobs.clock import database_now
from jobs.models import Calendar, Job, Occurrence, Schedule, ScheduleVersion
from jobs.policies.times import format_time
from tests.factories import make_schedule, make_tenant
from tests.support.commands import caller

pytestmark = pytest.mark.django_db
DONE, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 4
BERLIN: dict[str, Any] = {"timezone": "Europe/Berlin"}
ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
SUMMARY:May Day
DTSTART;VALUE=DATE:20270501
END:VEVENT
END:VCALENDAR
"""


@pytest.fixture
def dk(capsys):
    """Run it; exit code, standard output and standard error."""
    make_tenant()
    return caller(capsys, "dk")


def test_the_list_has_a_line_for_each_with_its_next_run(dk, monkeypatch):
    monkeypatch.setattr("workers.dk.schedule.BATCH", 2)
    for name in "abc":
        make_schedule(name=name)
    other = make_schedule(make_tenant("globex"), name="b\x1b[2Jd", cron="30 2 * * *", **BERLIN)
    code, told, _ = dk("schedule", "list")
    assert code == DONE
    assert [line.split("  ")[3] for line in told.splitlines()] == [
        "acme/a", "acme/b", "globex/b\\x1b[2Jd", "acme/c",
    ]  # fmt: skip
    assert "At 02:30 (Europe/Berlin)" in told
    code, told, _ = dk("schedule", "list", "--tenant", "globex", "--json")
    (line,) = json.loads(told)["schedules"]
    assert (line["id"], line["state"], line["tenant"]) == (str(other.pk), "active", "globex")
    pending = Occurrence.objects.filter(schedule=other).order_by("known_at").first()
    assert pending is None or line["next_run"] == format_time(pending.known_at)
    assert line["next_run"] > format_time(database_now())
    assert dk("schedule", "list", "--tenant", "none")[0] == NOT_FOUND
    assert dk("schedule", "list", "--state", "ended")[:2] == (DONE, "no schedules\n")
    with pytest.raises(CommandError):
        dk("schedule", "list", "--state", "lost")


def test_pause_and_resume_by_id_or_name(dk):
    made = make_schedule()
    end = format_time(database_now() + timedelta(hours=2))
    code, told, _ = dk("schedule", "pause", made.pk, "--reason", "billing run", "--resume-at", end)
    assert (code, f"acme/nightly: paused until {end} (billing run)" in told) == (DONE, True)
    made.refresh_from_db()
    assert made.paused_by.startswith("command:")
    code, told, _ = dk("schedule", "list", "--state", "paused")
    assert "paused" in told
    assert "billing run" in told
    assert dk("schedule", "resume", "acme/nightly")[:2] == (
        DONE,
        "schedule acme/nightly: paused → going on\n",
    )
    code, told, err = dk("schedule", "resume", made.pk)
    assert (code, told, "not paused" in err) == (REFUSED, "", True)


@pytest.mark.parametrize(
    "words",
    [
        ("--reason", "x", "--resume-at", "2020-01-01T00:00:00Z"),
        ("--reason", " "),
        ("--reason", "x" * 5000),
        ("--reason", "\udcff"),
    ],
)
def test_a_pause_without_reason_or_future_end_is_refused(dk, words):
    made = make_schedule()
    code, told, err = dk("schedule", "pause", made.pk, *words)
    assert (code, told, err.startswith("--")) == (USAGE, "", True)
    assert Schedule.objects.get().paused_at is None


def test_run_makes_one_job_by_its_key(dk):
    made = make_schedule()
    before = Job.objects.count()
    first = json.loads(dk("schedule", "run", made.pk, "--request-key", "k", "--json")[1])
    again = json.loads(dk("schedule", "run", made.pk, "--request-key", "k", "--json")[1])
    assert (first["created"], again["created"]) == (True, False)
    assert first["job"] == again["job"]
    assert Job.objects.count() == before + 1
    assert "new job" in dk("schedule", "run", "acme/nightly")[1]
    assert dk("schedule", "run", made.pk, "--request-key", "a\nb")[0] == USAGE


def test_catch_up_tells_what_was_made_and_what_was_there(dk):
    made = make_schedule()
    window = ("--from", "2026-01-05T00:00:00Z", "--until", "2026-01-05T03:00:00Z")
    code, told, _ = dk("schedule", "catch-up", made.pk, *window)
    assert (code, "4 made up for, 0 had run" in told) == (DONE, True)
    told = dk("schedule", "catch-up", made.pk, *window, "--json")[1]
    assert json.loads(told) == {"made": 0, "known": 4, "closed": 0}
    far = ("--from", "2026-01-05T00:00:00Z", "--until", "2099-01-05T03:00:00Z")
    code, told, err = dk("schedule", "catch-up", made.pk, *far)
    assert (code, told, err.startswith("/until: ")) == (USAGE, "", True)


@pytest.mark.parametrize(
    "name",
    ["61824b09-e2da-4918-8445-99a61e139bfa", "x", "acme/none", "none/nightly", "acme/\udcff"],
)
def test_a_schedule_that_is_not_there_is_named(dk, name):
    make_schedule()
    for verb in ("resume", "run"):
        code, told, err = dk("schedule", verb, name)
        assert (code, told) == (NOT_FOUND, "")
        assert err.startswith("There is no schedule")


def test_kf02_transitions_name_the_schedules_and_what_they_do(dk):
    make_schedule(name="gap", cron="30 2 * * *", **BERLIN)
    make_schedule(name="skips", cron="30 2 * * *", on_gap="skip", **BERLIN)
    make_schedule(name="hourly", cron="30 * * * *", **BERLIN)
    bad = make_schedule(make_tenant("globex"), name="bad", **BERLIN)
    ScheduleVersion.objects.filter(schedule=bad).update(cron="never")
    until = format_time(database_now() + timedelta(days=500))
    code, told, _ = dk("schedule", "transitions", "--until", until)
    assert code == DONE
    assert "Europe/Berlin  the clock goes from 02:00 ahead to 03:00" in told
    assert "  acme/gap  At 02:30  on_gap=next_valid" in told
    assert "does not exist" in told
    assert "hourly" not in told
    assert f"{bad.pk}  cannot be read" in told
    document = json.loads(dk("schedule", "transitions", "--until", until, "--json")[1])
    gap = next(one for one in document["transitions"] if one["kind"] == "gap")
    assert {one["name"]: one["runs"][0]["fire_at"] for one in gap["schedules"]} == {
        "gap": gap["at"],
        "skips": None,
    }
    assert {one["tenant"] for one in gap["schedules"]} == {"acme"}
    quiet = dk("schedule", "transitions", "--until", until, "--tenant", "globex")
    assert "acme" not in quiet[1]
    for wrong in ("2020-01-01T00:00:00Z", "2090-01-01T00:00:00Z"):
        assert dk("schedule", "transitions", "--until", wrong)[0] == USAGE


def test_a_calendar_is_read_from_a_file_and_its_next_edition_too(dk, tmp_path):
    file = tmp_path / "may.ics"
    file.write_text(ICS)
    named = ("--tenant", "acme", "--name", "works")
    code, told, _ = dk("calendar", "import", file, *named, "--weekend", "sat,sun")
    assert (code, told) == (DONE, "acme/works  edition 1  1 days and every sat, sun: new\n")
    made = Calendar.objects.get()
    assert (made.days, made.created_by[:8]) == ({"2027-05-01": "May Day"}, "command:")
    file.write_text(ICS.replace("20270501", "20280501").replace("May Day", "May\x1b Day"))
    code, told, _ = dk("calendar", "import", file, *named)
    assert "edition 2  1 days and every sat, sun: instead of edition 1: 1 days more, 1" in told
    assert dk("calendar", "list")[1] == "acme/works  edition 2  1 days and every sat, sun\n"
    code, told, _ = dk("calendar", "show", "works", "--tenant", "acme")
    assert (code, told.splitlines()[1]) == (DONE, "  2028-05-01  May Day")
    shown = json.loads(dk("calendar", "show", "works", "--tenant", "acme", "--json")[1])
    assert (shown["number"], shown["days"]) == (2, {"2028-05-01": "May Day"})
    listed = json.loads(dk("calendar", "list", "--tenant", "acme", "--json")[1])
    assert listed["calendars"] == [{k: v for k, v in shown.items() if k != "days"}]


def test_a_calendar_that_cannot_be_read_or_is_not_there_is_told(dk, tmp_path):
    file = tmp_path / "no.ics"
    named = ("--tenant", "acme", "--name", "works")
    assert dk("calendar", "import", file, *named)[0] == USAGE
    file.write_bytes(b"\xff\xfe")
    assert dk("calendar", "import", file, *named)[0] == USAGE
    file.write_text("no calendar")
    code, told, err = dk("calendar", "import", file, *named)
    assert (code, told, err.startswith("/ics: ")) == (USAGE, "", True)
    file.write_text(ICS)
    code, _, err = dk("calendar", "import", file, *named, "--weekend", "saturday")
    assert (code, err.startswith("/weekend: ")) == (USAGE, True)
    assert dk("calendar", "import", file, "--tenant", "none", "--name", "x")[0] == NOT_FOUND
    assert dk("calendar", "show", "works", "--tenant", "acme")[0] == NOT_FOUND
    assert dk("calendar", "show", "\udcff", "--tenant", "acme")[0] == NOT_FOUND
    assert dk("calendar", "list")[:2] == (DONE, "no calendars\n")
    assert not Calendar.objects.exists()
