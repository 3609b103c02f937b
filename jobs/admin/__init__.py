"""Django admin: every table to look at; configuration and pauses to change, jobs never."""

from jobs.admin import schedules, settings, tables

__all__ = ["schedules", "settings", "tables"]  # importing them registers the pages
