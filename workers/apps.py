"""App configuration: gives the workers' commands to manage.py."""

from __future__ import annotations

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Scheduler and worker processes; it has no tables of its own."""

    name = "workers"
