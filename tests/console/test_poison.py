"""Fault F65: rows that were written past validation never break a page, here or in the admin, nor hide their neighbours."""

from __future__ import annotations

from itertools import batched
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse

from jobs.models import (
    DeadLetter,
    DueEntry,
    Job,
    JobEvent,
    Lane,
    Lease,
    Pool,
    Route,
    Tenant,
    Worker,
)
from jobs.states import Place
from tests.factories import make_job

DEEP = "[" * 5_000 + "]" * 5_000
LONG = "x" * 2**19  # longer than any page may be
ODD_TEXT = "\x01\x1b[31m\u202etxt.exe\u2066 \u2400 \\u0000 %s {0} {{ user }} é 🙂"
JSON_VALUES = {
    "null": "null",
    "true": "true",
    "number": "17",
    "large number": "1" + "0" * 5_000,
    "fraction": "0.1234567890123456789012345678901234567890",
    "text": '"text"',
    "list": "[1, [2], {}]",
    "empty object": "{}",
    "objects where texts belong": '{"type": {"a": [1]}, "message": [1, 2], "where": 5, "cause": {"x": 1},'
    ' "attempt": "three", "kind": ["fixed"], "base_seconds": "soon", "error": 3, "reason": {"r": 1}, "delay": "later",'
    ' "worker": 7, "expires_at": "yesterday", "heartbeat_at": {"h": 1}, "pool": [1], "cancel": [2], "was": 1,'
    ' "current_token": {"t": 1}, "reported": null, "note": [1], "old_due_at": 9, "old_lane": {}, "tags": 5}',
    "deep": DEEP,
    "long": f'"{LONG}"',
    "odd text": '{"\\u202e<b>": "\\u001b[31m \\u2028 \\ud83d\\ude42", "": {"": ""}}',
}
KINDS = [
    "created", "leased", "started", "succeeded", "failed", "dead", "snoozed", "released", "publish_expired",
    "cancel_requested", "cancelled", "completion_rejected", "requeued", "discarded", "edited", "exploded", "",
]  # fmt: skip
COLUMNS: dict[str, list[str]] = {
    "jobs_job": [
        "due_at = 'infinity'",
        "due_at = '20000-01-01'",
        "due_at = '-infinity', seq = 0",
        "due_at = '4000-01-01 BC'",
        "created_at = 'infinity', updated_at = '-infinity'",
        "cancel_requested_at = 'infinity', cancel_requested_by = '', cancel_reason = ''",
        "timeout_seconds = 'NaN'",
        "timeout_seconds = 'Infinity'",
        "timeout_seconds = -1e300",
        "timeout_seconds = 1e300",
        "attempt_limit = -5",
        "attempt_limit = 2147483647",
        "max_attempts = 32767",
        "priority = 32767",
        "handler = 'os.system'",
        "handler = ''",
        "tenant_id = 987654",
        "route_id = 987654",
        "lane_id = 9999",
        "tenant_id = -1, route_id = -1, lane_id = -1",
        "request_key = '', reference = '', created_by = ''",
        "concurrency_key = '', payload_ref = 'javascript:alert(1)'",
    ],
    "jobs_lease": [
        "started_at = '-infinity', heartbeat_at = 'infinity'",
        "due_at = 'infinity', expires_at = 'infinity'",
        "rank = '-infinity'",
        "heartbeat_at = '-infinity'",
        "pool_id = 987654",
        "worker = '00000000-0000-0000-0000-000000000000'",
        "job_id = '01a22b0f-0000-7fff-8000-000000000000'",
        "cancel_requested = true",
    ],
    "jobs_dueentry": [
        "due_at = 'infinity'",
        "due_at = '20000-01-01'",
        "job_id = '01a22b0f-0000-7fff-8000-000000000000'",
        "lane_id = 9999, route_id = -1, tenant_id = 0",
    ],
    "jobs_deadletter": [
        "due_at = 'infinity'",
        "job_id = '01a22b0f-0000-7fff-8000-000000000000'",
        "died_at = 'infinity'",
        "died_at = '-infinity', resolved_at = 'infinity', resolution = 'discarded'",
        "tenant_id = 987654",
        "attempts = -1, reason = '', error_type = '', message = '', fingerprint = ''",
        f"message = '{LONG}'",
    ],
    "jobs_jobevent": [
        "attempt = -1, token = -1, lease = null, due_at = null",
        'at = \'infinity\', detail = \'{"reason": [1], "cause": 5, "error": 7}\'',
        "at = '20000-01-01', due_at = 'infinity'",
        "due_at = '-infinity'",
        "tenant_id = 987654",
    ],
}
TEXTS = {
    "jobs_job": ("handler", "reference", "request_key", "concurrency_key", "payload_ref", "cancel_reason",
                 "cancel_requested_by", "created_by"),
    "jobs_deadletter": ("handler", "error_type", "message", "note", "resolved_by"),
    "jobs_jobevent": ("actor",),
    "jobs_pool": ("name",), "jobs_tenant": ("name",), "jobs_lane": ("name",), "jobs_worker": ("host",),
}  # fmt: skip


