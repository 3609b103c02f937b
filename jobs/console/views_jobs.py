"""Job list, search, job page, cancel."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from jobs.console.access import actor_of, staff_required
from jobs.console.forms import ADDRESS_OF, WINDOWS, CancelForm, FindForm, JobFilterForm
from jobs.console.job_view import job_context
from jobs.console.markup import Moment, moment
from jobs.console.paging import address, write_position
from jobs.console.presenter import job_line
from jobs.console.timeline import timeline
from jobs.console.words import count, line
from jobs.errors import AlreadyFinished, JobError, JobRunning, NotFound
from jobs.models import Tenant
from jobs.queries.history import MAX_EVENTS, job_detail, job_events, locate_job
from jobs.queries.lists import (
    WALK_CAP,
    Filters,
    JobPage,
    ReadTimedOut,
    View,
    bounded_reading,
    job_counts,
    named_jobs,
    read_job_page,
)
from jobs.queries.lookup import MIN_PREFIX, find_jobs
from jobs.transitions.cancel import cancel_job

FEW_EVENTS = 200
TITLES = {
    View.ALL: "All",
    View.WAITING: "Waiting",
    View.PUBLISHED: "Published",
    View.RUNNING: "Running",
    View.DEAD: "Dead",
    View.SUCCEEDED: "Succeeded",
    View.CANCELLED: "Cancelled",
}


@staff_required
@require_GET
def job_list(request: HttpRequest) -> HttpResponse:
    """Jobs by status, newest due first; with `q`, the jobs that the text names."""
    if "q" in request.GET:
        return _find(request)
    form = JobFilterForm(request.GET)
    context: dict[str, Any] = {"form": form, "section": "jobs"}
    if not form.is_valid():
        return render(request, "console/jobs.html", context, status=400)
    try:
        with bounded_reading() as now:
            by_view = {view: form.filters_of(view, now) for view in View}
            position = form.cleaned_data["cursor"]
            page = read_job_page(
                by_view[form.view],
                limit=form.page_size,
                cursor=position.cursor if position else None,
                backward=position.backward if position else False,
                oldest_first=form.cleaned_data["sort"] == "due_at",
            )
            counts = job_counts(by_view)
    except ReadTimedOut:
        return render(request, "console/jobs.html", {**context, "timed_out": True}, status=503)
    context |= {
        "now": Moment(now),
        "rows": [job_line(row, now) for row in page.rows],
        "view": form.view,
        "tabs": [
            {
                "title": TITLES[view],
                "count": count(counts[view]),
                "url": address(request.path, form.sent(), **ADDRESS_OF[view]),
                "here": view is form.view,
            }
            for view in View
        ],
        "walk_cap": f"{WALK_CAP:,}",
        "nothing_yet": not any(counted.number for counted in counts.values()) and not form.sent(),
        **_neighbours(request, form, page, started=position is not None),
        **_window(request, form, by_view[form.view]),
    }
    return render(request, "console/jobs.html", context)


def _neighbours(
    request: HttpRequest, form: JobFilterForm, page: JobPage, *, started: bool
) -> dict[str, Any]:
    sent = form.sent()
    links: dict[str, Any] = {"cut_short": page.cut_short}
    for name, cursor, backward in (("previous", page.previous, True), ("next", page.next, False)):
        if cursor:
            position = write_position(cursor, backward=backward)
            links[f"{name}_url"] = address(request.path, sent, cursor=position)
    if started:
        links["first_url"] = address(request.path, sent)
    other = "" if form.cleaned_data["sort"] else "due_at"
    links["sort_url"] = address(request.path, sent, sort=other)
    return links


def _window(request: HttpRequest, form: JobFilterForm, filters: Filters) -> dict[str, Any]:
    """Which due times the list shows, and links to wider windows."""
    sent = {**form.sent(), "due_after": "", "due_before": ""}
    current = None if form.has_own_window else form.cleaned_data["window"]
    return {
        "due_from": moment(filters.due_from),
        "due_until": moment(filters.due_until),
        "windows": [
            {
                "label": label,
                "url": address(request.path, sent, window=name),
                "here": name == current,
            }
            for name, (label, _) in WINDOWS.items()
        ]
        if filters.view.walks_ledger or filters.view is View.WAITING
        else [],
    }


def _find(request: HttpRequest) -> HttpResponse:
    """One hit opens the job, several are listed, none says what was tried."""
    form = FindForm(request.GET)
    if not form.is_valid():
        return render(request, "console/find.html", {"form": form}, status=400)
    sought = form.cleaned_data["q"]
    if not sought:
        return redirect("console:jobs")
    tenants = list(Tenant.objects.only("shard_spread"))
    try:
        with bounded_reading() as now:
            found = find_jobs(sought, tenants=tenants)
            if len(found.job_ids) == 1:
                return redirect("console:job", job_id=found.job_ids[0])
            rows = named_jobs(found.job_ids)
    except ReadTimedOut:
        return render(request, "console/find.html", {"form": form, "timed_out": True}, status=503)
    context = {
        "form": form,
        "section": "jobs",
        "now": Moment(now),
        "sought": line(sought, 255),
        "find_value": sought,
        "rows": [job_line(row, now) for row in rows],
        "tried": found.tried,
        "tenant_count": len(tenants),
        "min_prefix": MIN_PREFIX,
    }
    return render(request, "console/find.html", context)


@staff_required
@require_GET
def job_page(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """One job: what it is, what happened to it, what can be done with it."""
    return _job_page(request, job_id, CancelForm())


def _job_page(
    request: HttpRequest, job_id: UUID, form: CancelForm, status: int = 200
) -> HttpResponse:
    limit = MAX_EVENTS if request.GET.get("events") == "all" else FEW_EVENTS
    try:
        with bounded_reading():
            job = job_detail(tenant_id=None, job_id=job_id)
            events = job_events(job, limit=limit)
            entries = timeline(job, events)
    except (NotFound, ReadTimedOut, DataError) as error:
        return _no_job(request, job_id, error)
    context = {
        "section": "jobs",
        **job_context(job, events, entries),
        "older_events": bool(events) and events[0].seq > 1,
        "all_events": limit == MAX_EVENTS,
        "cancel_form": form,
    }
    return render(request, "console/job.html", context, status=status)


def _no_job(request: HttpRequest, job_id: UUID, error: Exception) -> HttpResponse:
    match error:
        case NotFound():
            reason, status = "No job has this id.", 404
        case ReadTimedOut():
            reason, status = "Reading it took too long. Try again in a moment.", 503
        case _:
            reason, status = "Its stored row cannot be read: a value is out of every range.", 200
    context = {"job_id": job_id, "reason": reason}
    return render(request, "console/no_job.html", context, status=status)


@staff_required
@require_POST
def cancel(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Cancel a job, and say what was true when that committed."""
    form = CancelForm(request.POST)
    if not form.is_valid():
        return _job_page(request, job_id, form, status=400)
    try:
        outcome = cancel_job(
            shard=locate_job(tenant_id=None, job_id=job_id),
            job_id=job_id,
            actor=actor_of(request.user),
            reason=form.cleaned_data["reason"],
            if_running="refuse" if form.cleaned_data["only_waiting"] else "ask",
        )
    except NotFound:
        messages.error(request, f"There is no job {job_id}; nothing was changed.")
        return redirect("console:jobs")
    except AlreadyFinished as refusal:
        messages.warning(
            request, f"Nothing was changed: the job had already finished ({refusal.current})."
        )
    except JobRunning:
        messages.warning(request, "Nothing was changed: a worker has the job.")
    except JobError as refusal:
        messages.error(request, f"Nothing was changed: {refusal.detail}")
    else:
        messages.success(request, OUTCOMES[outcome.outcome, outcome.already])
    return redirect(reverse("console:job", args=[job_id]))


OUTCOMES = {
    ("cancelled", False): "Cancelled. No worker had the job; it will not run.",
    ("cancelled", True): "It had been cancelled before; nothing was changed.",
    (
        "cancel_requested",
        False,
    ): "Cancel requested. A worker has the job and was told to stop; this page shows how it ends.",
    (
        "cancel_requested",
        True,
    ): "A cancel had been requested before; the worker has not stopped yet. Nothing was changed.",
}
