"""crontab(5) text → entries. Pure: the text is read, nothing of it is run.

Debian's cron is the measure, cronie where it does more. Both ignore a whole file for one bad line; here the others go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jobs.errors import InvalidField
from jobs.policies.cron import ALIASES, parse_cron
from jobs.policies.zones import parse_zone
from workers.importing.cron_meaning import cron_dst, day_findings, foreign_to_cron
from workers.importing.entries import Context, Entry, Finding, Kind, Notice, Reading, Zone

# cron starts everything on time or never; here a start may have to wait for a free worker, and is then not given up at once.
GRACE_SECONDS = 900
MISSED = Finding(
    "missed_runs",
    "cron drops what falls into a time when it does not run (anacron would run it later): misfire=skip, but a run that"
    f" has to wait, for a worker or for Duekeeper itself, still starts within {GRACE_SECONDS // 60} minutes",
)
RETRIES = Finding(
    "retries",
    "cron runs a command once, whatever becomes of it; the handler's retry policy holds here"
    " (max_attempts: 1 in the mapping tries once)",
)
STDIN = Finding(
    "stdin",
    "what follows the first % is standard input to cron; a mapping can fill it in as ${stdin}",
    Kind.NOTE,
)
# What commands of Debian's packages do besides their work: (code, how it is seen, what it means).
HABITS = (
    (
        "guarded",
        re.compile(r"/anacron(?: \])?\s*\|\|"),
        "does nothing where anacron is installed: anacron runs that work there, also after a time without power",
    ),
    (
        "guarded",
        re.compile(r"/run/systemd/system\b"),
        "asks whether systemd runs the machine, and leaves the work to a timer of the same package if so",
    ),
    (
        "own_calendar",
        re.compile(r"(?:\[|\btest)\s[^;&|]*(?:\$\(|`)\s*date\s+['\"]?\+"),
        "looks at the date itself, so the rule alone does not tell on which days it works; the first Sunday, say, is 0#1"
        " as day-of-week here",
    ),
    (
        "own_delay",
        re.compile(r"\bsleep\b.*\brand|\bsleep\b.*\bRANDOM\b|\bRANDOM\b.*\bsleep\b"),
        "waits a random time before it begins; jitter_seconds of a schedule spreads runs here",
    ),
)
RUN_PARTS = re.compile(r"\brun-parts\b.*?(/[\w./-]+)")

_SETTING = re.compile(
    r"""[ \t]*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s="'#][^\s="']*))[ \t]*=[ \t]*(?P<value>.*)"""
)
_ZONES = ("CRON_TZ", "TZ")


@dataclass(slots=True)
class _File:
    """What is known of a file so far."""

    place: str
    system: bool
    user: str
    honour_zone: bool
    context: Context
    settings: list[str] = field(default_factory=list)
    reading: Reading = field(default_factory=Reading)
    zone: Zone | None = None  # of CRON_TZ
    zone_fault: Finding | None = None

    def notice(self, code: str, text: str, *, line: int = 0, wrong: bool = False) -> None:
        place = f"{self.place}:{line}" if line else self.place
        self.reading.notices.append(Notice(place, code, text, wrong))


def read_crontab(
    text: str,
    *,
    place: str,
    context: Context,
    system: bool = False,
    user: str = "",
    honour_zone: bool = True,
) -> Reading:
    """All rules of a crontab, good and bad, and what else its reader should know.

    Args:
        text: As it stands in the file.
        place: Its name, for people and for the names of schedules.
        context: Zone of the machine, and the time.
        system: Its lines name a user, as in /etc/crontab and /etc/cron.d.
        user: Whose crontab it is; only where lines name none.
        honour_zone: CRON_TZ is the zone of what follows, as in cronie; else it is ignored, as by Debian's cron.
    """
    file = _File(place, system, user, honour_zone, context)
    for number, line in _lines(text):
        _read_line(line, number, file)
    _sum_up(file, text)
    return file.reading


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that say something. Only a newline ends one: a form feed within a command is its own."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r").lstrip(" \t")
        if line and not line.startswith("#"):
            yield number, line


def _read_line(line: str, number: int, file: _File) -> None:
    if found := _SETTING.fullmatch(line):
        name = found["double"] or found["single"] or found["bare"] or ""
        _read_setting(name, _unquoted(found["value"]), number, file)
        return
    file.reading.entries.append(_entry(line, number, file))


def _read_setting(name: str, value: str, number: int, file: _File) -> None:
    if name not in _ZONES:
        file.settings.append(name)
        return
    if name == "TZ":
        text = "TZ is the zone of the commands, not of the times at which cron runs them: ignored"
        file.notice("tz", text, line=number)
        return
    if not file.honour_zone:
        file.notice("cron_tz", "CRON_TZ is ignored, as Debian's cron does", line=number)
        return
    file.zone, file.zone_fault = None, None
    try:
        if value:
            file.zone = Zone(parse_zone(value), "CRON_TZ")
            file.notice(
                "cron_tz",
                f"rules from here on run in {value}, as in cronie; Debian's cron ignores CRON_TZ"
                " (--ignore-cron-tz does so, too)",
                line=number,
            )
    except InvalidField as fault:
        file.zone_fault = Finding(fault.field_code, f"CRON_TZ of line {number} {fault.reason}")
        file.notice(fault.field_code, f"CRON_TZ {fault.reason}", line=number, wrong=True)


