"""Routes of the API, below /api/v1/. No trailing slashes."""

from __future__ import annotations

from django.urls import URLPattern, path

from jobs.api.views import ApiView
from jobs.api.views_calendars import CalendarsView, CalendarView
from jobs.api.views_jobs import CancelJobView, JobsView, JobView, WhyView
from jobs.api.views_schedule_actions import CatchUpView, PauseView, ResumeView, TriggerView
from jobs.api.views_schedule_history import OccurrencesView, TransitionsView, VersionsView
from jobs.api.views_schedules import PreviewView, SchedulesView, ScheduleView

app_name = "api"


def operation(route: str, view: type[ApiView], name: str) -> URLPattern:
    """A route to a view that has a scope for each of its methods; any other view is refused at start.

    Raises:
        TypeError: The view is not an ApiView.
    """
    if not issubclass(view, ApiView):
        raise TypeError(f"{view!r} is not an ApiView: it would answer without a scope")
    return path(route, view.as_view(), name=name)


urlpatterns = [
    operation("jobs", JobsView, "jobs"),
    operation("jobs/<str:job_id>", JobView, "job"),
    operation("jobs/<str:job_id>/why", WhyView, "why"),
    operation("jobs/<str:job_id>/cancel", CancelJobView, "cancel"),
    operation("schedules", SchedulesView, "schedules"),
    operation("schedules/preview", PreviewView, "schedule-preview"),
    operation("schedules/transitions", TransitionsView, "schedule-transitions"),
    operation("schedules/<str:schedule_id>", ScheduleView, "schedule"),
    operation("schedules/<str:schedule_id>/pause", PauseView, "schedule-pause"),
    operation("schedules/<str:schedule_id>/resume", ResumeView, "schedule-resume"),
    operation("schedules/<str:schedule_id>/trigger", TriggerView, "schedule-trigger"),
    operation("schedules/<str:schedule_id>/occurrences", OccurrencesView, "schedule-occurrences"),
    operation("schedules/<str:schedule_id>/versions", VersionsView, "schedule-versions"),
    operation("schedules/<str:schedule_id>/catch-up", CatchUpView, "schedule-catch-up"),
    operation("calendars", CalendarsView, "calendars"),
    operation("calendars/<path:name>", CalendarView, "calendar"),  # a name may have slashes
]
