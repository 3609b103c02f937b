"""Log lines: values beside a fixed event name, and no text of a caller that could pass for a line of ours."""

from __future__ import annotations

import json
import logging
import logging.config
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_site.logs import TextFormatter

ROOT = Path(__file__).resolve().parents[2]
EMIT = """
import logging, logging.config, sys
from scheduler_site.logs import configuration
logging.config.dictConfig(configuration(form=sys.argv[1], level="INFO"))
log = logging.getLogger("jobs.claim")
log.debug("not.shown")
log.info("job.leased", extra={"job_id": "a\\nb", "shard": 7, "note": "\\x1b[2J"})
"""
FORGED = "x\n12:00:00.000 INFO jobs.claim job.succeeded\r\x1b[31m\x9b2J\u2028"


def emitted(form: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", EMIT, form], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""  # standard output is for data
    return done.stderr.splitlines()


def test_json_lines_carry_time_level_event_logger_and_every_value():
    (line,) = emitted("json")
    record = json.loads(line)
    assert record.pop("ts")
    assert record == {
        "level": "INFO",
        "logger": "jobs.claim",
        "event": "job.leased",
        "job_id": "a\nb",
        "shard": 7,
        "note": "\x1b[2J",
    }


def test_text_lines_show_every_value_quoted():
    (line,) = emitted("text")
    assert line.endswith(r'INFO jobs.claim job.leased job_id="a\nb" shard=7 note="\u001b[2J"')


@pytest.mark.parametrize("place", ["message", "value", "exception"])
def test_s35_user_text_cannot_forge_a_line_or_a_terminal_escape(place):
    record = logging.LogRecord("jobs.claim", logging.INFO, __file__, 1, "job.failed", None, None)
    if place == "message":
        record.msg = FORGED
    elif place == "value":
        record.error = FORGED
    else:
        try:
            raise ValueError(FORGED)
        except ValueError:
            record.exc_info = sys.exc_info()
    lines = TextFormatter().format(record).split("\n")
    assert all(line.startswith("    ") for line in lines[1:])
    text = "".join(lines)
    assert text.isprintable()
    assert "job.succeeded" in text  # shown, but as what it is


REFUSE = """
import logging, logging.config, sys
from scheduler_site.logs import configuration
logging.config.dictConfig(configuration(form=sys.argv[1], level=sys.argv[2]))
log = logging.getLogger("django.request")
log.warning("Not Found: %s", "/x", extra={"status_code": 404})
log.error("Internal Server Error: %s", "/y", extra={"status_code": 500})
try:
    raise ValueError("Invalid HTTP_HOST header: 'evil.example'.")
except ValueError as error:
    refused = logging.getLogger("django.security.DisallowedHost")
    refused.error(str(error), exc_info=error, extra={"status_code": 400, "request": object()})
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_of_refusals_no_4xx_is_told_and_a_foreign_host_is_one_line_without_traceback(form):
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, form, "INFO"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    failed, refused = done.stderr.splitlines()
    assert "Internal Server Error: /y" in failed
    assert "evil.example" in refused
    assert "WARNING" in refused
    assert "Traceback" not in refused
    assert "exc_info" not in refused


def test_a_site_that_writes_only_what_is_critical_writes_no_5xx():
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, "text", "CRITICAL"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
