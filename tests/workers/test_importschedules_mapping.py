"""Mapping files: every fault by its place, matches, holes; and what is hidden of commands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.errors import ValidationFailed
from workers.importing.entries import Entry, Zone
from workers.importing.mapping import filled, parse_mapping, skeleton
from workers.importing.texts import masked

UTC = Zone("UTC", "a test")


def entry(command: str = "backup --full db1", **facts: Any) -> Entry:
    known = {"command": command, "user": "root", "file": "/etc/crontab", "stdin": "", **facts}
    return Entry(
        source="crontab", place="t:1", rule="@daily", subject=command, zone=UTC, facts=known
    )


def rules(*fields: dict[str, Any]) -> Any:
    return parse_mapping(json.dumps({"rules": list(fields)}))


def faults(document: Any) -> dict[str, str]:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ValidationFailed) as refused:
        parse_mapping(text)
    return {one.pointer: one.field_code for one in refused.value.errors}


def test_every_fault_of_a_file_is_told_at_once_by_its_place() -> None:
    match = {"command": "x"}
    assert faults(
        {
            "ruls": [],
            "rules": [
                5,
                {"handler": "a"},
                {"match": {}, "handler": "a"},
                {"match": {"colour": "red"}, "handler": "a"},
                {"match": {"command": 5}, "handler": "a"},
                {"match": {"regex": "("}, "handler": "a"},
                {"match": {"regex": "x" * 1001}, "handler": "a"},
                {"match": match},
                {"match": match, "handler": ""},
                {"match": match, "handler": "a", "lan": "low"},
                {"match": match, "handler": "a", "priority": 1000},
                {"match": match, "handler": "a", "misfire": "often"},
                {"match": match, "handler": "a", "timezone": "Mars/Base"},
                {"match": match, "handler": "a", "name": "x" * 201},
                {"match": match, "handler": "a", "cron": "@daily"},
                {"match": match, "handler": "a", "payload": {"a/b": ["${colour}"]}},
                {"match": match, "handler": "a", "payload": "cost: $5"},
                {"match": match, "handler": "a", "payload": "x" * 2_000_000},
                {"match": match, "ignore": ""},
                {"match": match, "ignore": "old", "handler": "a"},
            ],
        }
    ) == {
        "/ruls": "unknown",
        "/rules/0": "wrong_type",
        "/rules/1/match": "required",
        "/rules/2/match": "required",
        "/rules/3/match/colour": "unknown",
        "/rules/4/match/command": "wrong_type",
        "/rules/5/match/regex": "bad_syntax",
        "/rules/6/match/regex": "length",
        "/rules/7/handler": "required",
        "/rules/8/handler": "length",
        "/rules/9/lan": "unknown",
        "/rules/10/priority": "out_of_range",
        "/rules/11/misfire": "bad_policy",
        "/rules/12/timezone": "unknown_timezone",
        "/rules/13/name": "length",
        "/rules/14/cron": "unknown",
        "/rules/15/payload/a~1b/0": "unknown",
        "/rules/16/payload": "bad_syntax",
        "/rules/17": "payload_too_large",
        "/rules/18/ignore": "wrong_type",
        "/rules/19/handler": "conflict",
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"rules": {}}', "[" * 100_000])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({"command": "backup --full db1"}, True),
        ({"command": "backup"}, False),
        ({"prefix": "backup "}, True),
        ({"prefix": "restore"}, False),
        ({"regex": r"backup --full (?P<name>\w+)"}, True),
        ({"regex": "backup"}, False),  # the whole command
        ({"prefix": "backup", "user": "root"}, True),
        ({"prefix": "backup", "user": "joe"}, False),
        ({"file": "/etc/crontab"}, True),
        ({"task": "backup --full db1"}, False),
    ],
)
def test_a_rule_matches_only_if_all_of_it_does(match: dict[str, str], matches: bool) -> None:
    (rule,) = rules({"match": match, "handler": "a"})
    assert (rule.values(entry()) is not None) == matches


def test_holes_take_groups_and_facts_and_nothing_else() -> None:
    (rule,) = rules(
        {
            "match": {"regex": r"backup --(?P<mode>\w+) (?P<name>\w+)(?P<rest> .*)?"},
            "handler": "a",
            "payload": {
                "db": "${name}",
                "by": "${user}: ${mode}",
                "rest": "${rest}",
                "$$": "$$${x}"[:2],
            },
        }
    )
    values = rule.values(entry())
    assert filled(rule.job["payload"], values) == {
        "db": "db1",
        "by": "root: full",
        "rest": "",
        "$$": "$",
    }
    # A value is put in as it is: what looks like a hole in a command stays what it is.
    odd = rule.values(entry("backup --full ${user}x")) or rule.values(
        entry("backup --full a ${user}")
    )
    assert filled("${rest}", odd) == " ${user}"


def test_a_skeleton_names_each_command_once_and_is_not_yet_a_mapping() -> None:
    text = skeleton([entry(), entry(), entry("other")])
    assert [one["match"] for one in json.loads(text)["rules"]] == [
        {"command": "backup --full db1"},
        {"command": "other"},
    ]
    assert faults(text) == {"/rules/0/handler": "length", "/rules/1/handler": "length"}
    parse_mapping(text.replace('"handler": ""', '"handler": "a"'))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x --password hunter2 y", "x --password *** y"),
        ("x --password='hun ter2' y", "x --password=*** y"),
        ("DB_PASSWORD=hunter2 run", "DB_PASSWORD=*** run"),
        ("API_KEY=hunter2;run", "API_KEY=***;run"),
        ("curl -u me:hunter2 http://x", "curl -u me:*** http://x"),
        ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: *** x"),
        ("pg_dump postgresql://me:hunter2@db/x", "pg_dump postgresql://me:***@db/x"),
        ("mysqldump -u root -phunter2 x", "mysqldump -u root -p*** x"),
        ("run-parts --report /etc/cron.daily", "run-parts --report /etc/cron.daily"),
        ("auth Bearer hunter2 x", "auth Bearer *** x"),
        ("x --token a" + "b" * 3000, "x --token ***"),
        ("a" * 200, "a" * 159 + "…"),
    ],
)
def test_secrets_of_commands_are_hidden(text: str, shown: str) -> None:
    assert masked(text) == shown
