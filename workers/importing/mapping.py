"""The mapping file: which handler does what a command did. Checked whole before anything is done with it.

{"rules": [{"match": {"command": …}, "handler": …, fields of jobs and schedules…}, {"match": …, "ignore": why}]}
The first rule that matches decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.errors import InvalidField, JobError, ValidationFailed
from jobs.policies.pointers import child_pointer
from jobs.services.schedule_requests import parse_schedule
from workers.importing.entries import Entry

# What can be matched: exact texts, and two forms for commands.
EXACT = ("command", "user", "file", "cronjob", "namespace", "image", "task", "name", "queue")
PATTERNS = ("prefix", "regex")
SCHEDULE_FIELDS = (
    *("timezone", "on_gap", "on_overlap", "misfire", "grace_seconds", "catch_up_most"),
    *("catch_up_seconds", "jitter_seconds", "starts_at", "ends_at", "max_runs", "on_running"),
    *("calendar", "on_holiday"),
)
JOB_FIELDS = (
    *("handler", "payload", "payload_ref", "lane", "priority", "labels", "reference", "tags"),
    *("max_attempts", "retry", "timeout_seconds", "concurrency_key"),
)
FACTS = (*EXACT, "stdin", "args", "kwargs")
MOST_RULES = 2_000
MOST_REGEX = 1_000
_HOLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\}|)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a mapping file.

    Attributes:
        place: JSON pointer.
        match: Exact texts and prefix, by name.
        regex: The whole command has to match.
        ignore: Why what matches is left out on purpose; "" if it is mapped.
        job, schedule: Their fields, with holes.
        name: Of the schedule, with holes; "" for one made here.
    """

    place: str
    match: Mapping[str, str]
    regex: re.Pattern[str] | None = None
    ignore: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def values(self, entry: Entry) -> dict[str, Any] | None:
        """What its holes are filled with, if it matches."""
        facts = entry.facts
        for name, wanted in self.match.items():
            if name == "prefix":
                if not str(facts.get("command", "")).startswith(wanted):
                    return None
            elif facts.get(name) != wanted:
                return None
        values = {name: facts.get(name, "") for name in FACTS}
        if self.regex is not None:
            found = self.regex.fullmatch(str(facts.get("command", "")))
            if found is None:
                return None
            values |= {name: text or "" for name, text in found.groupdict().items()}
        return values