def write(sql: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


@pytest.fixture
def jobs(db: None) -> dict[str, Job]:
    return {
        "healthy": make_job(delay_seconds=60, reference="healthy-neighbour"),
        "waiting": make_job(payload={"a": 1}, request_key="k1", tags=["a"]),
        "running": make_job(place=Place.RUNNING, cancel_asked=True),
        "dead": make_job(place=Place.DEAD_LETTER),
        "succeeded": make_job(place=Place.FINISHED),
    }


# In the admin these show rows of their own table only, so that a change elsewhere cannot reach them.
OF_THEIR_OWN = (Route, Pool, Tenant, Lane, Worker)


def check_every_page(staff: Client, jobs: dict[str, Job], *changed: str) -> None:
    """Every page that rows of the changed tables can reach."""
    User.objects.update(is_superuser=True)  # for the admin
    console = reverse("console:jobs")
    addresses = [
        console,
        *(
            f"{console}?status={status}&window=any"
            for status in ("scheduled", "dead", "succeeded", "cancelled")
        ),
        f"{console}?phase=running",
        f"{console}?window=any&sort=due_at",
        f"{console}?q={str(jobs['healthy'].pk)[:6]}",
        reverse("console:dead_letters"),
        *(reverse("console:job", args=[job.pk]) for job in jobs.values()),
    ]
    own = [model for model in OF_THEIR_OWN if model._meta.db_table in changed]
    for model in (Job, DueEntry, Lease, DeadLetter, JobEvent, *own):
        name = model._meta.model_name
        addresses.append(reverse(f"admin:jobs_{name}_changelist"))
        if model is not JobEvent:
            keys = model.objects.values_list("pk", flat=True)
            addresses += [reverse(f"admin:jobs_{name}_change", args=[key]) for key in keys]
    for address in addresses:
        answer = staff.get(address)
        assert answer.status_code == 200, address
        assert len(answer.content) < 400_000, address
    assert "healthy-neighbour" in staff.get(console).content.decode()


JSON_COLUMNS = {
    "jobs_job": ("payload", "result", "tags", "retry", "last_error"),
    "jobs_jobevent": ("detail",),
    "jobs_lease": ("progress",),
    "jobs_route": ("labels",),
    "jobs_pool": ("labels", "exclusive_labels"),
}


@pytest.mark.parametrize("name", JSON_VALUES)
def test_f65_json_of_any_shape_is_shown(staff: Client, jobs: dict[str, Job], name: str) -> None:
    for table, columns in JSON_COLUMNS.items():
        for column in columns:
            write(f"update {table} set {column} = %s::jsonb", JSON_VALUES[name])
    check_every_page(staff, jobs, *JSON_COLUMNS)
    check_every_kind(staff, jobs["dead"])


@pytest.mark.parametrize("actor", ["worker:no-id", "scheduler:", "", ":::", "user:", "token:\x01"])
def test_f65_any_kind_of_event_by_anybody_is_shown(
    staff: Client, jobs: dict[str, Job], actor: str
) -> None:
    write("update jobs_jobevent set actor = %s", actor)
    check_every_kind(staff, jobs["dead"])


def check_every_kind(staff: Client, job: Job) -> None:
    """As many kinds on one page as the job has events."""
    count = JobEvent.objects.filter(job=job).count()
    assert count > 1
    for kinds in batched(KINDS, count):
        for seq, kind in enumerate(kinds, start=1):
            write("update jobs_jobevent set kind = %s where seq = %s", kind, seq)
        assert staff.get(reverse("console:job", args=[job.pk])).status_code == 200, kinds


@pytest.mark.parametrize(
    ("table", "change"), [(table, change) for table, all_ in COLUMNS.items() for change in all_],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_f65_absurd_columns_are_shown(
    staff: Client, jobs: dict[str, Job], table: str, change: str
) -> None:
    keys = {
        "jobs_job": "id <> %s",
        "jobs_dueentry": "job_id <> %s",
        "jobs_jobevent": "job_id <> %s",
    }
    spared = f" where {keys[table]}" if table in keys else ""
    if "request_key" in change:
        spared += f" and id = '{jobs['waiting'].pk}'"
    write(f"update {table} set {change}{spared}", *([jobs["healthy"].pk] if spared else []))
    check_every_page(staff, jobs, table)


@pytest.mark.parametrize("table", TEXTS)
def test_f65_odd_text_is_shown_as_text(staff: Client, jobs: dict[str, Job], table: str) -> None:
    for column in TEXTS[table]:
        first = f"where id = (select id from {table} order by id desc limit 1)"
        spared = f"where id <> '{jobs['healthy'].pk}'" if table == "jobs_job" else first
        own = "'' || id ||" if column in ("request_key", "name") else ""
        write(f"update {table} set {column} = left({own} %s, 63) {spared}", ODD_TEXT)
    check_every_page(staff, jobs, table)
    page = staff.get(reverse("console:job", args=[jobs["running"].pk])).content.decode()
    for character in "\x01\x1b\u202e\u2066":
        assert character not in page
