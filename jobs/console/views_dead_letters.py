"""Dead letters: list, requeue, discard."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from jobs.console.access import actor_of, staff_required
from jobs.console.forms import FilterForm, LetterForm
from jobs.console.markup import Moment
from jobs.console.paging import address, write_position
from jobs.console.presenter import error_line, named
from jobs.console.words import count, line, short_id
from jobs.database import is_unavailable
from jobs.errors import JobError, NotDead, NotFound
from jobs.queries.dead_letters import LetterRow, open_letters, shards_of_letters
from jobs.queries.lists import ReadTimedOut, bounded_reading
from jobs.transitions.requeue import discard_dead_letter, requeue_dead_letter

TOLD_ROWS = 10  # refused rows that are named one by one
DONE = {"requeue": "requeued", "discard": "discarded"}


@staff_required
@require_GET
def letter_list(request: HttpRequest) -> HttpResponse:
    """Open dead letters, newest death first."""
    form = FilterForm(request.GET)
    context: dict[str, Any] = {"form": form, "section": "dead"}
    if not form.is_valid():
        return render(request, "console/dead_letters.html", context, status=400)
    position = form.cleaned_data["cursor"]
    try:
        with bounded_reading() as now:
            page = open_letters(
                form.filters(),
                limit=form.page_size,
                cursor=position.cursor if position else None,
                backward=position.backward if position else False,
            )
    except ReadTimedOut:
        context["timed_out"] = True
        return render(request, "console/dead_letters.html", context, status=503)
    sent = form.sent()
    for name, cursor, backward in (("previous", page.previous, True), ("next", page.next, False)):
        if cursor:
            place = write_position(cursor, backward=backward)
            context[f"{name}_url"] = address(request.path, sent, cursor=place)
    context |= {
        "now": Moment(now),
        "rows": [_line(row, now) for row in page.rows],
        "count": count(page.open),
        "filtered": bool(form.cleaned_data["tenant"] or form.cleaned_data["handler"]),
        "first_url": address(request.path, sent) if position else "",
        "here": request.get_full_path(),
    }
    return render(request, "console/dead_letters.html", context)


def _line(row: LetterRow, now: datetime) -> dict[str, Any]:
    return {
        "id": row.id,
        "job_id": row.job_id,
        "short_id": short_id(row.job_id),
        "died_at": Moment(row.died_at, now),
        "handler": line(row.handler, 200),
        "tenant": named(row.tenant, row.tenant_id),
        "reference": line(row.reference, 128),
        "reason": line(row.reason, 30).replace("_", " "),
        "error": error_line(row.error_type, row.message),
        "attempts": row.attempts,
        "stored": row.stored,
    }


@staff_required
@require_POST
def resolve(request: HttpRequest) -> HttpResponse:
    """Requeue or discard the chosen dead letters, one transaction each, and tell what became of every one."""
    form = LetterForm(request.POST)
    if not form.is_valid():
        for field, faults in form.errors.items():
            name = form.fields[field].label or field if field in form.fields else ""
            for fault in faults:
                messages.error(request, f"{name}: {fault}" if name else str(fault))
        return _back(request)
    action, note = form.cleaned_data["action"], form.cleaned_data["note"]
    resolve_one = requeue_dead_letter if action == "requeue" else discard_dead_letter
    actor = actor_of(request.user)
    outcomes: dict[UUID, str] = {}
    shards = shards_of_letters(form.cleaned_data["letters"])
    for letter_id in form.cleaned_data["letters"]:
        try:
            if letter_id not in shards:
                raise NotFound
            resolve_one(shard=shards[letter_id], dead_letter_id=letter_id, actor=actor, note=note)
            outcomes[letter_id] = DONE[action]
        except NotDead:
            outcomes[letter_id] = "not dead any more"
        except NotFound:
            outcomes[letter_id] = "not found"
        except JobError as refusal:
            outcomes[letter_id] = f"refused: {refusal.detail}"
        except DatabaseError as error:
            outcomes[letter_id] = "failed in the database"
            if is_unavailable(error):
                break
    _tell(request, action, outcomes, len(form.cleaned_data["letters"]))
    return _back(request)


def _tell(request: HttpRequest, action: str, outcomes: dict[UUID, str], asked: int) -> None:
    counts = Counter(outcomes.values())
    done = counts.pop(DONE[action], 0)
    summary = [f"{done} {DONE[action]}", *(f"{number} {what}" for what, number in counts.items())]
    if untouched := asked - len(outcomes):
        summary.append(f"{untouched} not tried: the database is unavailable")
    level = messages.SUCCESS if done == asked else messages.WARNING
    messages.add_message(request, level, ", ".join(summary) + ".")
    refused = [(letter, what) for letter, what in outcomes.items() if what != DONE[action]]
    if asked > 1:
        for letter_id, what in refused[:TOLD_ROWS]:
            messages.warning(request, f"Dead letter {letter_id}: {what}.")


def _back(request: HttpRequest) -> HttpResponse:
    """To the page the form was on: the same filters, or the job."""
    target = request.POST.get("back", "")
    if target.startswith(reverse("console:home")) and url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        return HttpResponseRedirect(target)
    return redirect("console:dead_letters")
