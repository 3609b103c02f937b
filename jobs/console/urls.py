"""Routes of the console. Every view but the door is for staff only; a test walks this table."""

from __future__ import annotations

from django.urls import path
from django.views.generic import RedirectView

from jobs.console import views_dead_letters, views_jobs, views_session
from jobs.console.access import staff_required

app_name = "console"
urlpatterns = [
    path("", staff_required(RedirectView.as_view(pattern_name="console:jobs")), name="home"),
    path("login/", views_session.SignInView.as_view(), name="login"),
    path("logout/", views_session.SignOutView.as_view(), name="logout"),
    path("jobs/", views_jobs.job_list, name="jobs"),
    path("jobs/<uuid:job_id>/", views_jobs.job_page, name="job"),
    path("jobs/<uuid:job_id>/cancel/", views_jobs.cancel, name="cancel"),
    path("dead-letters/", views_dead_letters.letter_list, name="dead_letters"),
    path("dead-letters/resolve/", views_dead_letters.resolve, name="resolve"),
]
