"""App configuration: registers the system checks."""

from __future__ import annotations

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The job tables, their transitions and their screens."""

    name = "jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from jobs import checks  # noqa: F401 (registers on import)
