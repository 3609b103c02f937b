"""Configuration that staff edit: lanes, tenants' shares and limits, reserves, rates, and pauses."""

from __future__ import annotations

from typing import Any, ClassVar
from zoneinfo import available_timezones

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Max, QuerySet
from django.http import HttpRequest

from jobs.admin.editable import BURST, RATE, Bounds, EditableAdmin, actor_of
from jobs.clock import database_now
from jobs.errors import NotPaused
from jobs.models import ConcurrencyLimit, Handler, Lane, Pause, Reserve, Tenant
from jobs.queries.lists import ReadTimedOut
from jobs.queries.lookup import is_lane_used
from jobs.services.pausing import MAX_REASON, TARGETS, is_there, pause, resume

DAY_SECONDS = 86_400
USED = "jobs that use it, waiting, running or finished: they are shown and ordered by it"
PERHAPS_USED = "perhaps jobs that use it: there are too many to look through"
LAST = "all new jobs: it is the last lane"


class TenantForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_timezone(self) -> str:
        name = str(self.cleaned_data["timezone"])
        if name not in available_timezones():
            raise ValidationError("Use a name of the time zone database, such as Europe/Berlin.")
        return name


@admin.register(Tenant)
class TenantAdmin(EditableAdmin):
    form = TenantForm
    list_display = (
        "slug", "name", "timezone", "weight", "max_running", "max_backlog", "start_rate", "shard_spread",
    )  # fmt: skip
    search_fields = ("slug__exact",)
    # Both decide where its jobs are and under which name its handlers speak to others.
    fixed = ("slug", "shard_spread")
    editable = (
        "name", "timezone", "on_gap", "on_overlap", "weight", "max_running", "max_backlog", "start_rate", "start_burst",
    )  # fmt: skip
    bounds: ClassVar = {"start_rate": RATE, "start_burst": BURST}


@admin.register(Lane)
class LaneAdmin(EditableAdmin):
    list_display = ("name", "priority_floor", "head_start_seconds", "target_start_seconds")
    fixed = ("name",)
    editable = ("priority_floor", "head_start_seconds", "target_start_seconds")
    may_delete = True
    bounds: ClassVar = {
        "priority_floor": Bounds(-100, 100),
        "head_start_seconds": Bounds(0, 30 * DAY_SECONDS),
        "target_start_seconds": Bounds(0.001, 365 * DAY_SECONDS),
    }

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            list(Lane.objects.select_for_update().values_list("pk"))  # one new number at a time
            obj.pk = (Lane.objects.aggregate(last=Max("pk"))["last"] or 0) + 1
        super().save_model(request, obj, form, change)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """What the page of a deletion says; anything "protected" keeps it from being carried out."""
        deleted, counts, missing, protected = super().get_deleted_objects(objs, request)
        for lane in objs:
            if reason := _kept_by(lane):
                protected = [*protected, f"{lane}: {reason}"]
        return deleted, counts, missing, protected


def _kept_by(lane: Lane) -> str:
    if not Lane.objects.exclude(pk=lane.pk).exists():
        return LAST
    try:
        return USED if is_lane_used(lane.pk) else ""
    except ReadTimedOut:
        return PERHAPS_USED


@admin.register(Reserve)
class ReserveAdmin(EditableAdmin):
    list_display = ("id", "pool_label", "lane_label", "slots")
    ordering = ("id",)
    fixed = ("pool", "lane")
    editable = ("slots",)
    may_delete = True
    bounds: ClassVar = {"slots": Bounds(1, 100_000)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("pool", "lane")
        return rows.defer("pool__labels", "pool__exclusive_labels", "pool__created_at")


@admin.register(ConcurrencyLimit)
class ConcurrencyLimitAdmin(EditableAdmin):
    list_display = ("id", "tenant_label", "key", "slots")
    search_fields = ("key__exact",)
    ordering = ("id",)
    fixed = ("tenant", "key")
    editable = ("slots",)
    may_delete = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("tenant").defer("tenant__created_at")


@admin.register(Handler)
class HandlerAdmin(EditableAdmin):
    list_display = (
        "name", "max_attempts", "timeout_seconds", "transactional", "start_rate", "last_advertised_at_time",
    )  # fmt: skip
    search_fields = ("name__exact",)
    editable = ("start_rate", "start_burst")
    may_add = False
    bounds: ClassVar = {"start_rate": RATE, "start_burst": BURST}


class PauseForm(forms.ModelForm):  # type: ignore[type-arg]
    kind = forms.ChoiceField(choices=[(kind.value, kind.label) for kind in TARGETS])
    reason = forms.CharField(widget=forms.Textarea, max_length=MAX_REASON)

    def validate_constraints(self) -> None:
        """None: who pauses what is paused already gives it a new reason and end."""

    def clean(self) -> dict[str, Any]:
        """What the service would refuse, at the field it is about."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        kind, target = given.get("kind"), given.get("target")
        if kind and target and not is_there(Pause.Kind(kind), target):
            self.add_error("target", f"There is no {kind} of this name.")
        if (end := given.get("resume_at")) is not None and end <= database_now():
            self.add_error("resume_at", "Must be a time in the future, in UTC; empty: no end.")
        return given


@admin.register(Pause)
class PauseAdmin(EditableAdmin):
    """Adding a row pauses, deleting it resumes; both go through the service and are logged by it."""

    form = PauseForm
    list_display = ("id", "kind", "target", "paused_by", "paused_at_time", "resume_at_time")
    search_fields = ("target__exact",)
    ordering = ("kind", "target")
    fixed = ("kind", "target", "reason", "resume_at")
    may_delete = True

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        paused = pause(
            kind=Pause.Kind(obj.kind),
            target=obj.target,
            actor=actor_of(request),
            reason=obj.reason,
            resume_at=obj.resume_at,
        )
        obj.pk = Pause.objects.values_list("pk", flat=True).get(kind=obj.kind, target=obj.target)
        obj.paused_by, obj.paused_at = paused.paused_by, paused.paused_at
        note = "What was published before still runs."
        self.message_user(request, f"No {obj.kind} {obj.target} job is claimed now. {note}")

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        try:
            resume(kind=Pause.Kind(obj.kind), target=obj.target, actor=actor_of(request))
        except NotPaused as refused:
            self.message_user(request, refused.detail, messages.WARNING)
