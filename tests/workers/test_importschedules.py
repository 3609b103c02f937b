"""manage.py importschedules as a whole: a dry run, an import, the same import again, and real files of this machine."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from jobs.models import Calendar, Job, Schedule, ScheduleVersion, Tenant
from jobs.services.schedules import create_schedule
from tests.factories import make_handler, make_pool, make_tenant, make_worker

pytestmark = pytest.mark.django_db
DATA = Path(__file__).parents[1] / "support" / "schedules"
DEBIAN = DATA / "debian" / "etc"
TABLE = """\
MAILTO=ops@example.com
30 2 * * *  backup --full db1
0 9 */10 * 1  report
*/5 * * * *  poll --token=hunter2
0 5 * * *  unknown
99 5 * * *  never
"""
MAPPING: dict[str, Any] = {
    "rules": [
        {
            "match": {"regex": r"backup --(?P<mode>\w+) (?P<db>\w+)"},
            "handler": "billing.charge",
            "payload": {"db": "${db}"},
            "name": "backup of ${db}",
            "lane": "low",
            "tags": ["imported"],
        },
        {"match": {"command": "report"}, "handler": "billing.charge", "misfire": "latest"},
        {"match": {"prefix": "poll "}, "ignore": "a watch does it now"},
    ]
}


@pytest.fixture(autouse=True)
def tenant() -> None:
    make_worker(make_pool())
    make_handler()
    make_tenant("acme", timezone="Europe/Berlin")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def to_file(name: str, content: Any) -> str:
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(file)

    return to_file


@pytest.fixture
def arguments(write: Callable[..., str]) -> list[str]:
    return ["--crontab", write("tab", TABLE), "--mapping", write("map.json", MAPPING)]


def imported(*arguments: str) -> tuple[int, str, str]:
    out, err, real = StringIO(), StringIO(), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = out, err
    try:
        call_command("importschedules", "--tenant", "acme", *arguments)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.stdout, sys.stderr = real
    return code, out.getvalue(), err.getvalue()


def document(*arguments: str) -> Any:
    _, out, err = imported(*arguments, "--json")
    assert err == ""
    return json.loads(out)


def outcomes(*arguments: str) -> list[str]:
    return [one["outcome"] for one in document(*arguments)["entries"]]


def test_a_dry_run_tells_everything_and_stores_nothing(arguments: list[str]) -> None:
    told = document(*arguments)
    assert told["counts"] == {
        "would_create": 1,
        "ignored": 1,
        "unmapped": 1,
        "needs_accept": 1,
        "refused": 1,
    }
    backup, report, poll, _, never = told["entries"]
    assert backup["place"].endswith("tab:2")
    assert (backup["name"], backup["handler"]) == ("backup of db1", "billing.charge")
    assert (backup["words"], backup["timezone"]) == ("At 02:30", "Europe/Berlin")
    assert backup["timezone_from"] == "the tenant"
    assert backup["schedule"]["misfire"] == "skip"
    assert len(backup["next"]) == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT02:30:00\+0[12]:00", backup["next"][0]["local"])
    assert backup["next"][0]["utc"].endswith(":30:00Z")
    assert "on_gap decides" in backup["shift"]["words"] or "on_overlap" in backup["shift"]["words"]
    assert [one["code"] for one in backup["findings"]] == ["dst", "missed_runs", "retries"]
    assert [one["code"] for one in report["findings"] if one["accept"]] == ["day_rule"]
    assert "mapping_decides" in {one["code"] for one in report["findings"]}
    assert "missed_runs" not in {one["code"] for one in report["findings"]}
    assert (poll["outcome"], poll["ignored"]) == ("ignored", "a watch does it now")
    assert never["errors"][0]["code"] == "out_of_range"
    assert {one["code"] for one in told["notices"]} == {"mailto", "file_ignored", "zone_assumed"}
    assert not Schedule.objects.exists()


def test_the_page_says_the_same_without_secrets(arguments: list[str]) -> None:
    code, out, err = imported(*arguments)
    assert (code, err) == (1, "")
    assert "hunter2" not in out
    assert "hunter2" not in json.dumps(document(*arguments))
    lines = out.splitlines()
    assert any(line.endswith("tab:2: would be created") for line in lines)
    assert '  → billing.charge  as "backup of db1"' in lines
    assert any("not accepted: runs on other days; --accept day_rule" in line for line in lines)
    assert "5 entries: 1 would be created, 1 ignored, 1 unmapped, 1 not accepted, 1 refused" in out
    assert lines[-1].startswith("Nothing was stored")
    # What holds for several rules is told once.
    assert len([line for line in lines if "cron drops what falls" in line]) == 1


def test_an_import_creates_what_it_told_and_a_second_one_nothing(arguments: list[str]) -> None:
    assert imported(*arguments, "--accept", "day_rule", "--apply")[0] == 1  # one is unmapped
    backup = Schedule.objects.get(name="backup of db1")
    version = ScheduleVersion.objects.get(schedule=backup)
    assert (version.cron, version.timezone, version.misfire) == (
        "30 2 * * *",
        "Europe/Berlin",
        "skip",
    )
    assert (version.on_gap, version.on_overlap, version.grace_seconds) == (
        "next_valid",
        "first",
        900,
    )
    assert version.template == {
        "handler": "billing.charge",
        "payload": {"db": "db1"},
        "lane": "low",
        "tags": ["imported"],
    }
    assert backup.created_by.startswith("command:")
    report = Schedule.objects.exclude(pk=backup.pk).get()
    assert re.fullmatch(r"tab billing\.charge [0-9a-f]{8}", report.name)
    count = ScheduleVersion.objects.count()

    again = outcomes(*arguments, "--accept", "day_rule", "--apply")
    assert again == ["unchanged", "unchanged", "ignored", "unmapped", "refused"]
    assert outcomes(*arguments)[1] == "unchanged"  # what is there was accepted
    assert (Schedule.objects.count(), ScheduleVersion.objects.count()) == (2, count)


def test_a_line_that_has_moved_is_the_same_and_one_that_has_changed_differs(
    write: Callable[..., str],
) -> None:
    mapping = write("m", {"rules": [{"match": {"prefix": ""}, "handler": "billing.charge"}]})
    table = write("tab", "0 5 * * * a\n0 6 * * * b\n0 7 * * * b\n")
    assert imported("--crontab", table, "--mapping", mapping, "--apply")[0] == 0
    assert Schedule.objects.count() == 3
    write("tab", "# new\n0 6 * * * b\n0 8 * * * a\n0 7 * * * b\n")
    code, out, _ = imported("--crontab", table, "--mapping", mapping, "--apply")
    assert code == 0
    assert "exists, differs: cron; left alone" in out
    assert "3 entries: 2 exists, unchanged, 1 exists, differs" in out
    assert Schedule.objects.count() == 3
    assert not ScheduleVersion.objects.filter(cron="0 8 * * *").exists()


def test_a_deleted_schedule_may_be_imported_again_and_a_prefix_keeps_machines_apart(
    arguments: list[str],
) -> None:
    imported(*arguments, "--apply")
    Schedule.objects.update(deleted_at="2027-01-01T00:00:00Z", look_at=None)
    assert outcomes(*arguments, "--apply")[0] == "created"
    assert outcomes(*arguments, "--prefix", "web1 ", "--apply")[0] == "created"
    assert Schedule.objects.filter(name="web1 backup of db1").exists()


def test_two_entries_with_one_name_are_not_mixed_up(write: Callable[..., str]) -> None:
    rule = {"match": {"prefix": ""}, "handler": "billing.charge", "name": "same"}
    table = write("tab", "0 5 * * * a\n0 6 * * * b\n")
    arguments = ("--crontab", table, "--mapping", write("m", {"rules": [rule]}))
    assert outcomes(*arguments) == ["would_create", "refused"]
    told = document(*arguments, "--apply")
    assert [one["outcome"] for one in told["entries"]] == ["created", "refused"]
    assert told["entries"][1]["errors"][0]["pointer"] == "/name"


def test_a_row_that_cannot_be_stored_stops_no_neighbour(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = {
        "rules": [
            {"match": {"command": "a"}, "handler": "nobody.knows"},
            {"match": {"command": "b"}, "handler": "billing.charge", "labels": {"region": "mars"}},
            {"match": {"command": "c"}, "handler": "billing.charge", "lane": "${stdin}"},
            {"match": {"prefix": ""}, "handler": "billing.charge"},
        ]
    }
    table = write("tab", "".join(f"0 {n} * * * {name}\n" for n, name in enumerate("abcde")))
    arguments = ("--crontab", table, "--mapping", write("m", mapping))
    told = document(*arguments)
    errors = [(one["errors"] or [{}])[0] for one in told["entries"]]
    assert [(one.get("pointer"), one.get("code")) for one in errors] == [
        ("/handler", "handler_unknown"),
        ("/labels", "no_pool_matches"),
        ("/job/lane", "length"),
        (None, None),
        (None, None),
    ]
    seen = []

    def fails_once(**given: Any) -> Schedule:
        seen.append(given["request"].name)
        if len(seen) == 1:
            with transaction.atomic():
                Schedule.objects.create()  # the database refuses it
        return create_schedule(**given)

    monkeypatch.setattr("workers.importing.plan.create_schedule", fails_once)
    told = document(*arguments, "--apply")
    assert [one["outcome"] for one in told["entries"]] == [*["refused"] * 4, "created"]
    assert told["entries"][3]["errors"][0]["code"] == "database"
    assert Schedule.objects.count() == 1


def test_a_cronjob_keeps_its_name_and_its_suspension(write: Callable[..., str]) -> None:
    rules = [
        {"match": {"cronjob": "shop/nightly-report"}, "handler": "billing.charge"},
        {"match": {"image": "busybox"}, "handler": "billing.charge", "payload": "${command}"},
        {"match": {"image": "b"}, "handler": "billing.charge"},
        {"match": {"image": "gone"}, "handler": "billing.charge"},
    ]
    arguments = ("--kubernetes", str(DATA / "cronjobs.yaml"), "--mapping")
    told = document(*arguments, write("m", {"rules": rules}), "--apply")
    assert [one["outcome"] for one in told["entries"]] == ["created", "created", "needs_accept"]
    assert {one["code"] for one in told["notices"]} == {
        "bad_yaml",
        "other_kinds",
        "unused",
        "zone_assumed",
    }
    nightly = Schedule.objects.get(name="shop/nightly-report")
    assert nightly.paused_at is not None
    assert ScheduleVersion.objects.get(schedule=nightly).on_running == "skip"
    assert nightly.pause_reason == "suspended in Kubernetes"
    assert not Job.objects.filter(payload__isnull=True).exists()
    assert outcomes(*arguments, write("m", {"rules": rules}))[:2] == ["unchanged", "unchanged"]
    Schedule.objects.update(paused_at=None)
    again = document(*arguments, write("m", {"rules": rules}))
    assert again["entries"][0]["differs"] == ["paused"]


def test_a_table_of_celery_is_imported_with_its_arguments(
    write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "beat")) as link:
        link.execute(
            "create table django_celery_beat_periodictask"
            " (id, name, task, args, kwargs, enabled, interval_id, last_run_at)"
        )
        link.execute("create table django_celery_beat_intervalschedule (id, every, period)")
        link.execute("insert into django_celery_beat_intervalschedule values (1, 6, 'hours')")
        link.execute(
            "insert into django_celery_beat_periodictask values"
            " (1, 'sync', 'shop.sync', '[7]', '{\"a\": true}', 1, 1, '2026-11-30 03:00:00')"
        )
        link.commit()
        monkeypatch.setenv("BEAT", f"sqlite:///{tmp_path / 'beat'}")
        rule = {
            "match": {"task": "shop.sync"},
            "handler": "billing.charge",
            "payload": {"args": "${args}", "kwargs": "${kwargs}"},
        }
        arguments = ("--celery-beat", "env:BEAT", "--mapping", write("m", {"rules": [rule]}))
        assert imported(*arguments, "--apply")[0] == 0
        version = ScheduleVersion.objects.get()
        assert (version.every, version.anchor) == ("6h", "2026-11-30T03:00:00Z")
        assert version.template["payload"] == {"args": [7], "kwargs": {"a": True}}
        # beat has run it since: its anchor moves, and that alone is no difference
        link.execute(
            "update django_celery_beat_periodictask set last_run_at = '2026-11-30 09:00:02'"
        )
        link.commit()
    assert outcomes(*arguments) == ["unchanged"]


def test_next_runs_keep_to_the_time_in_which_it_runs(write: Callable[..., str]) -> None:
    rule = {"match": {"prefix": ""}, "handler": "billing.charge"}
    table = write("tab", "0 5 * * * a\n")

    def runs(**more: str) -> list[str]:
        mapping = write("m", {"rules": [{**rule, **more}]})
        told = document("--crontab", table, "--timezone", "UTC", "--mapping", mapping)
        return [one["utc"] for one in told["entries"][0]["next"]]

    assert runs(starts_at="2090-01-01T05:00:00Z")[0] == "2090-01-01T05:00:00Z"
    assert runs(starts_at="2090-01-01T05:00:00Z", ends_at="2090-01-02T00:00:00Z") == [
        "2090-01-01T05:00:00Z"
    ]
    assert runs(ends_at="2001-01-01T00:00:00Z") == []


def test_a_calendar_of_the_mapping_has_to_be_there(write: Callable[..., str]) -> None:
    rule = {"match": {"prefix": ""}, "handler": "billing.charge", "calendar": "bank"}
    mapping = write("m", {"rules": [rule]})
    arguments = ("--crontab", write("tab", "0 5 * * * a\n"), "--mapping", mapping)
    (entry,) = document(*arguments)["entries"]
    assert [one["pointer"] for one in entry["errors"]] == ["/calendar"]
    Calendar.objects.create(tenant=Tenant.objects.get(), name="bank")
    (entry,) = document(*arguments, "--apply")["entries"]
    assert entry["outcome"] == "created"
    assert "calendar" in {one["code"] for one in entry["findings"]}
    assert outcomes(*arguments) == ["unchanged"]


def test_what_cannot_be_imported_may_be_ignored_on_purpose(write: Callable[..., str]) -> None:
    rule = {"match": {"command": "start"}, "ignore": "the image starts it"}
    table = write("tab", "@reboot start\n0~30 4 * * * spread\n")
    arguments = ("--crontab", table, "--mapping", write("m", {"rules": [rule]}))
    assert outcomes(*arguments) == ["ignored", "refused"]
    _, out, _ = imported(*arguments)
    assert "spread the runs with jitter_seconds" in out  # a reason is told to its end
    write("tab", "@reboot start\n")
    assert imported(*arguments)[0] == 0


def test_a_mapping_can_be_begun_by_the_command(write: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    arguments = ("--crontab", write("tab", TABLE), "--write-mapping", str(file))
    assert imported(*arguments)[0] == 1
    commands = [one["match"]["command"] for one in json.loads(file.read_text())["rules"]]
    assert commands == ["backup --full db1", "report", "poll --token=hunter2", "unknown"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # commands stand in it as they are
    code, _, err = imported(*arguments)
    assert code == 2
    assert "--write-mapping" in err
    rest = tmp_path / "rest.json"
    mapping = write("m", MAPPING)
    imported(
        "--crontab", str(tmp_path / "tab"), "--mapping", mapping, "--write-mapping", str(rest)
    )
    commands = [one["match"]["command"] for one in json.loads(rest.read_text())["rules"]]
    assert commands == ["unknown"]


def test_what_a_terminal_would_obey_is_shown_as_an_escape(write: Callable[..., str]) -> None:
    _, out, _ = imported("--crontab", write("tab", "0 5 * * * echo \x1b[2J\x07 \u202egnp\n"))
    assert "\\x1b[2J\\x07 \\u202egnp" in out
    assert "\x1b" not in out


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"0 5 * * * root a\n")))
    told = document("--crontab", "-", "--system", "--timezone", "UTC")
    assert told["entries"][0]["place"] == "-:1"
    assert told["entries"][0]["timezone_from"] == "--timezone"
    assert [one["code"] for one in told["notices"]] == ["user"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--crontab", "TAB", "--apply"], 2, "--apply needs --mapping"),
        (["--crontab", "TAB", "--mapping", "nowhere"], 2, "--mapping nowhere"),
        (["--crontab", "TAB", "--mapping", "TAB"], 2, "malformed_json"),
        (["--crontab", "TAB", "--timezone", "Mars"], 2, "--timezone: unknown_timezone"),
        (["--celery-beat", "mysql://x"], 2, "--celery-beat: must be a URL"),
        (["--celery-beat", "env:NO_SUCH"], 2, "no variable NO_SUCH"),
        (["--tenant", "nobody", "--crontab", "TAB"], 3, "no tenant 'nobody'"),
    ],
)
def test_what_cannot_be_used_is_named(
    write: Callable[..., str], arguments: list[str], code: int, told: str
) -> None:
    table = write("tab", TABLE)
    ended, out, err = imported(*[table if one == "TAB" else one for one in arguments])
    assert (ended, out) == (code, "")
    assert told in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--crontab", "a", "--kubernetes", "b"],
        ["--crontab", "a", "--system", "--user"],
        ["--crontab", "a", "--accept", "everything"],
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("importschedules", "--tenant", "acme", *arguments)


def check_truthful(table: Path, folder: Path) -> None:
    """Every active line has its entry, each entry its next runs, and a mapping brings all of them in."""
    told = document("--crontab", str(table), str(folder))
    read = [table, *(one for one in folder.iterdir() if re.fullmatch(r"[\w-]+", one.name))]
    lines = {
        f"{file}:{number}"
        for file in read
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.match(r"\s*[\d*@]", line)
    }
    assert {one["place"] for one in told["entries"]} == lines
    assert all(one["outcome"] == "unmapped" for one in told["entries"])
    assert all(len(one["next"]) == 3 and one["words"] for one in told["entries"])
    left_out = {one["place"] for one in told["notices"] if one["code"] == "file_name"}
    known = {str(one) for one in folder.iterdir() if one.name != ".placeholder"}
    assert left_out == known - set(map(str, read))


def test_the_tables_of_a_debian_machine_are_told_truthfully(write: Callable[..., str]) -> None:
    check_truthful(DEBIAN / "crontab", DEBIAN / "cron.d")
    mapping = write("m", {"rules": [{"match": {"user": "root"}, "handler": "billing.charge"}]})
    arguments = (
        "--crontab",
        str(DEBIAN / "crontab"),
        str(DEBIAN / "cron.d"),
        "--mapping",
        mapping,
    )
    assert imported(*arguments, "--apply")[0] == 0
    assert Schedule.objects.count() == 9
    assert set(outcomes(*arguments)) == {"unchanged"}


@pytest.mark.skipif(
    not (Path("/etc/crontab").is_file() and Path("/etc/cron.d").is_dir()),
    reason="this machine has no cron",
)
def test_the_tables_of_this_machine_are_told_truthfully() -> None:
    check_truthful(Path("/etc/crontab"), Path("/etc/cron.d"))
