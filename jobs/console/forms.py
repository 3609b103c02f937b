"""What people may type: list filters, a search text, reasons and notes. Every fault names its field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError

from jobs.console.paging import Position, read_position
from jobs.errors import InvalidField
from jobs.models import Handler, Tenant
from jobs.policies.payloads import check_scalar
from jobs.policies.times import parse_time
from jobs.queries.lists import Filters, View
from jobs.states import JobStatus

PAGE_SIZES = (25, 200)
DEFAULT_PAGE_SIZE = 50
SUGGESTIONS = 200
WINDOWS = {
    "": ("last and next 24 hours", timedelta(days=1)),
    "7d": ("last and next 7 days", timedelta(days=7)),
    "31d": ("last and next 31 days", timedelta(days=31)),
    "any": ("any time", None),
}
# (status, phase) in the address → list. The status words are those of the API.
VIEWS = {
    ("", ""): View.ALL,
    (JobStatus.SCHEDULED, ""): View.WAITING,
    (JobStatus.LEASED, "published"): View.PUBLISHED,
    (JobStatus.LEASED, "running"): View.RUNNING,
    (JobStatus.DEAD, ""): View.DEAD,
    (JobStatus.SUCCEEDED, ""): View.SUCCEEDED,
    (JobStatus.CANCELLED, ""): View.CANCELLED,
}
ADDRESS_OF = {view: {"status": status, "phase": phase} for (status, phase), view in VIEWS.items()}


def storable(text: str) -> None:
    """Refuse what the database could not hold or compare: lone surrogates. (CharField itself refuses NUL.)"""
    try:
        check_scalar(text.replace("\0", ""), "")
    except InvalidField as fault:
        raise ValidationError(f"This text {fault.reason}.", code=fault.field_code) from None


class Text(forms.CharField):
    """One line of storable text."""

    default_validators = [storable]


class UtcTime(forms.Field):
    """A moment: RFC 3339 with offset, or a browser's date and time, which the page says is UTC."""

    widget = forms.DateTimeInput(
        attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"
    )

    def to_python(self, value: Any) -> datetime | None:
        """None for an empty field."""
        if value in self.empty_values:
            return None
        text = str(value)
        if len(text) == 16:  # browsers leave out seconds of zero
            text += ":00"
        try:
            return parse_time(text if text[-1:] in "Zz" or text[-6:-5] in "+-" else f"{text}Z", "")
        except InvalidField as fault:
            raise ValidationError(f"This {fault.reason}.", code=fault.field_code) from None

    def prepare_value(self, value: Any) -> Any:
        """The form that a browser's field shows; what cannot be read is shown as it came."""
        try:
            moment = self.to_python(value)
        except ValidationError:
            return value
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") if moment else value


class FilterForm(forms.Form):
    """What job list and dead letter list have in common."""

    tenant = Text(required=False, max_length=63)
    handler = Text(required=False, max_length=200)
    limit = forms.IntegerField(
        required=False, min_value=PAGE_SIZES[0], max_value=PAGE_SIZES[1], label="Rows per page"
    )
    cursor = Text(required=False, max_length=80, label="Page")

    def clean_tenant(self) -> Tenant | None:
        """The tenant of this slug."""
        slug = self.cleaned_data["tenant"]
        if not slug:
            return None
        tenant = Tenant.objects.filter(slug=slug).only("slug").first()
        if tenant is None:
            raise ValidationError("There is no tenant of this name.", code="unknown")
        return tenant

    def clean_cursor(self) -> Position | None:
        """Where the page begins."""
        text = self.cleaned_data["cursor"]
        try:
            return read_position(text) if text else None
        except InvalidField as fault:
            raise ValidationError(f"This {fault.reason}.", code=fault.field_code) from None

    @property
    def page_size(self) -> int:
        """Rows per page."""
        return int(self.cleaned_data["limit"] or DEFAULT_PAGE_SIZE)

    def filters(self) -> Filters:
        """Tenant and handler."""
        tenant = self.cleaned_data["tenant"]
        return Filters(
            tenant_id=tenant.pk if tenant else None, handler=self.cleaned_data["handler"]
        )

    @property
    def tenant_names(self) -> list[str]:
        """Offered beside the field."""
        return list(Tenant.objects.values_list("slug", flat=True)[:SUGGESTIONS])

    @property
    def handler_names(self) -> list[str]:
        """Offered beside the field."""
        return list(Handler.objects.values_list("name", flat=True)[:SUGGESTIONS])

    def sent(self) -> dict[str, str]:
        """The fields of this form that were given, for links to its neighbours; without the page."""
        return {
            name: value
            for name in self.fields
            if name != "cursor" and (value := str(self.data.get(name, "")))
        }


