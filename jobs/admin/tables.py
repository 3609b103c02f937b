"""What the admin shows of tables that nobody edits: jobs and their history, the fleet, credentials."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.admin.read_only import TEXT_CAP, ReadOnlyAdmin, written
from jobs.models import (
    ApiToken,
    DeadLetter,
    DueEntry,
    Job,
    JobEvent,
    Lease,
    Pool,
    Route,
    SchedulerNode,
    Shard,
    StartBucket,
    Tenant,
    Worker,
)
from jobs.policies.masking import mask_text
from jobs.policies.sharding import shard_of_id
from jobs.queries.history import job_events
from jobs.queries.lookup import find_jobs

NEWEST_EVENTS = 50


class OfJobAdmin(ReadOnlyAdmin):
    """Rows that belong to a job and are found by its id."""

    search_fields: ClassVar[tuple[str, ...]] = ("job__exact",)
    search_help_text = "Job id, in full"

    def view_on_site(self, obj: Any) -> str:
        return reverse("console:job", args=[obj.job_id])


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "tenant_label", "handler", "due_at_time", "lane_label", "status", "attempt", "reference",
    )  # fmt: skip
    search_fields = ("id",)
    search_help_text = "Job id, its first 8 or more digits, or request key, in full"
    hidden = ("request_hash",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By index only; the term is one id, beginning of an id, or key."""
        if not search_term:
            return queryset, False
        found = find_jobs(search_term, tenants=Tenant.objects.only("shard_spread"))
        return queryset.filter(pk__in=found.job_ids), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        if match and match.url_name == "jobs_job_changelist":
            return rows.only(
                "id", "tenant_id", "handler", "lane_id", "status", "attempt", "reference"
            )
        return rows

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.shown, "history")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.shown, "history")

    @admin.display(description=f"newest {NEWEST_EVENTS} events")
    def history(self, job: Job) -> SafeString:
        events = reversed(job_events(job, limit=NEWEST_EVENTS))
        lines = (
            (
                event.seq,
                event.at.isoformat(sep=" ", timespec="milliseconds"),
                event.kind,
                event.attempt,
                event.actor,
                "" if event.detail is None else written(event.detail)[:500],
            )
            for event in events
        )
        cells = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>"
        return format_html(
            "<table><thead><tr><th>#</th><th>At</th><th>Kind</th><th>Attempt</th><th>Actor</th><th>Detail</th></tr>"
            "</thead><tbody>{}</tbody></table>",
            format_html_join("", cells, lines),
        )

    def view_on_site(self, obj: Any) -> str:
        return reverse("console:job", args=[obj.pk])


@admin.register(DueEntry)
class DueEntryAdmin(OfJobAdmin):
    list_display = (
        "job_key",
        "due_at_time",
        "shard",
        "tenant_label",
        "route_label",
        "lane_label",
        "priority",
    )


@admin.register(Lease)
class LeaseAdmin(OfJobAdmin):
    list_display = (
        "job_key", "attempt", "token", "pool_label", "worker", "started_at_time", "expires_at_time", "cancel_requested",
    )  # fmt: skip
    search_fields = ("job__exact", "id__exact")
    search_help_text = "Job id or lease id, in full"


@admin.register(DeadLetter)
class DeadLetterAdmin(OfJobAdmin):
    list_display = (
        "job_key", "died_at_time", "tenant_label", "handler", "error_type", "reason", "attempts", "resolution",
    )  # fmt: skip
    ordering = ("-died_at", "-id")
    hidden = ("message",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.shown, "masked_message")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.shown, "masked_message")

    @admin.display(description="message")
    def masked_message(self, letter: DeadLetter) -> str:
        return mask_text(letter.message[:TEXT_CAP])


@admin.register(JobEvent)
class JobEventAdmin(OfJobAdmin):
    """A list only: the table's key begins with the time, so one event by its id alone would search every day."""

    list_display = (
        "job_key",
        "seq",
        "at_time",
        "kind",
        "from_status",
        "to_status",
        "attempt",
        "actor",
        "token",
    )
    list_display_links = None
    ordering = ("-at", "-id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Events of one job; its shard, which the index begins with, is in its id."""
        if not search_term:
            return queryset, False
        try:
            job_id = UUID(search_term)
            return queryset.filter(shard=shard_of_id(job_id), job=job_id).order_by("-seq"), False
        except ValueError:
            return queryset.none(), False

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> None:
        return None


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "tenant_label",
        "name",
        "last4",
        "created_at_time",
        "expires_at_time",
        "revoked_at_time",
    )
    search_fields = ("id__exact", "name__exact")
    ordering = ("id",)
    hidden = ("secret_hash",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("secret_hash")


@admin.register(Pool)
class PoolAdmin(ReadOnlyAdmin):
    list_display = ("name", "executor", "created_at_time")
    search_fields = ("name__exact",)


@admin.register(Route)
class RouteAdmin(ReadOnlyAdmin):
    list_display = ("id", "handler", "labels_text")
    search_fields = ("handler__exact",)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "host",
        "pid",
        "pool_label",
        "state",
        "slots",
        "running",
        "version",
        "last_seen_at_time",
    )
    search_fields = ("id__exact", "host__exact")
    ordering = ("-last_seen_at", "id")


@admin.register(SchedulerNode)
class SchedulerNodeAdmin(ReadOnlyAdmin):
    list_display = (
        "host",
        "pid",
        "version",
        "started_at_time",
        "expires_at_time",
        "clock_skew_seconds",
    )
    search_fields = ("id__exact", "host__exact")


@admin.register(Shard)
class ShardAdmin(ReadOnlyAdmin):
    list_display = ("number", "owner", "epoch", "expires_at_time")


@admin.register(StartBucket)
class StartBucketAdmin(ReadOnlyAdmin):
    list_display = ("scope", "tokens", "filled_at_time")
    search_fields = ("scope__exact",)
