"""Admin pages of schedules and calendars: staff edit them through the services; versions and ledger stay as they are."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import TextField
from django.db.models.functions import Cast
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from jobs.admin import schedule_panels
from jobs.admin.calendar_form import CalendarForm
from jobs.admin.editable import EditableAdmin, actor_of
from jobs.admin.read_only import ReadOnlyAdmin
from jobs.admin.schedule_acts import ACTS, try_act
from jobs.admin.schedule_form import FIELDS, ScheduleForm
from jobs.errors import CalendarInUse, NotFound
from jobs.models import Calendar, Occurrence, Schedule, ScheduleVersion, Tenant
from jobs.queries.history import is_remark, stored_json
from jobs.queries.schedule_lists import versions_in_force
from jobs.services.calendars import delete_calendar
from jobs.services.schedules import delete_schedule


class ServiceAdmin(EditableAdmin):
    """Rows that only services write. The form has asked one before the admin comes to save anything.

    Attributes:
        gone: Column that is set once a row is not in force any more; from then on it is only looked at.
    """

    gone: ClassVar[str]
    may_delete = True

    def is_gone(self, obj: Any) -> bool:
        """The row is not in force any more."""
        return obj is not None and getattr(obj, self.gone) is not None

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not self.is_gone(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not self.is_gone(obj) and super().has_delete_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Nothing is left to do."""

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """To the row that the service has written, which need not be the one that was opened."""
        answer = super().response_change(request, obj)
        if "_continue" in request.POST:
            name = f"admin:jobs_{self.opts.model_name}_change"
            return HttpResponseRedirect(reverse(name, args=[obj.pk]))
        return answer


@admin.register(Calendar)
class CalendarAdmin(ServiceAdmin):
    form = CalendarForm
    list_display = (
        "name", "tenant_label", "number", "created_by", "created_at_time", "replaced_at_time",
    )  # fmt: skip
    search_fields = ("name__exact",)
    search_help_text = "Name, in full"
    ordering = ("-id",)
    gone = "replaced_at"
    fixed = ("tenant", "name")
    editable = ("days", "weekend", "ics", "seen")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None or not self.has_change_permission(request, obj):
            return super().get_fields(request, obj)
        shown = [one for name, one in self.shown_as.items() if name not in self.editable]
        return (*self.editable, *shown)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.actor, form.stored_days = actor_of(request), None
        if obj is not None:
            texts = Calendar.objects.filter(pk=obj.pk).values_list(
                Cast("days", TextField()), Cast("weekend", TextField())
            )
            days, weekend = (stored_json(text) for text in texts.get())
            form.stored_days = days if isinstance(days, dict) and not is_remark(days) else {}
            obj.days, obj.weekend = days, weekend  # the form would read them as they are stored
        return form

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """What the page of a deletion says; anything "protected" keeps it from being carried out."""
        protected = [f"{one}: {reason}" for one in objs if (reason := _kept_by(one))]
        return [str(one) for one in objs], {"calendar": len(objs)}, set(), protected

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        tenant = Tenant.objects.get(pk=obj.tenant_id)
        delete_calendar(tenant=tenant, name=obj.name, actor=actor_of(request))


def _kept_by(calendar: Calendar) -> str:
    """Why it cannot be deleted: the service is asked, and what it did is undone."""
    try:
        with transaction.atomic():
            tenant = Tenant.objects.get(pk=calendar.tenant_id)
            delete_calendar(tenant=tenant, name=calendar.name, actor="")
            transaction.set_rollback(True)
    except CalendarInUse as refused:
        return refused.detail
    except NotFound:
        return "it has been deleted meanwhile"
    return ""


PANELS = ("next_runs", "clock_changes", "ledger", "history")


