"""Forms whose rows are written by a service. It is asked as the last part of the check, so what it refuses has a field."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction

from jobs.errors import InvalidField, JobError, MalformedJson, ValidationFailed, VersionConflict
from jobs.policies.payloads import parse_json


class JsonText(forms.CharField):
    """A text of JSON; its value is what the text says. Other blanks and line ends change nothing."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_json(text.encode("utf-8", "surrogatepass"))
        except MalformedJson as fault:
            place = f"{fault.pointer}: " if fault.pointer else ""
            raise ValidationError(f"{place}{fault.detail}") from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(initial) != self.to_python(data))
        except ValidationError:
            return True


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    """Fields of a request; `ask` gives them to a service.

    Attributes:
        actor: Who is signed in; set for each request.
    """

    actor: ClassVar[str] = ""
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput)  # the version on the page

    def ask(self, given: dict[str, Any]) -> Any:
        """The row that the service has written.

        Raises:
            JobError: It refuses.
        """
        raise NotImplementedError

    def request_of(self, given: dict[str, Any]) -> Any:
        """What the service is asked for.

        Raises:
            ValidationFailed: Lists every faulty field.
        """
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        """Ask the service, if every field is good by itself; its errors go to the fields they are about."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            self._show_others(given)
            return given
        try:
            with transaction.atomic():
                self.instance = self.ask(given)
        except VersionConflict as late:
            self._show_conflict(late.current)
        except ValidationFailed as several:
            for fault in several.errors:
                self._show(fault)
        except InvalidField as fault:
            self._show(fault)
        except JobError as refused:
            pointer = getattr(refused, "pointer", "")
            self._show(InvalidField(pointer, refused.code, refused.detail))
        return given

    def _post_clean(self) -> None:
        """Nothing: the service has checked what is to be unique, and has stored it."""

    def _show_others(self, given: dict[str, Any]) -> None:
        """Beside the fields that are no good by themselves, those that the service would refuse: all at once."""
        wrong = set(self.errors)
        try:
            self.request_of(given)
        except ValidationFailed as several:
            for fault in several.errors:
                if self._name(fault) not in (*wrong, None):
                    self._show(fault)

    def _name(self, fault: InvalidField) -> str | None:
        """The form field that a fault is about."""
        first = fault.pointer.removeprefix("/").split("/")[0]
        return first if first in self.fields else None

    def _show(self, fault: InvalidField) -> None:
        if (name := self._name(fault)) is None:
            self.add_error(None, f"{fault.pointer or 'It'} {fault.reason}")
            return
        place = fault.pointer.removeprefix(f"/{name}").removeprefix("/")
        reason = fault.reason[:1].upper() + fault.reason[1:]
        self.add_error(name, f"{place}: {fault.reason}" if place else reason)

    def _show_conflict(self, current: int) -> None:
        """What was typed stays on the page, which now knows of the version that came in between."""
        data: Any = self.data.copy()  # type: ignore[attr-defined]
        data[self.add_prefix("seen")] = str(current)
        self.data = data
        self.add_error(
            None,
            f"Somebody else has changed it meanwhile: it is at version {current} now, and nothing of yours is stored. "
            "What you typed is still here. Look at the other change; saving again puts yours over it.",
        )


def pretty(value: object) -> str:
    """JSON as people edit it."""
    return json.dumps(value, indent=2, ensure_ascii=False)
