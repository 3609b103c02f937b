"""crontab(5) text, read without running any of it: lines, settings, what cron itself would refuse."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from workers.importing.cron_files import read_crontabs
from workers.importing.crontab import read_crontab
from workers.importing.entries import Context, Entry, Reading, Zone

NOW = datetime(2027, 1, 1, tzinfo=UTC)
BERLIN = Context(Zone("Europe/Berlin", "a test"), NOW)
DEBIAN = Path(__file__).parents[1] / "support" / "schedules" / "debian" / "etc"


def read(text: str, *, system: bool = False, honour_zone: bool = True) -> Reading:
    return read_crontab(text, place="tab", context=BERLIN, system=system, honour_zone=honour_zone)


def only(line: str, *, system: bool = False) -> Entry:
    (entry,) = read(line + "\n", system=system).entries
    return entry


def codes(reading: Reading) -> list[str]:
    return [one.code for one in reading.notices]


def test_comments_settings_and_blank_lines_are_no_rules() -> None:
    reading = read(
        '# 0 1 * * * no\n\n  \t\n   # nor this\nSHELL = /bin/bash\nMAILTO=""\nMAILFROM=a@b\n'
        "'ODD' = \"x y\"\nHOME=/\n\t 5 4 * * sun   say  hello # no comment\n"
    )
    (entry,) = reading.entries
    assert (entry.place, entry.rule) == ("tab:10", "5 4 * * sun")
    assert entry.facts["command"] == "say  hello # no comment"
    told = {one.code: one.text for one in reading.notices}
    assert told["mailto"].startswith("MAILFROM, MAILTO ignored")
    assert told["environment"].startswith("HOME, ODD, SHELL ignored")


def test_a_setting_before_a_command_is_part_of_the_command() -> None:
    entry = only("0 5 * * * LANG=C backup --all=yes")
    assert entry.facts["command"] == "LANG=C backup --all=yes"


def test_the_system_form_names_a_user() -> None:
    entry = only("09,39 *\t* * *\t www-data \t [ -x /x ] && /x", system=True)
    assert (entry.rule, entry.facts["user"]) == ("09,39 * * * *", "www-data")
    assert entry.facts["command"] == "[ -x /x ] && /x"
    assert only("@daily root  run it", system=True).facts["command"] == "run it"


def test_a_user_form_in_which_every_command_is_roots_is_doubted() -> None:
    assert "system_form" in codes(read("0 5 * * * root run\n"))
    assert "system_form" not in codes(read("0 5 * * * root run\n0 6 * * * run\n"))


def test_percent_signs_are_standard_input_unless_escaped() -> None:
    entry = only(r"0 22 * * 1-5 mail -s '100\% now' joe%Joe,%%Where?%")
    assert entry.facts["command"] == "mail -s '100% now' joe"
    assert entry.facts["stdin"] == "Joe,\n\nWhere?\n"
    assert "stdin" in {one.code for one in entry.findings}


def test_cron_tz_holds_from_its_line_on() -> None:
    text = "0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 2 * * * b\nCRON_TZ=\n0 3 * * * c\nTZ=UTC\n0 4 * * * d\n"
    reading = read(text)
    assert [one.zone.key for one in reading.entries] == [
        "Europe/Berlin",
        "Asia/Tokyo",
        "Europe/Berlin",
        "Europe/Berlin",
    ]
    assert codes(reading) == ["cron_tz", "tz"]
    assert "Debian's cron ignores" in reading.notices[0].text
    ignored = read(text, honour_zone=False)
    assert {one.zone.key for one in ignored.entries} == {"Europe/Berlin"}


def test_a_zone_that_nobody_knows_refuses_the_rules_behind_it_only() -> None:
    reading = read("0 1 * * * a\nCRON_TZ=Mars/Base\n0 2 * * * b\nCRON_TZ='UTC'\n0 3 * * * c\n")
    assert [one.refusal and one.refusal.code for one in reading.entries] == [
        None,
        "unknown_timezone",
        None,
    ]
    assert [one.place for one in reading.notices if one.wrong] == ["tab:2"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("@reboot start", "unsupported"),
        ("@every_minute x", "bad_syntax"),
        ("@Daily x", "bad_syntax"),
        ("61 * * * * x", "out_of_range"),
        ("*/60 * * * * x", "bad_step"),
        ("0 0 30 2 * x", "impossible_date"),
        ("0 0 * * 5-1 x", "reversed_range"),
        ("0 0 1,,2 * * x", "bad_syntax"),
        ("5/10 * * * * x", "step_without_range"),
        ("0~30 4 * * * x", "random_range"),
        ("0 0 L * * x", "unsupported"),
        ("0 0 * * 5L x", "unsupported"),
        ("0 0 * * 1#1 x", "unsupported"),
        ("0 0 ? * * x", "unsupported"),
        ("H 0 * * * x", "unsupported"),
        ("0 0 * * monday x", "unsupported"),
        ("0 5 * *", "wrong_field_count"),
        ("0 5 * * *", "no_command"),
        ("@daily", "no_command"),
        ("0 0 * * * * x", None),  # the sixth star is the command
    ],
)
def test_a_line_that_cannot_be_is_refused_by_name(line: str, code: str | None) -> None:
    entry = only(line)
    assert (entry.refusal and entry.refusal.code) == code
    good = read(f"0 1 * * * a\n{line}\n0 2 * * * b\n").entries
    assert [one.refusal for one in (good[0], good[2])] == [None, None]


def test_a_system_line_without_a_command_is_refused() -> None:
    assert only("0 5 * * * root", system=True).refusal is not None


def test_files_that_debian_would_ignore_as_a_whole_are_told() -> None:
    assert "file_ignored" in codes(read("0 1 * * * a\n99 1 * * * b\n"))
    assert "no_newline" in codes(read("0 1 * * * a"))
    assert "carriage_return" in codes(read("0 1 * * * a\r\n"))
    assert read("0 1 * * * a\r\n").entries[0].facts["command"] == "a"
    assert codes(read("0 1 * * * a\n")) == []


def test_what_the_lines_of_debian_do_only_elsewhere_is_told() -> None:
    reading = read_crontabs([str(DEBIAN / "crontab"), str(DEBIAN / "cron.d")], context=BERLIN)
    assert all(one.refusal is None for one in reading.entries)
    found = {
        (Path(one.place.rpartition(":")[0]).name, one.rule): {f.code for f in one.findings}
        for one in reading.entries
    }
    assert len(found) == 9
    assert "run_parts" in found["crontab", "17 * * * *"]
    assert {"run_parts", "guarded"} <= found["crontab", "25 6 * * *"]
    assert "guarded" in found["e2scrub_all", "10 3 * * *"]
    assert "guarded" in found["php", "09,39 * * * *"]
    assert found["sysstat", "59 23 * * *"] == {"missed_runs", "retries"}
    names = {Path(one.place).name for one in reading.notices if one.code == "file_name"}
    assert names == {"old.dpkg-dist", "backup~"}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("test -x /usr/sbin/anacron || run", "guarded"),
        ("[ -x /usr/sbin/anacron ] || run", "guarded"),
        ("test -e /run/systemd/system || run", "guarded"),
        ("[ -x /x ] && if [ ! -d /run/systemd/system ]; then /x; fi", "guarded"),
        (r"test -x /x -a \! -d /run/systemd/system && /x", "guarded"),
        (r"[ $(date +\%d) -le 7 ] && check", "own_calendar"),
        ("[ \"`date '+\\%u'`\" = 7 ] && check", "own_calendar"),
        (r"[ -x /x ] && /x > /b/$(date +\%F).sql", None),  # the date is but a name
        ("perl -e 'sleep int(rand(43200))' && renew", "own_delay"),
        ("sleep $((RANDOM \\% 60)); run", "own_delay"),
        ("anacron -s", None),
        (r"dump > dump-$(hostname) && update", None),
        ("sleep 5; run", None),
    ],
)
def test_habits_of_commands_are_seen(command: str, code: str | None) -> None:
    always = {"missed_runs", "retries"}
    found = {one.code for one in only(f"0 5 * * * {command}").findings}
    assert found == always | ({code} if code else set())


def test_forms_and_owners_follow_the_place_of_a_file(tmp_path: Path) -> None:
    spool = tmp_path / "crontabs"
    spool.mkdir()
    (spool / "joe").write_text("0 5 * * * run\n")
    (tmp_path / "plain").write_text("0 5 * * * root run\n")
    reading = read_crontabs([str(spool), str(tmp_path / "plain")], context=BERLIN)
    assert [(one.facts["user"], one.facts["command"]) for one in reading.entries] == [
        ("joe", "run"),
        ("", "root run"),
    ]
    forced = read_crontabs([str(tmp_path / "plain")], context=BERLIN, system=True)
    assert forced.entries[0].facts["user"] == "root"


def test_a_file_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    good, latin, large, binary = (tmp_path / name for name in ("a", "b", "c", "d"))
    good.write_text("0 5 * * * run\n")
    latin.write_bytes(b"0 5 * * * run\n0 6 * * * caf\xe9\n")
    large.write_bytes(b"#" * 1_048_577)
    binary.write_bytes(b"0 5 * * * run\0\n")
    (tmp_path / "e").mkdir()
    reading = read_crontabs([str(tmp_path), str(tmp_path / "none")], context=BERLIN)
    assert len(reading.entries) == 1
    wrong = {Path(one.place).name: one.text for one in reading.notices if one.wrong}
    assert wrong["b"] == "line 2 is not UTF-8"
    assert wrong["c"] == "has more than 1048576 bytes"
    assert set(wrong) == {"b", "c", "d", "none"}
    assert [Path(one.place).name for one in reading.notices if not one.wrong] == ["e"]