class JobFilterForm(FilterForm):
    """Filters of the job list."""

    status = forms.ChoiceField(
        required=False, choices=[("", "All"), *((s.value, s.value) for s in JobStatus)]
    )
    phase = forms.ChoiceField(
        required=False, choices=[("", "All"), ("published", "published"), ("running", "running")]
    )
    window = forms.ChoiceField(
        required=False, choices=[(name, label) for name, (label, _) in WINDOWS.items()]
    )
    due_after = UtcTime(required=False, label="Due from")
    due_before = UtcTime(required=False, label="Due before")
    sort = forms.ChoiceField(
        required=False, choices=[("", "newest due first"), ("due_at", "oldest due first")]
    )

    def clean(self) -> dict[str, Any]:
        """Fields that must go together."""
        found = self.cleaned_data
        if "status" in found and "phase" in found:
            if found["phase"] and not found["status"]:
                found["status"] = JobStatus.LEASED.value
            if (found["status"], found["phase"]) not in VIEWS:
                self.add_error("phase", "Leased jobs, and only they, are published or running.")
        after, before = found.get("due_after"), found.get("due_before")
        if after and before and after >= before:
            self.add_error("due_before", "This must be later than “due from”.")
        return found

    @property
    def view(self) -> View:
        """Which list."""
        return VIEWS[self.cleaned_data["status"], self.cleaned_data["phase"]]

    @property
    def has_own_window(self) -> bool:
        """True when the person named a time."""
        return bool(self.cleaned_data["due_after"] or self.cleaned_data["due_before"])

    def filters_of(self, view: View, now: datetime) -> Filters:
        """Filters of one of the lists at `now`, the database's time.

        The default window bounds the ledger's lists. Jobs that wait are shown from the longest overdue on, and what
        is leased or dead is shown whole: hiding those would hide the backlog.
        """
        found = self.cleaned_data
        after, before = found["due_after"], found["due_before"]
        width = WINDOWS[found["window"]][1]
        if not self.has_own_window and width:
            if view.walks_ledger:
                after = now - width
            if view.walks_ledger or view is View.WAITING:
                before = now + width
        base = self.filters()
        return Filters(
            view=view,
            tenant_id=base.tenant_id,
            handler=base.handler,
            due_from=after,
            due_until=before,
        )


class FindForm(forms.Form):
    """The search box."""

    q = Text(required=False, max_length=255, label="Find")


class CancelForm(forms.Form):
    """Why a job is to be cancelled."""

    reason = Text(max_length=500, label="Reason")
    only_waiting = forms.BooleanField(required=False)


class LetterForm(forms.Form):
    """What to do with some dead letters, and why."""

    action = forms.ChoiceField(
        required=False, choices=[("requeue", "Requeue"), ("discard", "Discard")], label="Action"
    )
    note = Text(max_length=1000, label="Note")

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self._only: list[str] = data.getlist("only")
        self._ticked: list[str] = data.getlist("letter")

    def clean(self) -> dict[str, Any]:
        """The chosen dead letters: those ticked, or the one whose own button was pressed."""
        found = self.cleaned_data
        if self._only:  # the button of a row carries no action of its own
            found["action"] = "requeue"
        elif not found.get("action"):
            self.add_error("action", "This must be requeue or discard.")
        chosen = list(dict.fromkeys(self._only or self._ticked))
        if not chosen:
            raise ValidationError(
                "Nothing was done: no dead letter was selected.", code="required"
            )
        if len(chosen) > PAGE_SIZES[1]:
            raise ValidationError(
                f"Nothing was done: at most {PAGE_SIZES[1]} at a time.", code="too_many"
            )
        try:
            found["letters"] = [UUID(text) for text in chosen]
        except ValueError:
            raise ValidationError(
                "Nothing was done: a selected row has no valid id.", code="invalid"
            ) from None
        return found
