"""The settings as separate processes see them: what an environment switches on, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import json, sys
from django.conf import settings
print(json.dumps({name: getattr(settings, name) for name in sys.argv[1:]}))
"""


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the project with these variables and none of the test run's own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = {**kept, "DJANGO_SETTINGS_MODULE": "scheduler_site.settings", **variables}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def settings_with(names: list[str], **variables: str) -> dict[str, object]:
    done = run(["-c", SHOW, *names], **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


TRANSPORT = ["SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "DEBUG"]


def test_without_any_variable_the_site_is_closed_to_plain_http_and_debug_is_off():
    assert settings_with(TRANSPORT) == dict(zip(TRANSPORT, [True, True, True, False], strict=True))


@pytest.mark.parametrize("name", ["DUEKEEPER_DEBUG", "DUEKEEPER_PLAIN_HTTP"])
def test_plain_http_must_be_asked_for(name):
    found = settings_with([*TRANSPORT, "SECURE_HSTS_SECONDS"], **{name: "1"})
    assert found["SESSION_COOKIE_SECURE"] is found["SECURE_SSL_REDIRECT"] is False
    assert found["SECURE_HSTS_SECONDS"] == 0


def test_s30_deployment_checks_are_clean_with_the_production_defaults():
    key = "".join(chr(48 + n) for n in range(70))
    done = run(
        ["manage.py", "check", "--deploy", "--fail-level", "WARNING", "--tag", "security"],
        DUEKEEPER_SECRET_KEY=key,
        DUEKEEPER_ALLOWED_HOSTS="jobs.example.com",
    )
    assert done.returncode == 0, done.stderr


def test_a_web_process_without_a_secret_key_does_not_come_up():
    done = run(["-c", "import scheduler_site.wsgi"])
    assert done.returncode != 0
    assert "SECRET_KEY setting must not be empty" in done.stderr


def test_a_secret_key_may_begin_with_a_dollar_sign():
    found = settings_with(["SECRET_KEY"], DUEKEEPER_SECRET_KEY="$tartsLikeAVariable")
    assert found == {"SECRET_KEY": "$tartsLikeAVariable"}


def test_the_engine_is_set_by_variables_named_after_its_fields():
    found = settings_with(["JOBS"], DUEKEEPER_LEASE_TTL_SECONDS="2", DUEKEEPER_CLAIM_BATCH="7")
    assert found == {"JOBS": {"lease_ttl_seconds": 2.0, "claim_batch": 7}}


def test_apps_with_handlers_are_added_by_name():
    found = settings_with(["INSTALLED_APPS"], DUEKEEPER_APPS="examples.shop")
    assert isinstance(found["INSTALLED_APPS"], list)
    assert found["INSTALLED_APPS"][-1] == "examples.shop"


def test_the_content_security_policy_allows_nothing_inline_and_no_other_origin(client, settings):
    settings.ROOT_URLCONF = "scheduler_site.urls"
    policy = client.get("/").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("command", [["dk", "history", "verify"], ["runscheduler"]])
def test_a_command_without_a_database_names_the_variable(command):
    done = run(["manage.py", *command], DUEKEEPER_SECRET_KEY="k" * 60)
    assert done.returncode == 78
    assert "DATABASE_URL is not set" in done.stderr
    assert "Traceback" not in done.stderr
