"""The form of a calendar: closed days as lines or JSON, weekdays, a calendar file."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError

from jobs.admin.service_form import ServiceForm
from jobs.clock import database_now
from jobs.models import Calendar, Tenant
from jobs.policies.holidays import MOST_FILE, WEEKDAYS
from jobs.services.calendars import (
    CalendarRequest,
    create_calendar,
    parse_calendar,
    replace_calendar,
)

NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class CalendarForm(ServiceForm):
    """Every save is a new edition; schedules follow it within seconds."""

    tenant = forms.ModelChoiceField(queryset=Tenant.objects.only("slug").order_by("slug"))
    name = forms.CharField(max_length=100)
    days = forms.CharField(
        required=False,
        widget=forms.Textarea,
        help_text='A line each: "2027-12-25 Christmas". Or JSON: {"2027-12-25": "Christmas"}.',
    )
    weekend = forms.MultipleChoiceField(
        required=False,
        choices=list(zip(WEEKDAYS, NAMES, strict=True)),
        widget=forms.CheckboxSelectMultiple,
        help_text="Always closed.",
    )
    ics = forms.FileField(
        required=False,
        label="Calendar file",
        help_text="An .ics file: its events of whole days are added to the days above.",
    )

    class Meta:
        model = Calendar
        fields: ClassVar[list[str]] = []

    stored_days: ClassVar[dict[str, str] | None] = None  # of the edition; None: one is added

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        known: dict[str, Any] = {}
        if self.stored_days is not None:
            row = kwargs["instance"]
            weekend = row.weekend if isinstance(row.weekend, list) else []
            lines = [f"{day} {name}".strip() for day, name in self.stored_days.items()]
            known = {"days": "\n".join(lines), "weekend": weekend, "seen": row.number}
        kwargs["initial"] = {**known, **kwargs.get("initial", {})}
        super().__init__(*args, **kwargs)
        if self.stored_days is not None:
            for fixed in ("tenant", "name"):
                self.fields.pop(fixed, None)

    def clean_days(self) -> dict[str, str]:
        """Date → name."""
        text = str(self.cleaned_data["days"]).strip()
        if text.startswith("{"):
            try:
                found = json.loads(text, object_pairs_hook=_once)
            except (ValueError, RecursionError) as fault:
                raise ValidationError(f"This is no JSON: {fault}"[:300]) from None
            return dict(found)
        pairs = []
        for line in filter(None, map(str.strip, text.splitlines())):
            day, _, name = line.partition(" ")
            pairs.append((day, name.strip()))
        try:
            return _once(pairs)
        except ValueError as fault:
            raise ValidationError(str(fault)) from None

    def clean_ics(self) -> str | None:
        """The text of the file."""
        file = self.cleaned_data["ics"]
        if not file:
            return None
        if file.size > 4 * MOST_FILE:  # of which a character may take four
            raise ValidationError(f"The file must have at most {MOST_FILE} characters.")
        try:
            return str(file.read().decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise ValidationError("The file is not in UTF-8.") from None

    def request_of(self, given: dict[str, Any]) -> CalendarRequest:
        """The fields of the form as a request."""
        name = given.get("name") if self.stored_days is None else self.instance.name
        fields = {"name": name, "days": given.get("days", {}), "weekend": given.get("weekend", [])}
        if given.get("ics") is not None:
            fields["ics"] = given["ics"]
        return parse_calendar(fields, today=database_now().date())

    def ask(self, given: dict[str, Any]) -> Calendar:
        """Create it, or its next edition."""
        request = self.request_of(given)
        if self.stored_days is None:
            return create_calendar(tenant=given["tenant"], request=request, actor=self.actor)
        if not self.has_changed():
            return self.instance  # type: ignore[no-any-return]
        tenant = Tenant.objects.get(pk=self.instance.tenant_id)
        return replace_calendar(
            tenant=tenant, request=request, actor=self.actor, number=given.get("seen") or 0
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for day, name in pairs:
        if day in found:
            raise ValueError(f"{day[:40]} is there twice")
        found[day] = name
    return found
