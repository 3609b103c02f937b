#!/usr/bin/env python
"""Entry point of every command: `python manage.py <command>`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command named on the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        unset = "settings.DATABASES" in str(
            error
        )  # it has no name: see scheduler_site.environment
        sys.stderr.write(
            f"Configuration wrong: {'DATABASE_URL is not set.' if unset else error}\n"
        )
        sys.exit(78)


if __name__ == "__main__":
    main()
