"""CronJob manifests: many documents, what each field becomes, and files made to hurt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from workers.importing.entries import Context, Entry, Kind, Reading, Zone
from workers.importing.kubernetes import read_manifests

NOW = datetime(2027, 1, 1, tzinfo=UTC)
CONTEXT = Context(Zone("UTC", "a test"), NOW)
FILE = Path(__file__).parents[1] / "support" / "schedules" / "cronjobs.yaml"


def read(text: str) -> Reading:
    return read_manifests(text, place="jobs.yaml", context=CONTEXT)


def cronjob(job: dict[str, Any] | None = None, **spec: Any) -> Entry:
    pod = {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}
    value = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "one"},
        "spec": {"schedule": "0 5 * * *", "jobTemplate": {"spec": {**pod, **(job or {})}}, **spec},
    }
    (entry,) = read(yaml.safe_dump(value)).entries
    return entry


def codes(entry: Entry) -> set[str]:
    return {one.code for one in entry.findings}


def test_a_file_of_many_documents_is_read_past_the_bad_one() -> None:
    reading = read_manifests(FILE.read_text("utf-8"), place="f", context=CONTEXT)
    assert [one.key for one in reading.entries] == [
        "shop/nightly-report",
        "default/beat",
        "default/sunday",
    ]
    assert [(one.code, one.wrong) for one in reading.notices] == [
        ("bad_yaml", True),
        ("other_kinds", False),
    ]
    assert reading.notices[1].text.endswith("1 ConfigMap, 1 Secret")
    assert "not-to-be-shown" not in repr(reading)


def test_every_field_has_its_place() -> None:
    entry = read_manifests(FILE.read_text("utf-8"), place="f", context=CONTEXT).entries[0]
    assert (entry.place, entry.zone.key, entry.zone.source) == (
        "f:7",
        "Europe/Berlin",
        "spec.timeZone",
    )
    assert entry.recurrence == {"cron": "30 2 * * *", "on_gap": "skip", "on_overlap": "both"}
    assert entry.fields == {"on_running": "skip", "misfire": "skip", "grace_seconds": 600}
    assert entry.job == {"max_attempts": 3, "timeout_seconds": 1800}
    assert entry.facts["command"] == "/bin/report --day 'yesterday and today'"
    assert entry.facts["image"] == "registry.example/report:7"
    assert entry.paused
    assert {"dst", "missed_runs", "retries", "timeout", "overlap"} == codes(entry)


def test_elapsed_time_keeps_its_anchor() -> None:
    entry = read_manifests(FILE.read_text("utf-8"), place="f", context=CONTEXT).entries[1]
    assert entry.recurrence == {"every": "90m", "anchor": "2026-01-01T00:00:30Z"}
    assert cronjob(schedule="@every 45s").recurrence == {
        "every": "45s",
        "anchor": "2027-01-01T00:00:00Z",
    }
    assert cronjob(schedule="@every 1.5h").recurrence["every"] == "90m"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"schedule": "* * * * * *"}, "wrong_field_count"),
        ({"schedule": 5}, "required"),
        ({"schedule": ""}, "required"),
        ({"schedule": "@reboot"}, "bad_syntax"),
        ({"schedule": "61 * * * *"}, "out_of_range"),
        ({"schedule": "@every 500ms"}, "sub_second"),
        ({"schedule": "@every 1 h"}, "bad_syntax"),
        ({"timeZone": "Mars/Base"}, "unknown_timezone"),
        ({"schedule": "TZ=UTC 0 5 * * *", "timeZone": "UTC"}, "conflict"),
        ({"schedule": "TZ=Mars 0 5 * * *"}, "unknown_timezone"),
        ({"concurrencyPolicy": "Wait"}, "bad_policy"),
        ({"concurrencyPolicy": ["Allow"]}, "bad_policy"),
        ({"startingDeadlineSeconds": -1}, "out_of_range"),
        ({"startingDeadlineSeconds": "9"}, "out_of_range"),
        ({"job": {"backoffLimit": -1}}, "out_of_range"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_by_name(spec: dict[str, Any], code: str) -> None:
    refusal = cronjob(**spec).refusal
    assert refusal is not None
    assert refusal.code == code


def test_other_versions_and_nameless_ones_are_refused() -> None:
    for text in (
        "{kind: CronJob, apiVersion: batch/v2, metadata: {name: a}, spec: {schedule: '@daily'}}",
        "{kind: CronJob, apiVersion: batch/v1, spec: {schedule: '@daily'}}",
        "{kind: CronJob, apiVersion: batch/v1, metadata: [], spec: []}",
    ):
        (entry,) = read(text).entries
        assert entry.refusal is not None


def test_a_zone_within_the_schedule_is_mapped_and_told() -> None:
    entry = cronjob(schedule="CRON_TZ=Asia/Tokyo 0 5 * * *")
    assert (entry.zone.key, entry.recurrence["cron"]) == ("Asia/Tokyo", "0 5 * * *")
    assert "tz_prefix" in codes(entry)


def test_what_kubernetes_itself_refuses_is_not_taken_silently() -> None:
    for schedule in ("0 5 * * 7", "0 5 * * FRI-SUN", "0 5 L * *", "0 5 * * 1#1"):
        told = [one for one in cronjob(schedule=schedule).findings if one.other_days]
        assert [one.code for one in told] == ["refused_there"]
    assert not [one for one in cronjob(schedule="0 5 */2 * SUN").findings if one.other_days]


def test_policies_and_limits() -> None:
    assert cronjob().fields == {"on_running": "allow", "misfire": "latest"}
    assert cronjob().job == {"max_attempts": 7}
    assert cronjob(concurrencyPolicy="Replace").fields["on_running"] == "cancel_running"
    assert cronjob(startingDeadlineSeconds=0).fields["grace_seconds"] == 1
    long = cronjob(job={"activeDeadlineSeconds": 100_000})
    assert "timeout_seconds" not in long.job
    assert "timeout" in codes(long)
    assert "parallelism" in codes(cronjob(job={"completions": 3}))
    dst = [one.kind for one in cronjob(timeZone="Europe/Rome", schedule="30 2 * * *").findings]
    assert dst[0] is Kind.KEPT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: &a [1]\nb: *a", "alias"),
        ("schedule: */5 * * * *", "quotes"),
        ("a: 1\na: 2", "twice"),
        ("[" * 5000, ""),
        ("[" * 100 + "]" * 100, "deep"),
        ("a: !!python/object/apply:os.system ['touch x']", "constructor"),
        ("a: 2026-13-45", ""),
        ("{", ""),
    ],
)
def test_files_made_to_hurt_are_named(text: str, told: str) -> None:
    reading = read(f"{text}\n---\nkind: CronJob\n")
    (notice,) = [one for one in reading.notices if one.wrong]
    assert notice.code == "bad_yaml"
    assert told in notice.text
    assert len(reading.entries) == 1


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n", "a text", "[1, 2]", "5"])
def test_what_is_no_manifest_gives_no_entry(text: str) -> None:
    reading = read(text)
    assert reading.entries == []
    assert not [one for one in reading.notices if one.wrong]


def test_a_list_of_cronjobs_lends_its_kind_to_its_items() -> None:
    text = """
kind: CronJobList
apiVersion: batch/v1
items:
- metadata: {name: a}
  spec: {schedule: "@daily"}
"""
    (entry,) = read(text).entries
    assert entry.refusal is None
    assert entry.key == "default/a"
