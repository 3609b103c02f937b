"""Dead letters: the list, and what a person does with them, one by one and many at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.console import views_dead_letters
from jobs.console.words import member
from jobs.models import DeadLetter, DueEntry, Job, JobEvent
from jobs.states import Place
from jobs.transitions.requeue import discard_dead_letter, requeue_dead_letter
from tests.console.test_look import STYLESHEET
from tests.factories import dead_letter_of, make_handler, make_job, make_tenant

LETTERS = reverse("console:dead_letters")
RESOLVE = reverse("console:resolve")
PICKED = re.compile(r'name="letter" value="([0-9a-f-]{36})"')


def dead(**fields: Any) -> DeadLetter:
    return dead_letter_of(make_job(place=Place.DEAD_LETTER, **fields))


def shown(staff: Client, address: str = LETTERS) -> list[UUID]:
    answer = staff.get(address)
    assert answer.status_code == 200
    return [UUID(found) for found in PICKED.findall(answer.content.decode())]


def resolve(staff: Client, letters: Iterable[object] = (), **fields: Any) -> str:
    words = {"action": "requeue", "note": "provider is back", "letter": list(letters), **fields}
    answer = staff.post(RESOLVE, words, follow=True)
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def test_open_letters_are_listed_newest_death_first(staff: Client) -> None:
    letters = [dead(reference=f"cus_{number}") for number in range(3)]
    requeue_dead_letter(
        shard=letters[0].shard, dead_letter_id=letters[0].pk, actor="user:anna", note="x"
    )
    assert shown(staff) == [letters[2].pk, letters[1].pk]
    page = staff.get(LETTERS).content.decode()
    for words in ("2 open", "cus_2", "ValueError: boom", "permanent error", "billing.charge"):
        assert words in page
    assert "cus_0" not in page


def test_tenant_and_handler_narrow_the_list(staff: Client) -> None:
    make_handler("mail.send")
    wanted = dead(tenant=make_tenant("zebra"), handler="mail.send")
    dead(tenant=make_tenant("zebra"))
    dead(handler="mail.send")
    assert shown(staff, f"{LETTERS}?tenant=zebra&handler=mail.send") == [wanted.pk]
    assert staff.get(f"{LETTERS}?tenant=nobody").status_code == 400
    assert "<strong>Page:</strong>" in staff.get(f"{LETTERS}?cursor=x").content.decode()


def test_letters_of_one_moment_page_without_loss_both_ways(staff: Client) -> None:
    first = dead()
    moment = timezone.now()
    DeadLetter.objects.update(died_at=moment)
    first.refresh_from_db()
    values = {
        field.attname: getattr(first, field.attname)
        for field in DeadLetter._meta.concrete_fields
        if field.name not in ("id", "job")
    }
    DeadLetter.objects.bulk_create(
        DeadLetter(id=uuid4(), job_id=uuid4(), **values) for _ in range(119)
    )
    every = sorted(DeadLetter.objects.values_list("pk", flat=True), reverse=True)
    seen, forward = [], [LETTERS]
    while forward[-1]:
        answer = staff.get(forward[-1])
        seen.append([UUID(found) for found in PICKED.findall(answer.content.decode())])
        found = re.search(r'rel="next" href="([^"]+)"', answer.content.decode())
        forward.append(found[1].replace("&amp;", "&") if found else "")
    assert [len(page) for page in seen] == [50, 50, 20]
    assert [letter for page in seen for letter in page] == every
    back = re.search(r'rel="prev" href="([^"]+)"', answer.content.decode())
    assert back
    assert shown(staff, back[1].replace("&amp;", "&")) == seen[1]


def test_the_selected_letters_are_requeued_and_the_rest_is_not(staff: Client) -> None:
    letters = [dead() for _ in range(4)]
    page = resolve(staff, [letter.pk for letter in letters[:3]])
    assert "3 requeued." in page
    assert shown(staff) == [letters[3].pk]
    for letter in letters[:3]:
        assert DueEntry.objects.filter(job=letter.job_id).exists()
        event = JobEvent.objects.get(job=letter.job_id, kind="requeued")
        assert (event.actor, member(event.detail, "note")) == ("user:anna", "provider is back")


def test_each_row_is_told_apart_when_some_were_not_dead_any_more(staff: Client) -> None:
    letters = [dead() for _ in range(4)]
    gone = letters[1]
    discard_dead_letter(shard=gone.shard, dead_letter_id=gone.pk, actor="user:ben", note="x")
    unknown = uuid4()
    page = resolve(staff, [*(letter.pk for letter in letters), unknown])
    assert "3 requeued, 1 not dead any more, 1 not found." in page
    assert f"Dead letter {gone.pk}: not dead any more." in page
    assert f"Dead letter {unknown}: not found." in page
    gone.refresh_from_db()
    assert (gone.resolution, gone.resolved_by) == ("discarded", "user:ben")


def test_the_button_of_a_row_requeues_that_row_alone(staff: Client) -> None:
    ticked, pressed = dead(), dead()
    page = resolve(staff, [ticked.pk], action="", only=str(pressed.pk))
    assert "1 requeued." in page
    assert shown(staff) == [ticked.pk]


def test_discarding_closes_the_letter_and_leaves_the_job_dead(staff: Client) -> None:
    letter = dead()
    assert "1 discarded." in resolve(staff, [letter.pk], action="discard", note="customer left")
    letter.refresh_from_db()
    assert (letter.resolution, letter.note) == ("discarded", "customer left")
    assert Job.objects.get(pk=letter.job_id).status == "dead"
    assert JobEvent.objects.get(job=letter.job_id, kind="discarded").actor == "user:anna"


def test_the_job_page_requeues_and_discards_and_comes_back_to_itself(staff: Client) -> None:
    letter = dead()
    own_page = reverse("console:job", args=[letter.job_id])
    before = staff.get(own_page).content.decode()
    assert "Requeue job" in before
    assert "Discard dead letter" in before
    page = resolve(staff, [letter.pk], back=own_page)
    assert "1 requeued." in page
    assert "Requeued by anna with a new budget of attempts" in page
    assert "Requeue job" not in page
    discarded = dead()
    resolve(staff, [discarded.pk], action="discard", note="given up")
    page = staff.get(reverse("console:job", args=[discarded.job_id])).content.decode()
    assert "given up" in page
    assert "Requeue job" not in page


@pytest.mark.parametrize(
    "back",
    ["https://evil.example/", "//evil.example/console/", "/admin/", "javascript:alert(1)", ""],
)
def test_the_way_back_leads_nowhere_else(staff: Client, back: str) -> None:
    answer = staff.post(RESOLVE, {"action": "requeue", "note": "x", "back": back})
    assert answer["Location"] == LETTERS


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"note": ""}, "Note: This field is required."),
        ({"note": "  "}, "Note: This field is required."),
        ({"note": "x" * 1001}, "Note: Ensure this value has at most 1000 characters"),
        ({"note": "a\0b"}, "Note: Null characters are not allowed."),
        ({"action": "delete"}, "Action: Select a valid choice."),
        ({"action": ""}, "Action: This must be requeue or discard."),
        ({"letter": []}, "no dead letter was selected"),
        ({"letter": ["x"]}, "a selected row has no valid id"),
        ({"letter": [str(uuid4()) for _ in range(201)]}, "at most 200 at a time"),
    ],
)
def test_s10_a_faulty_form_changes_nothing_and_says_why(
    staff: Client, fields: dict[str, Any], words: str
) -> None:
    letter = dead()
    assert words in resolve(staff, **{"letters": [letter.pk], **fields})
    assert shown(staff) == [letter.pk]


def test_one_letter_chosen_twice_is_requeued_once(staff: Client) -> None:
    letter = dead()
    assert "1 requeued." in resolve(staff, [letter.pk, letter.pk])


def test_a_database_that_goes_away_half_way_is_told_as_it_is(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [dead() for _ in range(3)]

    def failing(**how: Any) -> UUID:
        if how["dead_letter_id"] == letters[1].pk:
            raise OperationalError("server closed the connection unexpectedly")
        return requeue_dead_letter(**how)

    monkeypatch.setattr(views_dead_letters, "requeue_dead_letter", failing)
    page = resolve(staff, [letter.pk for letter in letters])
    assert (
        "1 requeued, 1 failed in the database, 1 not tried: the database is unavailable." in page
    )
    assert shown(staff) == [letters[2].pk, letters[1].pk]


def test_an_empty_list_says_whether_that_is_good_news(staff: Client) -> None:
    assert "No job has given up" in staff.get(LETTERS).content.decode()
    dead()
    make_handler("mail.send")
    assert "No dead letter matches" in staff.get(f"{LETTERS}?handler=mail.send").content.decode()
    before = timezone.now() - timedelta(days=9)
    url = f"{LETTERS}?cursor=older.{int(before.timestamp())}000000.{uuid4().hex}"
    assert "Nothing further" in staff.get(url).content.decode()


def test_the_note_says_which_rows_it_is_for_and_stays_in_sight_of_their_buttons(
    staff: Client,
) -> None:
    dead()
    page = staff.get(LETTERS).content.decode()
    assert "Note for the rows you act on" in page
    assert 'class="panel bulk follows"' in page
    assert re.search(r"\.follows \{ position: sticky;", STYLESHEET.read_text())
