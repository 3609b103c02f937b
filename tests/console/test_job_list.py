"""The job list: what it shows, how it pages, what it answers to bad input."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.models import DueEntry, Job, Lease
from jobs.policies.sharding import new_job_id
from jobs.queries import lists
from jobs.queries.lists import Filters, View, bounded_reading, read_job_page
from jobs.states import Place
from jobs.transitions.cancel import cancel_job
from tests.console.rows import clone
from tests.factories import make_handler, make_job, make_tenant

JOBS = reverse("console:jobs")
JOB_LINK = re.compile(r'href="/console/jobs/([0-9a-f-]{36})/"')
NEXT = re.compile(r'rel="next" href="([^"]+)"')
PREVIOUS = re.compile(r'rel="prev" href="([^"]+)"')


def shown(answer) -> list[UUID]:
    assert answer.status_code == 200, answer.content.decode()[:2000]
    return [UUID(found) for found in JOB_LINK.findall(answer.content.decode())]


def neighbour(answer, pattern: re.Pattern[str]) -> str | None:
    found = pattern.search(answer.content.decode())
    return found and found[1].replace("&amp;", "&")


def walk(staff: Client, address: str, pattern: re.Pattern[str] = NEXT) -> list[list[UUID]]:
    pages = []
    url: str | None = address
    while url:
        answer = staff.get(url)
        pages.append(shown(answer))
        url = neighbour(answer, pattern)
        assert len(pages) < 200
    return pages


def one_of_each() -> dict[str, Job]:
    cancelled = make_job()
    cancel_job(shard=cancelled.shard, job_id=cancelled.pk, actor="user:anna", reason="no")
    return {
        "waiting": make_job(delay_seconds=600),
        "published": make_job(place=Place.PUBLISHED),
        "running": make_job(place=Place.RUNNING),
        "dead": make_job(place=Place.DEAD_LETTER),
        "succeeded": make_job(place=Place.FINISHED),
        "cancelled": cancelled,
    }


def test_every_tab_shows_its_jobs_and_counts_them(staff: Client) -> None:
    jobs = one_of_each()
    addresses = {
        "waiting": "status=scheduled",
        "published": "status=leased&phase=published",
        "running": "phase=running",
        "dead": "status=dead",
        "succeeded": "status=succeeded",
        "cancelled": "status=cancelled",
    }
    for name, query in addresses.items():
        assert shown(staff.get(f"{JOBS}?{query}")) == [jobs[name].pk], name
    answer = staff.get(JOBS)
    assert set(shown(answer)) == {job.pk for job in jobs.values()}
    tabs = re.findall(r'(\w+) <span class="count">([^<]+)</span>', answer.content.decode())
    assert tabs == [("All", "6"), *((name.title(), "1") for name in addresses)]


def test_rows_say_what_a_person_asks_first(staff: Client) -> None:
    job = make_job(place=Place.DEAD_LETTER, reference="cus_431", lane="urgent")
    make_job(place=Place.RUNNING, cancel_asked=True)
    late = make_job()
    DueEntry.objects.filter(job=late).update(
        due_at=timezone.now() - timedelta(hours=3, minutes=12)
    )
    page = staff.get(JOBS).content.decode()
    for words in (
        "cus_431",
        "urgent",
        "1/3",
        "ValueError: boom",
        "acme",
        "billing.charge",
        "Dead",
    ):
        assert words in page
    assert "Cancelling" in page
    assert "late by 3 h 12 m" in page
    assert str(job.pk) in page


def test_kf46_jobs_of_one_moment_are_each_seen_once_in_order_both_ways(staff: Client) -> None:
    first = make_job(due_at="2026-12-01T00:00:00Z")
    now = timezone.now()
    Job.objects.update(due_at=now)
    first.refresh_from_db()
    ids = {first.pk, *clone(first, 249)}
    pages = walk(staff, JOBS)
    seen = [job for page in pages for job in page]
    assert [len(page) for page in pages] == [50] * 5
    assert seen == sorted(ids, reverse=True)
    # ten newer and ten older jobs arrive while somebody walks back
    answer = staff.get(JOBS)
    for _ in range(4):
        answer = staff.get(neighbour(answer, NEXT) or "")
    Job.objects.filter(pk__in=clone(first, 10)).update(due_at=now + timedelta(seconds=5))
    Job.objects.filter(pk__in=clone(first, 10)).update(due_at=now - timedelta(seconds=5))
    back = [shown(answer)]
    while url := neighbour(answer, PREVIOUS):
        answer = staff.get(url)
        back.append(shown(answer))
    again = [job for page in reversed(back) for job in page if job in ids]
    assert again == seen


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("view", [View.ALL, View.WAITING])
def test_five_thousand_jobs_of_one_moment_page_without_loss(
    db: None, view: View, oldest_first: bool
) -> None:
    first = make_job(delay_seconds=600)
    ids = {first.pk, *clone(first, 4_999, waiting=True)}
    DueEntry.objects.update(due_at=first.due_at)
    seen: list[UUID] = []
    back: list[UUID] = []
    cursor = None
    with bounded_reading():
        while page := read_job_page(
            Filters(view=view), limit=200, cursor=cursor, oldest_first=oldest_first
        ):
            seen += [row.job_id for row in page.rows]
            if not (cursor := page.next):
                break
        back = [row.job_id for row in page.rows]
        while cursor := page.previous:
            page = read_job_page(
                Filters(view=view),
                limit=200,
                cursor=cursor,
                backward=True,
                oldest_first=oldest_first,
            )
            back = [row.job_id for row in page.rows] + back
    assert seen == sorted(ids, reverse=not oldest_first)
    assert back == seen


def test_paging_stays_stable_while_untouched_rows_finish_around_it(staff: Client) -> None:
    first = make_job()
    clone(first, 120, step_seconds=1)
    answer = staff.get(JOBS)
    page_one = shown(answer)
    Job.objects.filter(pk__in=page_one[:30]).update(status="succeeded", finished_at=timezone.now())
    rest = [job for page in walk(staff, neighbour(answer, NEXT) or "") for job in page]
    assert len({*page_one, *rest}) == len(page_one) + len(rest) == 121


def test_the_default_window_bounds_the_ledger_but_hides_no_backlog(staff: Client) -> None:
    old, soon, far = make_job(), make_job(), make_job()
    now = timezone.now()
    for job, due in ((old, -90_000), (soon, 60), (far, 90_000)):
        moment = now + timedelta(seconds=due)
        Job.objects.filter(pk=job.pk).update(due_at=moment)
        DueEntry.objects.filter(pk=job.pk).update(due_at=moment)
    assert shown(staff.get(JOBS)) == [soon.pk]
    assert shown(staff.get(JOBS + "?status=scheduled")) == [soon.pk, old.pk]
    assert shown(staff.get(JOBS + "?window=7d")) == [far.pk, soon.pk, old.pk]
    assert shown(staff.get(JOBS + "?status=scheduled&window=any&sort=due_at")) == [
        old.pk,
        soon.pk,
        far.pk,
    ]
    since = (now - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")
    assert shown(staff.get(f"{JOBS}?due_after={since}")) == [far.pk, soon.pk, old.pk]
    until = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert shown(staff.get(f"{JOBS}?due_before={until}")) == [old.pk]


def test_filters_narrow_rows_and_counts_alike(staff: Client) -> None:
    make_handler("mail.send")
    wanted = make_job(tenant=make_tenant("zebra"), handler="mail.send")
    make_job(tenant=make_tenant("zebra"))
    make_job(handler="mail.send")
    for status in ("", "&status=scheduled"):
        answer = staff.get(f"{JOBS}?tenant=zebra&handler=mail.send{status}")
        assert shown(answer) == [wanted.pk]
        counts = re.findall(r'(\w+) <span class="count">([^<]+)</span>', answer.content.decode())
        assert dict(counts)["All"] == dict(counts)["Waiting"] == "1"
    assert shown(staff.get(f"{JOBS}?tenant=zebra&handler=mail.send&status=dead")) == []


def test_counts_are_exact_up_to_ten_thousand_and_no_further(staff: Client) -> None:
    clone(make_job(), 10_001, waiting=True)
    page = staff.get(JOBS).content.decode()
    assert 'All <span class="count">10,000+</span>' in page
    assert 'Waiting <span class="count">10,000+</span>' in page
    assert 'Dead <span class="count">0</span>' in page


def test_a_rare_status_is_sought_a_bounded_way_and_the_search_goes_on(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "WALK_CAP", 100)
    newest = make_job()
    ids = clone(newest, 250, step_seconds=1)
    rare = ids[-1]
    Job.objects.filter(pk=rare).update(status="cancelled", finished_at=timezone.now())
    answer = staff.get(f"{JOBS}?status=cancelled")
    assert shown(answer) == []
    assert "stopped there" in answer.content.decode()
    assert [job for page in walk(staff, f"{JOBS}?status=cancelled") for job in page] == [rare]


@pytest.mark.parametrize("view", ["", "?status=scheduled", "?status=dead", "?phase=running"])
def test_kf50_a_page_takes_few_statements_and_reads_no_payload(staff: Client, view: str) -> None:
    jobs = one_of_each()
    for job in jobs.values():
        clone(job, 20, step_seconds=1, waiting=job.status == "scheduled")
    with CaptureQueriesContext(connection) as all_of_them:
        assert staff.get(JOBS + view).status_code == 200
    statements = [query["sql"] for query in all_of_them]
    # session, user, begin, timeout, page, counts, commit, names of tenants, names of handlers
    assert len(statements) == 9
    assert sum("jobs_job" in sql for sql in statements) == 2
    for sql in statements:
        assert "payload" not in sql
        assert not re.search(r"\bresult\b", sql)


def test_a_list_that_takes_too_long_says_how_to_narrow_it(
    committed: None, database_url: str, staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job()
    monkeypatch.setattr(lists, "READ_TIMEOUT_MS", 50)
    with psycopg.connect(database_url) as other:
        other.execute("lock table jobs_job in access exclusive mode")
        answers = [staff.get(f"{JOBS}?tenant=acme"), staff.get(f"{JOBS}?q=some-key")]
        letters = staff.get(reverse("console:dead_letters"))
        job_page = staff.get(
            reverse("console:job", args=[new_job_id(shard=1, unix_ms=1, rand_b=1)])
        )
    for answer in [*answers, letters]:
        assert answer.status_code == 503
        assert "took too long" in answer.content.decode()
    assert 'value="acme"' in answers[0].content.decode()  # the form is kept
    assert job_page.status_code == 503


BAD = [
    ("status", "frozen"),
    ("phase", "sleeping"),
    ("tenant", "nobody"),
    ("tenant", "a\0b"),
    ("tenant", "x" * 64),
    ("handler", "\0"),
    ("handler", "x" * 201),
    ("window", "year"),
    ("due_after", "yesterday"),
    ("due_after", "2026-13-01T00:00"),
    ("due_before", "٢٠٢٦-01-01T00:00"),
    ("due_before", "0000-01-01T00:00:00Z"),
    ("due_before", "9" * 400),
    ("sort", "payload"),
    ("limit", "0"),
    ("limit", "201"),
    ("limit", "many"),
    ("cursor", "older.1.2"),
    ("cursor", "older.999999999999999999.00000000000000000000000000000000"),
    ("cursor", "older.1\n.00000000000000000000000000000000"),
    ("cursor", "\0"),
]
LABELS = {
    "limit": "Rows per page",
    "cursor": "Page",
    "due_after": "Due from",
    "due_before": "Due before",
}


@pytest.mark.parametrize(("field", "value"), BAD)
def test_s22_bad_filters_name_their_field_and_never_fail(
    staff: Client, field: str, value: str
) -> None:
    answer = staff.get(JOBS, {field: value})
    assert answer.status_code == 400
    assert f"<strong>{LABELS.get(field, field.title())}:</strong>" in answer.content.decode()


@pytest.mark.parametrize("raw", ["%ED%A0%80", "%FF%FE", "%00", "%C0%AF", "%F4%90%80%80", "%"])
@pytest.mark.parametrize(
    "field", ["tenant", "handler", "cursor", "q", "due_after", "status", "unknown"]
)
def test_s22_broken_utf8_in_an_address_never_fails(staff: Client, field: str, raw: str) -> None:
    assert staff.get(f"{JOBS}?{field}={raw}").status_code < 500
    assert staff.get(f"{JOBS}?{raw}={field}").status_code < 500


@pytest.mark.parametrize("query", ["status=leased", "status=dead&phase=running"])
def test_status_and_phase_must_go_together(staff: Client, query: str) -> None:
    answer = staff.get(f"{JOBS}?{query}")
    assert answer.status_code == 400
    assert "<strong>Phase:</strong>" in answer.content.decode()


def test_a_range_that_ends_before_it_begins_is_refused(staff: Client) -> None:
    answer = staff.get(f"{JOBS}?due_after=2026-12-02T00:00&due_before=2026-12-01T00:00")
    assert answer.status_code == 400


def test_the_three_kinds_of_emptiness_are_not_mixed(staff: Client) -> None:
    assert "No jobs yet" in staff.get(JOBS).content.decode()
    job = make_job()
    assert "No job matches" in staff.get(JOBS + "?status=dead").content.decode()
    url = f"{JOBS}?cursor=older.0.{UUID(int=0).hex}"
    page = staff.get(url).content.decode()
    assert "Nothing further" in page
    assert "No jobs yet" not in page
    assert job.pk not in shown(staff.get(url))


def test_a_lease_that_moves_on_between_two_pages_is_no_error(staff: Client) -> None:
    for _ in range(3):
        make_job(place=Place.PUBLISHED)
    with transaction.atomic():
        Lease.objects.all().delete()
    assert shown(staff.get(f"{JOBS}?phase=published")) == []
