"""Rows that no code of ours has written: each costs itself at most, never its neighbours or a process."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection

from jobs.models import Job, JobEvent
from jobs.services.verifying import verify_history
from tests.process.stories import finished, happened, story, submit

pytestmark = pytest.mark.process

DIGITS = "1" + "0" * 5_000
DEEP = "[" * 5_000 + "]" * 5_000
RAN = ["created", "leased", "started", "succeeded"]
OF_JOB = "update jobs_job set {} where id = %s"
OF_ENTRY = "update jobs_dueentry set {} where job_id = %s"
WAITING = {
    "payload is a list": (OF_JOB, "payload = '[1, 2]'"),
    "payload is a text of 1 MiB": (OF_JOB, "payload = to_jsonb(repeat('x', 1048576))"),
    "payload is deep": (OF_JOB, f"payload = '{DEEP}'"),
    "payload has a number of 5,000 digits": (OF_JOB, f"payload = '{DIGITS}'"),
    "payload has wrong types": (OF_JOB, """payload = '{"seconds": "long"}'"""),
    "handler is unknown": (OF_JOB, "handler = 'nobody.knows'"),
    "handler is a path": (OF_JOB, "handler = 'os.system'"),
    "retry is a text, and its attempt fails": (
        OF_JOB,
        """retry = '"fixed"', payload = '[]', attempt_limit = 1""",
    ),
    "retry is deep, and its attempt fails": (
        OF_JOB,
        f"retry = '{DEEP}', payload = '[]', attempt_limit = 1",
    ),
    "attempts are over": (OF_JOB, "attempt_limit = 0"),
    "timeout is no number": (OF_JOB, "timeout_seconds = 'NaN'"),
    "timeout is negative": (OF_JOB, "timeout_seconds = -1"),
    "timeout is endless": (OF_JOB, "timeout_seconds = 'Infinity'"),
    "result and error have wrong types": (OF_JOB, "last_error = '[1]', result = '\"x\"'"),
    "due since ever": (OF_ENTRY, "due_at = '-infinity'"),
    "due in the year 1": (OF_ENTRY, "due_at = '0001-01-01'"),
    "lane is gone": (OF_ENTRY, "lane_id = 30000"),
    "tenant is gone": (OF_ENTRY, "tenant_id = 999999"),
}
# Its one attempt cannot be carried out, so it ends dead; the others may succeed.
DIES = (
    *("payload is a list", "payload is a text of 1 MiB", "payload is deep"),
    *("payload has a number of 5,000 digits", "payload has wrong types"),
    *("handler is unknown", "handler is a path"),
    *("retry is a text, and its attempt fails", "retry is deep, and its attempt fails"),
)
EVENT_DETAILS = ("[1]", '"text"', "17", DIGITS, DEEP, '{"pool": {"a": []}, "attempt": "x"}')
FAILURE = """{{"cause": "lease_expired", "expires_at": "{}", "heartbeat_at": [], "delay": {}}}"""
FAILURE_DETAILS = [
    FAILURE.format(*values)
    for values in (("2026-01-01", "1e308"), ("9999-12-31T23:59:59Z", "-1e308"), ("never", '"1"'))
]


def test_f65_rows_written_past_validation_end_by_themselves_and_stop_nobody_else(fleet, probe):
    fleet.worker("--slots", "2")
    fleet.ready()
    poisoned: dict[str, UUID] = {}
    neighbours = []
    for number, (name, (statement, change)) in enumerate(WAITING.items()):
        poisoned[name] = submit(tenant=f"shop-{number % 4}", max_attempts=1)
        neighbours.append(submit(tenant=f"shop-{number % 4}"))
        with connection.cursor() as cursor:
            cursor.execute(statement.format(change), [poisoned[name]])
            assert cursor.rowcount == 1
    fleet.scheduler()
    fleet.until(lambda: finished(*neighbours), "the neighbours are finished")
    fleet.until(lambda: finished(*poisoned.values()), "the poisoned ones have ended too")

    for job in neighbours:
        assert story(job) == RAN
    ends = dict(Job.objects.filter(pk__in=list(poisoned.values())).values_list("pk", "status"))
    assert {name for name in DIES if ends[poisoned[name]] != "dead"} == set()
    assert set(ends.values()) <= {"dead", "succeeded"}
    after = submit()
    fleet.until(lambda: finished(after), "both processes go on")
    assert not any(process.ended for process in fleet.processes)
    verify_history(at_rest=True)  # whatever it finds, it comes to an end
    for job in (*neighbours, after):
        assert verify_history(job_id=job).clean


def test_f65_leases_and_histories_written_past_validation_do_not_stop_sweep_or_checker(
    fleet, probe
):
    """A killed worker's leases, each with something wrong, and events that hold any JSON."""
    fleet.scheduler()
    lost = fleet.worker("--slots", "4")
    fleet.ready()
    odd, *neighbours = [submit(gate="end", tenant=f"shop-{n}") for n in range(4)]
    for job in (odd, *neighbours):
        fleet.until(lambda job=job: probe.notes(job, "began"), "all run")
    lost.kill()
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_lease set attempt = -3, progress = '[1]', lane_id = 30000 where job_id = %s",
            [odd],
        )
        for number, detail in enumerate(EVENT_DETAILS):
            cursor.execute(
                "update jobs_jobevent set detail = %s where job_id = %s and seq = %s",
                [detail, (odd, *neighbours)[number % 2], 1 + number // 2],
            )
    fleet.worker("--slots", "4")
    probe.open("end")
    fleet.until(lambda: finished(*neighbours), "the neighbours are finished")
    fleet.until(
        lambda: happened(odd, "failed") or happened(odd, "dead"), "the odd one is taken back"
    )
    fleet.until(lambda: finished(odd), "and ends")

    for job in neighbours:
        kinds = JobEvent.objects.filter(job_id=job).order_by("seq").values_list("kind", flat=True)
        assert list(kinds) == [*RAN[:-1], "failed", *RAN[1:]]
    verdict = verify_history()
    assert verdict.jobs == 4
    with connection.cursor() as cursor:
        for detail in FAILURE_DETAILS:
            update = "update jobs_jobevent set detail = %s where job_id = %s and kind = 'failed'"
            cursor.execute(update, [detail, neighbours[0]])
            assert {"I7", "I10"} <= verify_history(job_id=neighbours[0]).by_invariant.keys()
    for job in neighbours[1:]:
        assert verify_history(job_id=job).clean
