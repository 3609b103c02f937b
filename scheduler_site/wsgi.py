"""WSGI entry point, for gunicorn."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_site.settings")

application = get_wsgi_application()

# Django refuses an empty key at its first use; a web process uses it now, so it does not come up.
settings.SECRET_KEY  # noqa: B018
