"""Django admin: every table to look at, nothing to change."""

from jobs.admin import tables

__all__ = ["tables"]  # importing it registers the pages
