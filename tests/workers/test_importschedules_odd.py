"""Sources that nobody would write: every one ends in entries and notices, none in a traceback."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.importing.celery_beat import read_rows
from workers.importing.crontab import read_crontab
from workers.importing.entries import Context, Entry, Zone
from workers.importing.kubernetes import read_manifests

CONTEXT = Context(Zone("Europe/Berlin", "a test"), datetime(2027, 1, 1, tzinfo=UTC))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["*", "*/2", "1-5", "0 5 * * *", "@every 1h", "UTC", "5", "", "2027-01-01"]),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
    st.just(datetime(2027, 1, 1, tzinfo=UTC)),
)
CRON_TEXT = st.text(alphabet="0159*/-,~@%\\#=\"' \t\nabMONSUNLW?TZCR_\x1b\r", max_size=60)
ROW_NAMES = (
    *(
        "id",
        "name",
        "task",
        "args",
        "kwargs",
        "queue",
        "enabled",
        "one_off",
        "start_time",
        "expires",
    ),
    *("expire_seconds", "priority", "last_run_at"),
)
CRON_NAMES = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")


def sound(entries: list[Entry]) -> None:
    """Each entry either has a rule or says why not."""
    for one in entries:
        assert (one.refusal is None) == bool(one.recurrence)
        json.dumps([one.place, one.rule, one.subject, one.key])


@settings(max_examples=400)
@given(CRON_TEXT, st.booleans())
def test_any_text_is_a_crontab_with_faults(text: str, system: bool) -> None:
    sound(read_crontab(text, place="t", context=CONTEXT, system=system).entries)


@settings(max_examples=300)
@given(st.data())
def test_any_value_may_stand_in_any_place_of_a_cronjob(data: st.DataObject) -> None:
    manifest: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "a", "namespace": "b", "creationTimestamp": "2027-01-01T00:00:00Z"},
        "status": {"lastScheduleTime": "2027-01-01T00:00:00Z"},
        "spec": {
            "schedule": data.draw(st.sampled_from(["0 5 * * *", "@every 1h"])),
            "timeZone": "UTC",
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 5,
            "suspend": False,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 1,
                    "activeDeadlineSeconds": 5,
                    "parallelism": 1,
                    "template": {
                        "spec": {
                            "containers": [{"image": "a", "command": ["b"], "args": ["c"]}],
                        }
                    },
                }
            },
        },
    }
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = manifest
        while True:
            names = list(place) if isinstance(place, dict) else list(range(len(place)))
            name = data.draw(st.sampled_from(names))
            if not isinstance(place[name], dict | list) or not place[name]:
                break
            if data.draw(st.booleans()):
                break
            place = place[name]
        place[name] = data.draw(ODD)
    reading = read_manifests(json.dumps(manifest, default=str), place="f", context=CONTEXT)
    sound(reading.entries)


@settings(max_examples=300)
@given(st.data())
def test_any_value_may_stand_in_any_column_of_celery(data: st.DataObject) -> None:
    columns: dict[str, Any] = {
        **dict.fromkeys(ROW_NAMES),
        **{"id": 1, "name": "a", "task": "b", "args": "[]", "kwargs": "{}", "enabled": True},
    }
    crontab: dict[str, Any] = {**dict.fromkeys(CRON_NAMES, "*"), "timezone": "UTC"}
    interval: dict[str, Any] = {"every": 5, "period": "hours"}
    for part in (columns, crontab, interval):
        for name in data.draw(st.lists(st.sampled_from(sorted(part)), max_size=2)):
            part[name] = data.draw(ODD)
    row = {**columns, "crontab": None, "interval": None, "solar": None, "clocked": None}
    row |= data.draw(st.sampled_from([{"crontab": crontab}, {"interval": interval}, {}]))
    sound(read_rows([row], context=CONTEXT).entries)