def _unquoted(value: str) -> str:
    value = value.strip(" \t")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _entry(line: str, number: int, file: _File) -> Entry:
    rule, rest = _split(line)
    user, command = file.user, rest
    if file.system:
        user, command, *_ = [*re.split(r"[ \t]+", rest, maxsplit=1), ""]
    command, stdin = _command(command)
    zone = file.zone or file.context.zone
    facts = {"command": command, "stdin": stdin, "user": user, "file": file.place}
    common = {
        "source": "crontab",
        "place": f"{file.place}:{number}",
        "rule": rule,
        "subject": command,
        "zone": zone,
        "facts": facts,
    }
    refusal = file.zone_fault or _refusal(rule, rest, command, system=file.system)
    if refusal is not None:
        return Entry(**common, refusal=refusal)  # type: ignore[arg-type]
    text, days = day_findings(rule, who="cron", stars_decide=True)
    policies, clock = cron_dst(rule, zone.key, file.context.now)
    findings = [*days, *clock, MISSED, RETRIES, *_of_command(command, stdin)]
    return Entry(
        **common,  # type: ignore[arg-type]
        recurrence={"cron": text, **policies},
        fields={"misfire": "skip", "grace_seconds": GRACE_SECONDS},
        findings=tuple(findings),
    )


def _split(line: str) -> tuple[str, str]:
    """The time as text with single blanks, and the rest of the line as it is."""
    count = 1 if line.startswith("@") else 5
    parts = re.split(r"[ \t]+", line, maxsplit=count)
    return " ".join(parts[:count]), parts[count] if len(parts) > count else ""


def _command(text: str) -> tuple[str, str]:
    r"""The command and its standard input: the first % ends the one, further ones are newlines, \% is a percent sign.

    >>> _command(r"mail joe%Hello%at 5\% off")
    ('mail joe', 'Hello\nat 5% off')
    """
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    return parts[0].rstrip(" \t"), "\n".join(parts[1:])


def _refusal(rule: str, rest: str, command: str, *, system: bool) -> Finding | None:
    if rule == "@reboot":
        return Finding(
            "unsupported",
            "@reboot runs when a machine starts, which is no time; start such work from the machine itself",
        )
    if rule.startswith("@") and rule not in ALIASES:
        return Finding("bad_syntax", f"{rule} is none of {', '.join(ALIASES)}")
    if not rule.startswith("@"):
        if len(rule.split()) < 5:
            return Finding("wrong_field_count", "a line has five fields and a command")
        if foreign := foreign_to_cron(rule.split()):
            return foreign
    try:
        parse_cron(rule)
    except InvalidField as fault:
        return Finding(fault.field_code, fault.reason)
    if not rest or (system and not command):
        what = "a user and a command" if system else "a command"
        return Finding("no_command", f"there must be {what} after the time")
    return None


def _of_command(command: str, stdin: str) -> Iterator[Finding]:
    if stdin:
        yield STDIN
    for code, pattern, meaning in HABITS:
        if pattern.search(command):
            yield Finding(code, f"the command {meaning}", Kind.NOTE)
    if found := RUN_PARTS.search(command):
        yield Finding(
            "run_parts",
            f"runs every script of {found[1]}, one after the other: map it to one handler, or each script on its own",
            Kind.NOTE,
        )


def _sum_up(file: _File, text: str) -> None:
    """Notices about the file as a whole."""
    entries = file.reading.entries
    others = sorted({name for name in file.settings if not name.startswith("MAIL")})
    if any(name.startswith("MAIL") for name in file.settings):
        names = ", ".join(sorted({name for name in file.settings if name.startswith("MAIL")}))
        file.notice("mailto", f"{names} ignored: no mail is sent; failures are dead letters here")
    if others:
        file.notice(
            "environment", f"{', '.join(others)} ignored: handlers have their worker's environment"
        )
    users = sorted({str(one.facts["user"]) for one in entries if one.facts["user"]})
    if users:
        names = ", ".join(users)
        file.notice("user", f"commands ran as {names}; handlers run as their worker's user")
    bad = [one.place.rpartition(":")[2] for one in entries if _stops_cron(one)]
    if bad:
        file.notice(
            "file_ignored",
            f"cron cannot read line {', '.join(bad)}: Debian's cron then ignores the whole file, so what else stands in it"
            " may never have run",
        )
    if text and not text.endswith("\n"):
        file.notice(
            "no_newline", "the last line has no newline: Debian's cron ignores the whole file"
        )
    if "\r" in text:
        file.notice("carriage_return", "lines end as in Windows; cron gives \\r to the commands")
    if not file.system and entries and users == [] and _names_root(entries):
        file.notice(
            "system_form", "every command begins with root: is it a system crontab? --system"
        )


def _stops_cron(entry: Entry) -> bool:
    """A refusal that is cron's own, too, as far as that is sure."""
    return entry.refusal is not None and entry.refusal.code in {
        *("step_without_range", "no_command", "wrong_field_count", "out_of_range"),
    }


def _names_root(entries: list[Entry]) -> bool:
    return all(str(one.facts["command"]).startswith("root ") for one in entries)
