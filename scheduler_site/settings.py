"""Settings, all from the environment. Every variable may come from a file instead: NAME_FILE=/path.

Set DATABASE_URL and DUEKEEPER_SECRET_KEY; the rest has defaults fit for production behind HTTPS.
"""

from __future__ import annotations

import sys
import zoneinfo
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from django.utils.csp import CSP

from jobs.conf import FIELDS
from scheduler_site import environment, logs

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.FileAwareEnv()

# --- What kind of installation this is -------------------------------------------------------------------------------

site = {
    "debug": False,
    "plain_http": None,  # served without TLS, on a developer's machine; None: as debug says
    "behind_tls_proxy": False,  # the proxy overwrites X-Forwarded-Proto; otherwise any client could claim HTTPS
    "hsts_seconds": 31_536_000,
    # For web processes only: loops and heartbeats of the engine each own a connection.
    "database_pool_size": 0,
    "database_max_age_seconds": 60,
    **environment.typed_values(
        env,
        {
            "debug": bool,
            "plain_http": bool,
            "behind_tls_proxy": bool,
            "hsts_seconds": int,
            "database_pool_size": int,
            "database_max_age_seconds": int,
        },
    ),
}
DEBUG = site["debug"]
PLAIN_HTTP = DEBUG if site["plain_http"] is None else site["plain_http"]

# Read as it stands: django-environ takes "$…" for the name of another variable, and a key may begin like that.
# Empty means: Django refuses as soon as something is to be signed. Engine processes sign nothing and need no key.
SECRET_KEY = env.ENVIRON.get("DUEKEEPER_SECRET_KEY", "").strip()
if DEBUG and not SECRET_KEY:
    SECRET_KEY = "debug-only-key-that-signs-nothing-of-value"  # noqa: S105
SECRET_KEY_FALLBACKS = env.list("DUEKEEPER_SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS = env.list("DUEKEEPER_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("DUEKEEPER_CSRF_TRUSTED_ORIGINS", default=[])

# --- Parts -----------------------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "jobs",
    "workers",
    *environment.apps(env.list("DUEKEEPER_APPS", default=[])),  # with handlers of their own
]
MIDDLEWARE = [
    "jobs.api.middleware.ApiMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "scheduler_site.urls"
WSGI_APPLICATION = "scheduler_site.wsgi.application"
ASGI_APPLICATION = "scheduler_site.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
# A view of the API that names neither authentication nor permissions answers nobody.
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "UNAUTHENTICATED_USER": None,
}

# --- Database --------------------------------------------------------------------------------------------------------

DATABASES = {
    "default": environment.database(
        env.str("DATABASE_URL", default="").strip(),
        pool_size=site["database_pool_size"],
        max_age_seconds=site["database_max_age_seconds"],
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- The engine: read through jobs.conf, checked at start by jobs.checks -----------------------------------------------

JOBS = environment.typed_values(env, FIELDS)

# --- Time and language -----------------------------------------------------------------------------------------------

USE_TZ = True
TIME_ZONE = "UTC"
# Zone data comes from the pinned package alone: what the operating system has differs from host to host.
zoneinfo.reset_tzpath(to=())
zoneinfo.ZoneInfo.clear_cache()
LANGUAGE_CODE = "en"
USE_I18N = True

# --- Sign-in ---------------------------------------------------------------------------------------------------------

LOGIN_URL = "/console/login/"
LOGIN_REDIRECT_URL = "/console/"
LOGOUT_REDIRECT_URL = LOGIN_URL
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- Transport and browser rules -------------------------------------------------------------------------------------

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = not PLAIN_HTTP
SECURE_REDIRECT_EXEMPT = [
    r"^(healthz|readyz|metrics)$"
]  # probes come from inside, over plain HTTP
SECURE_HSTS_SECONDS = 0 if PLAIN_HTTP else site["hsts_seconds"]
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = not PLAIN_HTTP
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if site["behind_tls_proxy"] else None
X_FRAME_OPTIONS = "DENY"
SECURE_CSP: dict[str, list[str]] = {
    "default-src": [CSP.SELF],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "object-src": [CSP.NONE],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
    "form-action": [CSP.SELF],
}

# --- Static files ----------------------------------------------------------------------------------------------------

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Set in an image: `collectstatic` fills it with hashed, compressed files. Unset: files are served from where they lie.
STATIC_ROOT = env.str("DUEKEEPER_STATIC_ROOT", default="") or None
WHITENOISE_USE_FINDERS = STATIC_ROOT is None
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": (
            "whitenoise.storage.CompressedManifestStaticFilesStorage"
            if STATIC_ROOT
            else "django.contrib.staticfiles.storage.StaticFilesStorage"
        )
    },
}

# --- Logs ------------------------------------------------------------------------------------------------------------

LOG_FORMAT = env.str("LOG_FORMAT", default="text" if sys.stderr.isatty() else "json")
if LOG_FORMAT not in ("json", "text"):
    raise ImproperlyConfigured(f"LOG_FORMAT={LOG_FORMAT!r} must be json or text.")
LOGGING = logs.configuration(
    form=LOG_FORMAT, level=env.str("LOG_LEVEL", default="INFO").strip().upper()
)
