"""Staff edit schedules and calendars in the admin, through the services: errors at their fields, nothing typed is lost."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.urls import reverse

from jobs.clock import database_now
from jobs.models import Calendar, Job, Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.policies.times import format_time
from jobs.services.schedule_requests import fields_of, parse_schedule
from jobs.services.schedules import edit_schedule
from jobs.services.timings import tenant_defaults
from tests.factories import make_handler, make_pool, make_schedule, make_tenant

GIVEN = {
    "name": "nightly", "cron": "*/20 * * * *", "every": "", "anchor": "", "timezone": "Europe/Berlin",
    "on_gap": "skip", "on_overlap": "", "job": '{"handler": "billing.charge"}', "misfire": "latest",
    "grace_seconds": "60", "catch_up_most": "10", "catch_up_seconds": "86400", "on_running": "allow",
    "calendar": "", "on_holiday": "skip", "jitter_seconds": "0", "starts_at": "", "ends_at": "", "max_runs": "",
}  # fmt: skip


@pytest.fixture
def root(db: None) -> Client:
    make_tenant()
    make_handler()
    make_pool()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def address(model: type, action: str, *args: object) -> str:
    return reverse(f"admin:jobs_{model.__name__.lower()}_{action}", args=args)


def add(root: Client, **fields: str) -> Any:
    given = {**GIVEN, "tenant": str(make_tenant().pk), **fields}
    return root.post(address(Schedule, "add"), given)


def change(root: Client, schedule: Schedule, **fields: str) -> Any:
    given = {
        **GIVEN,
        "seen": str(Schedule.objects.values_list("version", flat=True).get(pk=schedule.pk)),
        **fields,
    }
    return root.post(address(Schedule, "change", schedule.pk), given)


def errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200
    return dict(answer.context["adminform"].form.errors)


def waiting() -> int:
    return Job.objects.filter(schedule_id__isnull=False, status="scheduled").count()


def test_a_schedule_is_added_with_its_first_jobs(root):
    assert add(root).status_code == 302
    made = Schedule.objects.get()
    version = ScheduleVersion.objects.get()
    assert (made.name, made.created_by, version.created_by) == (
        "nightly",
        "user:root",
        "user:root",
    )
    assert (version.timezone, version.on_gap, version.on_overlap) == ("Europe/Berlin", "skip", "")
    assert version.template == {"handler": "billing.charge"}
    assert waiting() == 3
    assert LogEntry.objects.get().object_id == str(made.pk)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cron", "0 0 30 2 *", ""),
        ("cron", "", "Either cron or every"),
        ("timezone", "Mars/Olympus", "name of a time zone"),
        ("job", "{", ""),
        ("job", "[]", ""),
        ("job", '{"handler": "gone"}', "handler: "),
        ("job", '{"handler": "billing.charge", "due_at": "2027-01-01T00:00:00Z"}', "due_at"),
        ("job", '{"handler": "billing.charge", "payload": {"pin": 1, "token": "***"}}', "***"),
        ("grace_seconds", "0", ""),
        ("grace_seconds", "nan", ""),
        ("catch_up_most", "1001", ""),
        ("jitter_seconds", "-1", ""),
        ("starts_at", "2027-01-01", "RFC 3339"),
        ("ends_at", "2027-01-01T00:00:00", "offset"),
        ("max_runs", "0", ""),
        ("calendar", "none", "no such calendar"),
        ("on_holiday", "next_business_day", ""),
        ("misfire", "guess", ""),
        ("name", "", "required"),
        ("name", "x" * 201, ""),
        ("name", "a\x00b", ""),
        ("tenant", "999", ""),
    ],
)
def test_a_fault_is_told_at_its_field_and_nothing_is_stored(root, field, value, words):
    answer = add(root, **{field: value})
    told = errors(answer)
    assert set(told) == {field}
    assert words in " ".join(told[field])
    assert not Schedule.objects.exists()


def test_all_faults_are_told_at_once(root):
    told = errors(add(root, cron="0 0 30 2 *", job="{", grace_seconds="x", timezone="Mars"))
    assert set(told) == {"cron", "job", "grace_seconds", "timezone"}
    told = errors(add(root, cron="0 0 30 2 *", tenant=""))
    assert set(told) == {"cron", "tenant"}
    assert not Schedule.objects.exists()


def test_a_name_in_use_is_told_at_the_name(root):
    make_schedule()
    assert set(errors(add(root))) == {"name"}


def test_a_change_is_a_new_version_and_no_change_is_none(root):
    made = make_schedule()
    page = root.get(address(Schedule, "change", made.pk))
    form = page.context["adminform"].form
    same = {name: value for name, value in form.initial.items() if value is not None}
    assert root.post(address(Schedule, "change", made.pk), same).status_code == 302
    assert ScheduleVersion.objects.count() == 1
    windows = {**same, "job": str(same["job"]).replace("\n", "\r\n")}
    root.post(address(Schedule, "change", made.pk), windows)
    assert ScheduleVersion.objects.count() == 1
    assert change(root, made, max_runs="7").status_code == 302
    newest = ScheduleVersion.objects.get(number=2)
    assert (newest.cron, newest.max_runs, newest.created_by) == ("*/20 * * * *", 7, "user:root")
    assert waiting() == 3
    assert change(root, made, max_runs="").status_code == 302
    assert ScheduleVersion.objects.get(number=3).max_runs is None


def test_kf14_a_change_that_came_in_between_is_told_and_nothing_typed_is_lost(root):
    made = make_schedule()
    page = root.get(address(Schedule, "change", made.pk)).context["adminform"].form
    assert page.initial["seen"] == 1
    owner = make_tenant()
    other = {**fields_of(ScheduleVersion.objects.get()), "name": "nightly", "cron": "@daily"}
    edit_schedule(
        tenant=owner,
        schedule_id=made.pk,
        version=1,
        request=parse_schedule(other, defaults=tenant_defaults(owner)),
        actor="user:anna",
    )
    answer = change(root, made, seen="1", cron="7 * * * *")
    (told,) = errors(answer)["__all__"]
    assert "Somebody else has changed it meanwhile: it is at version 2" in told
    text = answer.content.decode()
    assert 'value="7 * * * *"' in text
    assert 'name="seen" value="2"' in text
    assert ScheduleVersion.objects.count() == 2
    assert change(root, made, seen="2", cron="7 * * * *").status_code == 302
    assert ScheduleVersion.objects.get(number=3).cron == "7 * * * *"


def test_secrets_are_masked_and_stay_as_they_are_when_other_fields_are_edited(root):
    payload = {"password": "hunter2", "rows": [{"token": "canary", "n": 1}]}
    made = make_schedule(job={"handler": "billing.charge", "payload": payload})
    page = root.get(address(Schedule, "change", made.pk))
    assert "hunter2" not in page.content.decode()
    assert "canary" not in page.content.decode()
    job = json.loads(page.context["adminform"].form.initial["job"])
    job["payload"]["rows"][0]["n"] = 2
    assert change(root, made, job=json.dumps(job)).status_code == 302
    stored = ScheduleVersion.objects.get(number=2).template
    assert stored["payload"] == {"password": "hunter2", "rows": [{"token": "canary", "n": 2}]}


def test_the_page_tells_runs_firings_versions_and_changes_of_the_clock(root):
    made = make_schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    change(root, made, cron="30 2 * * *", on_gap="shift_forward")
    at = database_now() - timedelta(days=2)
    Occurrence.objects.create(
        schedule=made, shard=made.shard, version=1, fire_at=None, known_at=at, slot="2026-03-29T02:30:00", number=0,
        resolution="in_gap", verdict="skipped", reason="gap", timezone="Europe/Berlin", on_gap="skip", on_overlap="first",
        zone_data="2026a",
    )  # fmt: skip
    text = root.get(address(Schedule, "change", made.pk)).content.decode()
    for words in (
        "At 02:30",
        "02:30 did not exist on 29 March 2026 in Europe/Berlin; did not run",
        "on_gap: none → shift_forward",
        "the clock goes from 02:00 ahead to 03:00",
        "next_valid: 20",
    ):
        assert words in text, words
    assert text.count('<td class="nowrap">2') >= 10


def act(root: Client, schedule: Schedule, name: str, **fields: str) -> Any:
    page = reverse("admin:jobs_schedule_act", args=[schedule.pk, name])
    assert root.get(page).status_code == 200
    return root.post(page, fields)


def test_kf15_pause_and_resume_from_the_page(root):
    made = make_schedule()
    refused = act(root, made, "pause", reason=" ")
    assert set(refused.context["form"].errors) == {"reason"}
    past = act(root, made, "pause", reason="x", resume_at="2020-01-01T00:00:00Z")
    assert set(past.context["form"].errors) == {"resume_at"}
    end = database_now() + timedelta(hours=3)
    done = act(root, made, "pause", reason="billing run", resume_at=format_time(end))
    assert done.status_code == 302
    made.refresh_from_db()
    assert (made.paused_by, made.pause_reason, made.resume_at) == ("user:root", "billing run", end)
    assert waiting() == 0
    assert "act/resume" in root.get(address(Schedule, "change", made.pk)).content.decode()
    assert act(root, made, "resume").status_code == 302
    assert waiting() == 1
    again = act(root, made, "resume")
    assert "not paused" in str(again.context["form"].errors)


def test_run_now_and_catch_up_from_the_page(root):
    made = make_schedule()
    before = Job.objects.count()
    assert act(root, made, "run").status_code == 302
    assert Job.objects.count() == before + 1
    day = {"begin": "2026-01-05T00:00:00Z", "until": "2026-01-05T03:00:00Z"}
    assert act(root, made, "catch-up", **day).status_code == 302
    assert Occurrence.objects.filter(caught_up=True).count() == 4
    far = act(root, made, "catch-up", begin="2026-01-05T00:00:00Z", until="2099-01-01T00:00:00Z")
    assert set(far.context["form"].errors) == {"until"}
    bad = act(root, made, "catch-up", begin="yesterday", until="")
    assert set(bad.context["form"].errors) == {"begin", "until"}
    assert root.get(reverse("admin:jobs_schedule_act", args=[made.pk, "x"])).status_code == 404


def test_delete_withdraws_what_is_to_come_and_keeps_the_record(root):
    made = make_schedule()
    page = root.get(address(Schedule, "delete", made.pk)).content.decode()
    assert "nightly" in page
    assert root.post(address(Schedule, "delete", made.pk), {"post": "yes"}).status_code == 302
    made.refresh_from_db()
    assert made.deleted_at is not None
    assert waiting() == 0
    page = root.get(address(Schedule, "change", made.pk)).content.decode()
    assert 'name="_save"' not in page
    assert root.post(address(Schedule, "delete", made.pk), {"post": "yes"}).status_code == 403
    run = reverse("admin:jobs_schedule_act", args=[made.pk, "run"])
    assert root.post(run).status_code == 403
    assert ScheduleVersion.objects.exists()


ICS = b"""BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
SUMMARY:May Day
DTSTART;VALUE=DATE:20270501
END:VEVENT
END:VCALENDAR
"""


def save_calendar(root: Client, calendar: Calendar | None = None, **fields: Any) -> Any:
    if calendar is None:
        given = {"tenant": str(make_tenant().pk), "name": "works", **fields}
        return root.post(address(Calendar, "add"), given)
    given = {"seen": str(calendar.number), **fields}
    return root.post(address(Calendar, "change", calendar.pk), given)


def test_a_calendar_is_added_by_lines_json_or_file_and_edited_as_the_next_edition(root):
    lines = "2027-12-25 Christmas Day\r\n\r\n2027-12-26"
    assert save_calendar(root, days=lines, weekend=["sat", "sun"]).status_code == 302
    first = Calendar.objects.get()
    assert first.days == {"2027-12-25": "Christmas Day", "2027-12-26": ""}
    assert (first.weekend, first.created_by) == (["sat", "sun"], "user:root")
    form = root.get(address(Calendar, "change", first.pk)).context["adminform"].form
    assert form.initial["days"] == "2027-12-25 Christmas Day\n2027-12-26"
    same = {"days": form.initial["days"], "weekend": form.initial["weekend"]}
    assert save_calendar(root, first, **same).status_code == 302
    assert Calendar.objects.count() == 1
    file = SimpleUploadedFile("may.ics", ICS)
    assert save_calendar(root, first, days='{"2028-01-01": "x"}', ics=file).status_code == 302
    second = Calendar.objects.get(replaced_at=None)
    assert (second.number, second.weekend) == (2, [])
    assert second.days == {"2027-05-01": "May Day", "2028-01-01": "x"}
    assert 'name="_save"' not in root.get(address(Calendar, "change", first.pk)).content.decode()
    stay = save_calendar(root, second, days="", _continue="1")
    assert stay["Location"] == address(Calendar, "change", Calendar.objects.get(number=3).pk)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("days", "25.12.2027 Christmas"),
        ("days", "2027-02-30"),
        ("days", "2027-12-25 a\n2027-12-25 b"),
        ("days", "{"),
        ("days", '{"2027-12-25": 5}'),
        ("weekend", "someday"),
        ("ics", SimpleUploadedFile("a.ics", b"no calendar")),
        ("ics", SimpleUploadedFile("a.ics", b"\xff\xfe")),
        ("ics", SimpleUploadedFile("a.ics", b"x" * (5 << 20))),
        ("name", ""),
    ],
)
def test_a_fault_of_a_calendar_is_told_at_its_field(root, field, value):
    if field == "ics":
        value.seek(0)
    assert set(errors(save_calendar(root, **{field: value}))) == {field}
    assert not Calendar.objects.exists()


def test_kf14_two_who_edit_a_calendar_are_told(root):
    save_calendar(root, days="2027-12-25")
    first = Calendar.objects.get()
    save_calendar(root, first, days="2027-12-26")
    second = Calendar.objects.get(replaced_at=None)
    answer = root.post(address(Calendar, "change", second.pk), {"seen": "1", "days": "2027-12-27"})
    assert "Somebody else" in errors(answer)["__all__"][0]
    assert "2027-12-27" in answer.content.decode()
    assert Calendar.objects.count() == 2


def test_a_calendar_that_is_followed_is_not_deleted_and_any_other_is(root):
    save_calendar(root, days="2027-12-25")
    calendar = Calendar.objects.get()
    made = make_schedule(calendar="works")
    page = address(Calendar, "delete", calendar.pk)
    assert "nightly follows it" in root.get(page).content.decode()
    root.post(page, {"post": "yes"})
    assert Calendar.objects.get().replaced_at is None
    Schedule.objects.filter(pk=made.pk).update(deleted_at=database_now())
    assert root.post(page, {"post": "yes"}).status_code == 302
    assert Calendar.objects.get().replaced_at is not None


def test_a_tenants_policies_for_changes_of_the_clock_are_edited(root):
    tenant = make_tenant()
    given = {"name": "Acme", "timezone": "UTC", "weight": "1", "start_burst": "1", "on_gap": "skip", "on_overlap": "both"}  # fmt: skip
    assert root.post(address(Tenant, "change", tenant.pk), given).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.on_gap, tenant.on_overlap) == ("skip", "both")
    assert set(errors(root.post(address(Tenant, "change", tenant.pk), {**given, "on_gap": "x"}))) == {"on_gap"}  # fmt: skip


@pytest.mark.parametrize("model", [Schedule, Calendar])
def test_s09_staff_who_may_only_look_change_nothing(root, model):
    Calendar.objects.create(tenant=make_tenant(), name="works")
    made = make_schedule()
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename=f"view_{model.__name__.lower()}"))
    client = Client()
    client.force_login(user)
    before = list(model.objects.values())
    key = model.objects.get().pk
    page = client.get(address(model, "change", key))
    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()
    for action, args in (("add", ()), ("change", (key,)), ("delete", (key,))):
        given = {**GIVEN, "seen": "1", "post": "yes"}
        assert client.post(address(model, action, *args), given).status_code == 403
    for name in ("pause", "resume", "run", "catch-up"):
        there = reverse("admin:jobs_schedule_act", args=[made.pk, name])
        assert client.get(there).status_code == 403
        assert client.post(there, {"reason": "x"}).status_code == 403
    assert list(model.objects.values()) == before
    assert waiting() == 1


def test_f65_a_schedule_or_calendar_that_cannot_be_read_has_a_page(root):
    made = make_schedule(cron="0 0 * * *")
    calendar = Calendar.objects.create(tenant=make_tenant(), name="works")
    with connection.cursor() as cursor:
        cursor.execute(
            "update jobs_scheduleversion set cron = 'never', template = "
            "('{\"priority\": 1' || repeat('0', 5000) || '}')::jsonb"
        )
        cursor.execute("update jobs_schedule set fault = ('1' || repeat('0', 5000))::jsonb")
        cursor.execute(
            "update jobs_calendar set days = ('1' || repeat('0', 5000))::jsonb, weekend = '7'"
        )
    for page in (
        address(Schedule, "changelist"),
        address(Schedule, "change", made.pk),
        address(Calendar, "changelist"),
        address(Calendar, "change", calendar.pk),
    ):
        assert root.get(page).status_code == 200
    assert change(root, made).status_code == 302  # it is mended here
    assert Schedule.objects.defer("fault").get().version == 2
