"""Routes of the site: API, console, admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(url="/console/")),
    path("api/v1/", include("jobs.api.urls")),
    path("console/", include("jobs.console.urls")),
    path("admin/", admin.site.urls),
]
