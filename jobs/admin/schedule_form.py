"""The form of a schedule: the fields of a request, as the API takes them."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError

from jobs.admin.service_form import JsonText, ServiceForm, pretty
from jobs.models import Schedule, ScheduleVersion, Tenant
from jobs.policies.masking import is_masked, mask_values, unmask
from jobs.policies.times import format_time
from jobs.services.schedule_requests import ScheduleRequest, fields_of, parse_schedule
from jobs.services.schedules import create_schedule, edit_schedule
from jobs.services.timings import defaults, tenant_defaults
from jobs.states import Misfire, OnGap, OnHoliday, OnOverlap, OnRunning

TIME = "2027-01-31T09:00:00Z; empty: none"
FIELDS = (
    "name", "cron", "every", "anchor", "timezone", "on_gap", "on_overlap", "job", "misfire", "grace_seconds",
    "catch_up_most", "catch_up_seconds", "on_running", "calendar", "on_holiday", "jitter_seconds", "starts_at", "ends_at",
    "max_runs",
)  # fmt: skip
_WITHOUT_DEFAULT = ("calendar", "starts_at", "ends_at", "max_runs")


def _choices(kind: Any, empty: str = "") -> list[tuple[str, str]]:
    words = [(one.value, one.value.replace("_", " ")) for one in kind]
    return [("", empty), *words] if empty else words


class ScheduleForm(ServiceForm):
    """A rule, its policies and the job it makes."""

    tenant = forms.ModelChoiceField(queryset=Tenant.objects.only("slug").order_by("slug"))
    name = forms.CharField(max_length=200)
    cron = forms.CharField(
        required=False, help_text='Five or six fields, such as "30 2 * * *"; or leave it empty.'
    )
    every = forms.CharField(
        required=False, help_text="90m, 36h (elapsed time), 3d, 2w, 1mo (dates); instead of cron."
    )
    anchor = forms.CharField(
        required=False,
        help_text="Of every: 2026-03-01T09:00:00Z; for dates without the Z.",
    )
    timezone = forms.CharField(
        required=False, help_text="Such as Europe/Berlin; empty: the tenant's."
    )
    on_gap = forms.ChoiceField(
        required=False,
        choices=_choices(OnGap, "as the tenant"),
        help_text="What a time does that the clock never shows.",
    )
    on_overlap = forms.ChoiceField(
        required=False,
        choices=_choices(OnOverlap, "as the tenant"),
        help_text="When a time runs that the clock shows twice.",
    )
    job = JsonText(
        help_text='{"handler": "reports.digest", "payload": {…}}: a job request without time and request key. '
        "What is shown as *** stays as it is stored."
    )
    misfire = forms.ChoiceField(choices=_choices(Misfire), initial=Misfire.LATEST.value)
    grace_seconds = forms.FloatField(initial=60, help_text="Later than this it counts as missed.")
    catch_up_most = forms.IntegerField(
        initial=10, help_text="Misfire all: at most so many missed ones run, the latest."
    )
    catch_up_seconds = forms.FloatField(
        initial=86_400, help_text="Misfire all: none that is older."
    )
    on_running = forms.ChoiceField(
        choices=_choices(OnRunning),
        initial=OnRunning.ALLOW.value,
        help_text="When it fires while an earlier run is still there.",
    )
    calendar = forms.CharField(
        required=False, help_text="Name of one of the tenant's calendars; empty: none."
    )
    on_holiday = forms.ChoiceField(
        choices=_choices(OnHoliday),
        initial=OnHoliday.SKIP.value,
        help_text="Where a firing on a closed day goes.",
    )
    jitter_seconds = forms.IntegerField(
        initial=0, help_text="Every run is due up to so much later, always the same."
    )
    starts_at = forms.CharField(required=False, help_text=TIME)
    ends_at = forms.CharField(required=False, help_text=TIME)
    max_runs = forms.IntegerField(required=False, help_text="Empty: no end.")

    class Meta:
        model = Schedule
        fields: ClassVar[list[str]] = []

    version: ClassVar[ScheduleVersion | None] = None  # in force; None: a schedule is added

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        known: dict[str, Any] = {}
        if self.version is not None:
            stored = fields_of(self.version)
            known = {name: stored[name] for name in FIELDS if name != "name"}
            known["job"] = pretty(mask_values(self.version.template))
            for name in ("starts_at", "ends_at"):
                known[name] = known[name] and format_time(known[name])
            known |= {"name": kwargs["instance"].name, "seen": self.version.number}
        kwargs["initial"] = {**known, **kwargs.get("initial", {})}
        super().__init__(*args, **kwargs)
        if self.version is not None:
            self.fields.pop("tenant", None)

    def clean_job(self) -> Any:
        """The template with the secrets that are stored, where the page showed none."""
        job = self.cleaned_data["job"]
        if self.version is not None:
            job = unmask(job, self.version.template)
        if is_masked(job):
            raise ValidationError("*** stands where nothing is stored: write the value.")
        return job

    def request_of(self, given: dict[str, Any]) -> ScheduleRequest:
        """The fields of the form as a request."""
        fields = {
            name: given[name]
            for name in FIELDS
            if name in given and (given[name] not in ("", None) or name in _WITHOUT_DEFAULT)
        }
        fields |= {name: None for name in _WITHOUT_DEFAULT if fields.get(name) == ""}
        tenant = self._tenant(given)
        holds = defaults() if tenant is None else tenant_defaults(tenant)
        return parse_schedule(fields, defaults=holds)

    def _tenant(self, given: dict[str, Any]) -> Tenant | None:
        if self.version is None:
            return given.get("tenant")
        return Tenant.objects.get(pk=self.instance.tenant_id)

    def ask(self, given: dict[str, Any]) -> Schedule:
        """Create or edit; what was not changed gets no new version."""
        request = self.request_of(given)
        tenant = self._tenant(given)
        assert tenant is not None, "the field is required"  # noqa: S101
        if self.version is None:
            return create_schedule(tenant=tenant, request=request, actor=self.actor)
        if not self.has_changed():
            return self.instance  # type: ignore[no-any-return]
        return edit_schedule(
            tenant=tenant,
            schedule_id=self.instance.pk,
            version=given.get("seen") or 0,
            request=request,
            actor=self.actor,
        )
