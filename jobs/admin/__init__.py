"""Django admin: every table to look at; configuration and pauses to change, jobs never."""

from jobs.admin import settings, tables

__all__ = ["settings", "tables"]  # importing them registers the pages
