"""Who gets in, and that nothing changes by looking."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.console.access import ACTOR_LENGTH, actor_of
from jobs.console.urls import urlpatterns
from jobs.models import DeadLetter, Job, JobEvent
from jobs.states import Place
from tests.factories import dead_letter_of, make_job

OPEN_TO_ALL = {"login", "logout"}
NAMES = [str(pattern.name) for pattern in urlpatterns]
GUARDED = sorted(set(NAMES) - OPEN_TO_ALL)
POST_ONLY = {"cancel", "resolve", "logout"}


def address_of(name: str, job_id: object = None) -> str:
    needs_job = name in ("job", "cancel")
    return reverse(f"console:{name}", args=[job_id or uuid.uuid4()] if needs_job else [])


def test_the_table_of_routes_is_known() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert set(NAMES) >= OPEN_TO_ALL | POST_ONLY | {"home", "jobs", "job", "dead_letters"}


@pytest.mark.django_db
@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("method", ["get", "post", "put", "delete"])
def test_a_stranger_is_sent_to_the_door(client: Client, name: str, method: str) -> None:
    answer = getattr(client, method)(address_of(name))
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("console:login"))


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("method", ["get", "post"])
def test_an_account_that_is_not_staff_is_refused_in_words(
    visitor: Client, name: str, method: str
) -> None:
    answer = getattr(visitor, method)(address_of(name))
    assert answer.status_code == 403
    assert "not a staff account" in answer.content.decode()


@pytest.mark.parametrize("name", GUARDED)
def test_a_staff_account_that_was_switched_off_is_out_at_once(staff: Client, name: str) -> None:
    User.objects.update(is_active=False)
    assert staff.get(address_of(name)).status_code == 302


@pytest.mark.django_db
def test_a_bearer_token_opens_nothing(client: Client) -> None:
    for name in GUARDED:
        answer = client.get(address_of(name), headers={"authorization": "Bearer dk_live_x"})
        assert answer.status_code == 302


@pytest.mark.parametrize("name", NAMES)
def test_s08_looking_changes_nothing(staff: Client, name: str) -> None:
    running, dead = make_job(place=Place.RUNNING), make_job(place=Place.DEAD_LETTER)
    before = [list(model.objects.order_by("pk").values()) for model in (Job, JobEvent, DeadLetter)]
    for job in (running, dead):
        words: dict[str, str] = {
            "reason": "x",
            "note": "x",
            "action": "requeue",
            "letter": str(dead_letter_of(dead).pk),
        }
        answer = staff.get(address_of(name, job.pk), words)
        assert answer.status_code == (405 if name in POST_ONLY else answer.status_code)
        assert answer.status_code < 500
    after = [list(model.objects.order_by("pk").values()) for model in (Job, JobEvent, DeadLetter)]
    assert after == before


@pytest.mark.parametrize("name", sorted(POST_ONLY | {"login"}))
def test_s08_a_post_without_csrf_token_is_refused(staff: Client, name: str) -> None:
    job = make_job()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = staff.cookies
    answer = strict.post(address_of(name, job.pk), {"reason": "x", "note": "x"})
    assert answer.status_code == 403
    assert Job.objects.get(pk=job.pk).status == "scheduled"


@pytest.mark.django_db
def test_only_staff_can_sign_in(client: Client, quick_passwords: None) -> None:
    User.objects.create_user("anna", password="right-password-1", is_staff=True)
    User.objects.create_user("vera", password="right-password-1")
    door = reverse("console:login")
    refused = client.post(door, {"username": "vera", "password": "right-password-1"})
    assert "not a staff account" in refused.content.decode()
    assert "_auth_user_id" not in client.session
    wrong = client.post(door, {"username": "vera", "password": "wrong"})
    assert "not a staff account" not in wrong.content.decode()  # tells a stranger nothing
    welcome = client.post(door, {"username": "anna", "password": "right-password-1"})
    assert welcome["Location"] == reverse("console:home")
    assert client.get(welcome["Location"])["Location"] == reverse("console:jobs")


@pytest.mark.django_db
def test_the_door_sends_nobody_to_another_site(client: Client, quick_passwords: None) -> None:
    User.objects.create_user("anna", password="right-password-1", is_staff=True)
    door = reverse("console:login") + "?next=https://evil.example/"
    words = {"username": "anna", "password": "right-password-1", "next": "https://evil.example/"}
    assert client.post(door, words)["Location"] == reverse("console:home")


def test_signing_out_is_a_post(staff: Client) -> None:
    assert staff.get(reverse("console:logout")).status_code == 405
    assert "_auth_user_id" in staff.session
    staff.post(reverse("console:logout"))
    assert "_auth_user_id" not in staff.session


@pytest.mark.parametrize("name", ["jobs", "dead_letters", "job", "login"])
def test_pages_forbid_inline_script_and_are_not_kept(staff: Client, name: str) -> None:
    answer = staff.get(address_of(name, make_job().pk))
    policy = answer["Content-Security-Policy"]
    for rule in ("script-src 'self'", "style-src 'self'", "default-src 'self'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.django_db
def test_long_user_names_stay_apart_in_history() -> None:
    one, other = (User.objects.create_user("u" * 149 + last, password=None) for last in "ab")
    assert actor_of(User(username="anna")) == "user:anna"
    assert len(actor_of(one)) == len(actor_of(other)) == ACTOR_LENGTH
    assert actor_of(one) != actor_of(other)
