"""What staff do to a schedule beside editing it: a page for each, with what it will do and what it needs to know."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError

from jobs.clock import database_now
from jobs.errors import InvalidField, JobError, ValidationFailed
from jobs.models import Schedule, Tenant
from jobs.policies.times import format_time, parse_time
from jobs.services.catching_up import catch_up
from jobs.services.pausing import MAX_REASON
from jobs.services.schedules import pause_schedule, resume_schedule, trigger_schedule


class Moment(forms.CharField):
    """An RFC 3339 time with offset."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_time(text, "")
        except InvalidField as fault:
            raise ValidationError(f"It {fault.reason}.") from None


class NothingForm(forms.Form):
    """Nothing to say."""


class PauseForm(forms.Form):
    """Why, and until when."""

    reason = forms.CharField(widget=forms.Textarea, max_length=MAX_REASON)
    resume_at = Moment(
        required=False,
        help_text="2027-01-31T09:00:00Z: it goes on by itself then. Empty: until somebody resumes it.",
    )

    def clean_resume_at(self) -> datetime | None:
        """Not in the past."""
        end: datetime | None = self.cleaned_data["resume_at"]
        if end is not None and end <= database_now():
            raise ValidationError("Must be in the future.")
        return end


class RangeForm(forms.Form):
    """From when to when."""

    begin = Moment(label="From", help_text="2027-01-31T09:00:00Z, included")
    until = Moment(help_text="Included; not in the future")


class Act(NamedTuple):
    """One thing that is done to a schedule."""

    title: str
    words: str
    form: type[forms.Form]
    do: Callable[[Tenant, Schedule, str, dict[str, Any]], str]


def _pause(tenant: Tenant, schedule: Schedule, actor: str, given: dict[str, Any]) -> str:
    paused = pause_schedule(
        tenant=tenant,
        schedule_id=schedule.pk,
        actor=actor,
        reason=given["reason"],
        resume_at=given["resume_at"],
    )
    end = f" until {format_time(paused.resume_at)}" if paused.resume_at else ""
    return f"{schedule.name} is paused{end}. What a worker has already goes on."


def _resume(tenant: Tenant, schedule: Schedule, actor: str, given: dict[str, Any]) -> str:
    resume_schedule(tenant=tenant, schedule_id=schedule.pk, actor=actor)
    return f"{schedule.name} goes on. What fired during the pause was skipped."


def _run(tenant: Tenant, schedule: Schedule, actor: str, given: dict[str, Any]) -> str:
    made = trigger_schedule(tenant=tenant, schedule_id=schedule.pk, actor=actor)
    return f"Job {made.job_id} of {schedule.name} runs now."


def _catch_up(tenant: Tenant, schedule: Schedule, actor: str, given: dict[str, Any]) -> str:
    done = catch_up(
        tenant=tenant,
        schedule_id=schedule.pk,
        begin=given["begin"],
        until=given["until"],
        actor=actor,
    )
    return (
        f"{schedule.name}: {done.made} runs are made up for; {done.known} had run or have a job, "
        f"{done.closed} fell on closed days."
    )


ACTS = {
    "pause": Act(
        "Pause",
        "Nothing fires until it goes on; each firing meanwhile is recorded as skipped and never runs.",
        PauseForm,
        _pause,
    ),
    "resume": Act(
        "Resume",
        "It goes on with what fires from now on. What fired during the pause stays skipped.",
        NothingForm,
        _resume,
    ),
    "run": Act(
        "Run now",
        "One job of it now, beside its firings, which it does not move.",
        NothingForm,
        _run,
    ),
    "catch-up": Act(
        "Catch up",
        "Every firing of a past range that has not run gets a job now, at most 1,000, by the rule in force.",
        RangeForm,
        _catch_up,
    ),
}
_FIELDS = {"from": "begin"}


def try_act(
    act: Act, form: forms.Form, *, tenant: Tenant, schedule: Schedule, actor: str
) -> str | None:
    """Do it, and say what was done; None if it was refused, with the error in the form."""
    try:
        return act.do(tenant, schedule, actor, form.cleaned_data)
    except ValidationFailed as several:
        for fault in several.errors:
            name = fault.pointer.removeprefix("/")
            name = _FIELDS.get(name, name)
            form.add_error(
                name if name in form.fields else None, f"{fault.pointer} {fault.reason}"
            )
    except JobError as refused:
        form.add_error(None, refused.detail)
    return None