@admin.register(Schedule)
class ScheduleAdmin(ServiceAdmin):
    form = ScheduleForm
    change_form_template = "admin/jobs/schedule/change_form.html"
    list_display = (
        "name", "tenant_label", "version", "look_at_time", "paused_at_time", "paused_by", "fault_json", "deleted_at_time",
    )  # fmt: skip
    search_fields = ("id__exact", "name__exact")
    search_help_text = "Id or name, in full"
    ordering = ("id",)
    gone = "deleted_at"
    fixed = ("tenant",)
    editable = (*FIELDS, "seen")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return (*self.fixed, *FIELDS)
        if not self.has_change_permission(request, obj):
            return (*self.shown, *PANELS)
        shown = [one for name, one in self.shown_as.items() if name not in self.editable]
        return (*FIELDS, "seen", *PANELS, *shown)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = self.get_fields(request, obj)
        parts = [
            (None, ("tenant", *FIELDS[: FIELDS.index("misfire")])),
            ("When it is late, busy or closed", FIELDS[FIELDS.index("misfire") :]),
            ("What it does", PANELS),
        ]
        known = {name for _, names in parts for name in names}
        rest = [name for name in fields if name not in known]
        found = [
            (title, {"fields": [name for name in names if name in fields]})
            for title, names in [*parts, ("How it is stored", rest)]
        ]
        return [(title, part) for title, part in found if part["fields"]]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else (*super().get_readonly_fields(request, obj), *PANELS)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.actor = actor_of(request)
        form.version = None if obj is None else versions_in_force([obj.pk]).get(obj.pk)
        return form

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """What the page of a deletion says: versions and ledger stay."""
        return [str(one) for one in objs], {"schedule": len(objs)}, set(), []

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        tenant = Tenant.objects.get(pk=obj.tenant_id)
        delete_schedule(tenant=tenant, schedule_id=obj.pk, actor=actor_of(request))

    def get_urls(self) -> list[URLPattern]:
        act = path(
            "<path:object_id>/act/<str:name>/",
            self.admin_site.admin_view(self.act_view),
            name="jobs_schedule_act",
        )
        return [act, *super().get_urls()]

    def act_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """A page that says what will be done, and does it."""
        schedule, act = self.get_object(request, object_id), ACTS.get(name)
        if schedule is None or act is None:
            raise Http404
        if not self.has_change_permission(request, schedule):
            raise PermissionDenied
        form = act.form()
        if request.method == "POST":
            form = act.form(request.POST)
            done = form.is_valid() and try_act(
                act,
                form,
                tenant=Tenant.objects.get(pk=schedule.tenant_id),
                schedule=schedule,
                actor=actor_of(request),
            )
            if done:
                self.log_change(request, schedule, f"{act.title}.")
                self.message_user(request, done)
                page = reverse("admin:jobs_schedule_change", args=[schedule.pk])
                return HttpResponseRedirect(page)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "schedule": schedule,
            "title": f"{act.title}: {schedule.name}",
            "act": act,
            "form": form,
        }
        return TemplateResponse(request, "admin/jobs/schedule/act.html", context)

    @admin.display(description="next runs")
    def next_runs(self, schedule: Schedule) -> SafeString:
        return schedule_panels.next_runs(schedule)

    @admin.display(description="coming changes of its clock")
    def clock_changes(self, schedule: Schedule) -> SafeString:
        return schedule_panels.clock_changes(schedule)

    @admin.display(description="firings")
    def ledger(self, schedule: Schedule) -> SafeString:
        return schedule_panels.ledger(schedule)

    @admin.display(description="versions")
    def history(self, schedule: Schedule) -> SafeString:
        return schedule_panels.versions(schedule)


@admin.register(ScheduleVersion)
class ScheduleVersionAdmin(ReadOnlyAdmin):
    list_display = (
        "schedule_key", "number", "cron", "every", "timezone", "misfire", "created_by", "created_at_time",
    )  # fmt: skip
    search_fields = ("schedule__exact",)
    search_help_text = "Schedule id, in full"
    ordering = ("-id",)


@admin.register(Occurrence)
class OccurrenceAdmin(ReadOnlyAdmin):
    list_display = (
        "schedule_key", "slot", "fire_at_time", "resolution", "verdict", "reason", "version", "job_id",
    )  # fmt: skip
    search_fields = ("schedule__exact", "job_id__exact")
    search_help_text = "Schedule id or job id, in full"
    ordering = ("-id",)
