"""Known fault 49: text from jobs is text on every page, whatever is in it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import User
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
from tests.factories import make_job, make_worker

CORPUS = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "'-alert(1)-'",
    "</title></textarea></pre></style></script><script>alert(1)</script>",
    "javascript:alert(1)//<a href=javascript:alert(1)>x</a>",
    "{{ 7|add:7 }}{% debug %}{7*7}${7*7}<%= 7*7 %>",
    "<!--<img src=x onerror=alert(1)>--><iframe srcdoc='<script>alert(1)</script>'>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
]
HARMLESS_SCRIPTS = ("/static/admin/", "/admin/jsi18n/")  # the admin's own files


class Markup(HTMLParser):
    """Every tag and attribute of a page that could run something."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.dangers: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "script" and values.get("type") != "application/json":
            if not (values.get("src") or "").startswith(HARMLESS_SCRIPTS):
                self.dangers.append(f"<script {values}>")
        elif tag in ("iframe", "object", "embed", "base"):
            self.dangers.append(f"<{tag} {values}>")
        for name, value in values.items():
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.dangers.append(f"<{tag} {name}={value}>")
            if (
                name in ("href", "src", "action", "formaction")
                and "script:" in (value or "").lower()
            ):
                self.dangers.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def fill(model: type, **values: object) -> None:
    model.objects.update(**values)  # type: ignore[attr-defined]


@pytest.mark.parametrize("attack", CORPUS)
def test_kf49_text_from_jobs_never_runs_as_markup(staff: Client, attack: str) -> None:
    User.objects.update(is_superuser=True)
    make_worker(id="00000000-0000-4000-8000-000000000001")
    jobs = [make_job(place=place) for place in (Place.DUE_ENTRY, Place.RUNNING, Place.DEAD_LETTER)]
    short = attack[:60]
    nested = {attack: [attack, {"message": attack}]}
    error = {"type": attack, "message": attack, "where": attack, "cause": attack, "extra": nested}
    fill(Job, handler=attack, payload=nested, result=nested, last_error=error, reference=attack,
         tags=[attack], cancel_reason=attack, cancel_requested_by=attack, created_by=attack,
         concurrency_key=attack, payload_ref=None, retry={"kind": attack})  # fmt: skip
    Job.objects.filter(pk=jobs[0].pk).update(payload_ref=attack, request_key=attack)
    fill(DeadLetter, handler=attack, error_type=attack, message=attack, note=attack, reason=attack[:30],
         resolved_by=attack, fingerprint=attack[:16])  # fmt: skip
    fill(Tenant, name=attack)
    Lane.objects.exclude(pk=3).delete()
    fill(Lane, name=short)
    fill(Pool, name=short, labels=nested)
    fill(Route, handler=attack, labels=nested, labels_text=attack)
    fill(Worker, host=attack, version=attack[:50], handlers=[attack])
    fill(Lease, progress={"note": attack, "fraction": attack})
    detail = {"reason": attack, "note": attack, "pool": attack, "lane": attack, "cause": attack, "error": error,
              "was": attack, "reported": attack, "current_token": attack, "tags": [attack], "old_lane": attack}  # fmt: skip
    fill(JobEvent, actor=f"user:{attack}", detail=detail)
    kinds = [
        "created",
        "failed",
        "dead",
        "cancelled",
        "edited",
        "completion_rejected",
        attack[:20],
    ]
    addresses = [
        reverse("console:jobs"),
        reverse("console:jobs") + "?phase=running",
        reverse("console:dead_letters"),
    ]
    addresses += [reverse("console:job", args=[job.pk]) for job in jobs]
    for model in (Job, DueEntry, Lease, JobEvent, DeadLetter, Tenant, Lane, Pool, Route, Worker):
        name = model._meta.model_name
        addresses.append(reverse(f"admin:jobs_{name}_changelist"))
        if model is not JobEvent:
            keys = model.objects.values_list("pk", flat=True)
            addresses += [reverse(f"admin:jobs_{name}_change", args=[key]) for key in keys]
    seen = ""
    for kind in kinds:
        fill(JobEvent, kind=kind)
        for address in addresses if kind == kinds[0] else addresses[3:6]:
            answer = staff.get(address)
            assert answer.status_code == 200, address
            page = Markup(answer.content.decode())
            assert page.dangers == [], address
            assert "unsafe" not in answer["Content-Security-Policy"]
            seen += "".join(page.text)
    assert attack in seen  # it is shown, as what it is


@pytest.mark.parametrize("attack", CORPUS)
@pytest.mark.parametrize(
    "field", ["q", "tenant", "handler", "due_after", "status", "cursor", "sort"]
)
def test_kf49_what_stands_in_an_address_never_runs_as_markup(
    staff: Client, field: str, attack: str
) -> None:
    for address in (reverse("console:jobs"), reverse("console:dead_letters")):
        page = staff.get(address, {field: attack}).content.decode()
        assert Markup(page).dangers == []


@pytest.mark.parametrize("attack", CORPUS)
def test_kf49_reasons_notes_and_names_never_run_as_markup(staff: Client, attack: str) -> None:
    User.objects.update(username=attack)
    waiting, dead = make_job(), make_job(place=Place.DEAD_LETTER)
    letter = DeadLetter.objects.get(job=dead)
    posts = [
        (reverse("console:cancel", args=[waiting.pk]), {"reason": attack}),
        (reverse("console:cancel", args=[dead.pk]), {"reason": attack + "\0"}),
        (reverse("console:resolve"), {"note": attack, "action": attack, "letter": attack}),
        (reverse("console:resolve"), {"note": attack, "action": "discard", "letter": letter.pk,
                                      "back": reverse("console:job", args=[dead.pk])}),
    ]  # fmt: skip
    for address, fields in posts:
        page = Markup(staff.post(address, fields, follow=True).content.decode())
        assert page.dangers == []
    assert attack in "".join(page.text)