def parse_mapping(text: str) -> list[Rule]:
    """The rules of a mapping file.

    Raises:
        ValidationFailed: Lists every fault by JSON pointer.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValidationFailed([InvalidField("", "malformed_json", str(error))]) from None
    if not isinstance(document, dict) or not isinstance(document.get("rules"), list):
        fault = InvalidField("/rules", "required", 'must be a list: {"rules": [...]}')
        raise ValidationFailed([fault])
    faults = [
        InvalidField(child_pointer("", name), "unknown", "is not a field of a mapping")
        for name in document
        if name != "rules"
    ]
    if len(document["rules"]) > MOST_RULES:
        faults.append(InvalidField("/rules", "too_many", f"must have at most {MOST_RULES}"))
    rules = []
    for number, fields in enumerate(document["rules"][:MOST_RULES]):
        try:
            rules.append(_rule(fields, f"/rules/{number}"))
        except ValidationFailed as several:
            faults += several.errors
    if faults:
        raise ValidationFailed(faults)
    return rules


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """The value with its holes filled. A text that is one hole takes the value as it is, else as text.

    >>> filled({"day": "${day}", "all": "${args}", "price": "$$5"}, {"day": "MON", "args": [1]})
    {'day': 'MON', 'all': [1], 'price': '$5'}
    """
    if isinstance(value, str):
        whole = _HOLE.fullmatch(value)
        if whole and whole[1]:
            return values[whole[1]]
        return _HOLE.sub(lambda found: str(values[found[1]]) if found[1] else "$", value)
    if isinstance(value, list):
        return [filled(one, values) for one in value]
    if isinstance(value, dict):
        return {name: filled(one, values) for name, one in value.items()}
    return value


def skeleton(entries: Sequence[Entry]) -> str:
    """A mapping file to fill in: a rule for every distinct command, job or task of what can be imported."""
    rules: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.refusal is not None:
            continue
        name = {"crontab": "command", "kubernetes": "cronjob", "celery_beat": "task"}[entry.source]
        payload = {"args": "${args}", "kwargs": "${kwargs}"} if name == "task" else {}
        match = {name: entry.facts[name]}
        rules.setdefault(json.dumps(match), {"match": match, "handler": "", "payload": payload})
    return json.dumps({"rules": list(rules.values())}, indent=2, ensure_ascii=False) + "\n"


def _rule(fields: Any, place: str) -> Rule:
    if not isinstance(fields, dict):
        raise ValidationFailed([InvalidField(place, "wrong_type", "must be an object")])
    faults: list[InvalidField] = []
    match, regex = _match(fields.get("match"), f"{place}/match", faults)
    if "ignore" in fields:
        reason = fields["ignore"]
        if not isinstance(reason, str) or not reason.strip():
            faults.append(InvalidField(f"{place}/ignore", "wrong_type", "must say why"))
        faults += [
            InvalidField(child_pointer(place, name), "conflict", "excludes ignore")
            for name in fields
            if name not in ("match", "ignore")
        ]
        if faults:
            raise ValidationFailed(faults)
        return Rule(place, match, regex, ignore=reason)
    known = {"match", "name", *JOB_FIELDS, *SCHEDULE_FIELDS}
    faults += [
        InvalidField(child_pointer(place, name), "unknown", "is not a field of a rule")
        for name in fields
        if name not in known
    ]
    job = {name: fields[name] for name in JOB_FIELDS if name in fields}
    schedule = {name: fields[name] for name in SCHEDULE_FIELDS if name in fields}
    groups = set(regex.groupindex) if regex else set()
    holes = {name: fields[name] for name in ("name", *JOB_FIELDS) if name in fields}
    _check_holes(holes, place, groups | set(FACTS), faults)
    faults += _field_faults(fields.get("name"), job, schedule, place)
    if faults:
        raise ValidationFailed(faults)
    return Rule(place, match, regex, job=job, schedule=schedule, name=fields.get("name", ""))


def _match(
    value: Any, place: str, faults: list[InvalidField]
) -> tuple[dict[str, str], re.Pattern[str] | None]:
    if not isinstance(value, dict) or not value:
        names = ", ".join((*EXACT, *PATTERNS))
        faults.append(InvalidField(place, "required", f"must be an object with one of {names}"))
        return {}, None
    match: dict[str, str] = {}
    regex = None
    for name, text in value.items():
        pointer = child_pointer(place, name)
        if name not in (*EXACT, *PATTERNS):
            faults.append(InvalidField(pointer, "unknown", "is nothing that can be matched"))
        elif not isinstance(text, str):
            faults.append(InvalidField(pointer, "wrong_type", "must be a text"))
        elif name == "regex":
            regex = _compiled(text, pointer, faults)
        else:
            match[name] = text
    return match, regex


def _compiled(text: str, pointer: str, faults: list[InvalidField]) -> re.Pattern[str] | None:
    if len(text) > MOST_REGEX:
        faults.append(
            InvalidField(pointer, "length", f"must have at most {MOST_REGEX} characters")
        )
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        faults.append(InvalidField(pointer, "bad_syntax", f"is no regular expression: {error}"))
        return None


def _check_holes(value: Any, place: str, known: set[str], faults: list[InvalidField]) -> None:
    """Every hole has a name that can be filled, and is written in full."""
    if isinstance(value, dict):
        for name, one in value.items():
            _check_holes(one, child_pointer(place, name), known, faults)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            _check_holes(one, f"{place}/{number}", known, faults)
    elif isinstance(value, str):
        for found in _HOLE.finditer(value):
            if found[0] == "$":
                text = "a hole is written ${name}, a dollar sign $$"
                faults.append(InvalidField(place, "bad_syntax", text))
            elif found[1] and found[1] not in known:
                text = f"${{{found[1]}}} is not known; there are {', '.join(sorted(known))}"
                faults.append(InvalidField(place, "unknown", text))


def _field_faults(
    name: Any, job: Mapping[str, Any], schedule: Mapping[str, Any], place: str
) -> list[InvalidField]:
    """What the engine itself would say of these fields, at their places in the file."""
    asked = {"name": name or "x", "cron": "@daily", **schedule, "job": dict(job)}
    try:
        parse_schedule(asked, defaults={})
    except ValidationFailed as several:
        return [
            InvalidField(f"{place}{_flat(one.pointer)}", one.field_code, one.reason)
            for one in several.errors
        ]
    except JobError as fault:
        return [InvalidField(place, fault.code, fault.detail)]
    return []


def _flat(pointer: str) -> str:
    return pointer.removeprefix("/job")
