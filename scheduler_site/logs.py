"""How log records are written: one JSON object a line for machines, one readable line for people.

A record is an event with a fixed name and values in `extra`. Values can hold text that callers sent, so neither form
lets them start a line or steer a terminal: JSON escapes it, the readable form quotes it.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def _visible(text: str) -> str:
    """Control characters as escapes; line feeds stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class TextFormatter(logging.Formatter):
    """`12:00:00.123 INFO jobs.claim job.leased job_id="…" shard=7`, tracebacks indented below."""

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line, and what follows from an exception on indented ones."""
        clock = self.formatTime(record, "%H:%M:%S")
        values = "".join(
            f" {name}={json.dumps(value, default=str)}" for name, value in self._extra(record)
        )
        message = _visible(record.getMessage()).replace("\n", "\\n")
        line = f"{clock}.{record.msecs:03.0f} {record.levelname} {record.name} {message}{values}"
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            details.append(self.formatStack(record.stack_info))
        below = "".join(
            f"\n    {_visible(row)}" for detail in details for row in detail.split("\n")
        )
        return line + below

    @staticmethod
    def _extra(record: logging.LogRecord) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in vars(record).items()
            if name not in RESERVED_ATTRS and not name.startswith("_")
        ]


class RefusalFilter(logging.Filter):
    """Django reports a request that it refuses for its looks (a foreign Host) as an error with a traceback.

    Anybody can cause that, and nothing here is broken: it is told on one line, as a warning.
    """

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """The record, without traceback if it is of such a refusal."""
        if not record.name.startswith("django.security.") or record.levelno < logging.ERROR:
            return True
        told = copy.copy(record)  # other handlers may want all of it
        told.levelno, told.levelname = logging.WARNING, "WARNING"
        told.exc_info = told.exc_text = told.stack_info = None
        return told


def configuration(*, form: str, level: str) -> dict[str, Any]:
    """LOGGING of the site: everything goes to standard error, for data is what standard output is for.

    Args:
        form: "json" or "text".
        level: Name of the lowest level that is written.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "fmt": ["levelname", "name", "message"],
                "rename_fields": {"levelname": "level", "name": "logger", "message": "event"},
                "timestamp": "ts",
            },
            "text": {"()": "scheduler_site.logs.TextFormatter"},
        },
        "filters": {"refusals": {"()": "scheduler_site.logs.RefusalFilter"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": form,
                "filters": ["refusals"],
            }
        },
        "root": {"handlers": ["stderr"], "level": level},
        # Django's defaults mail the admins and write the development server's lines a second time.
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            # It warns of every answer 4xx, which is between the caller and the API; 5xx are errors.
            "django.request": {
                "handlers": [],
                "level": "CRITICAL" if level == "CRITICAL" else "ERROR",
                "propagate": True,
            },
            "django.server": {"handlers": [], "level": level, "propagate": True},
        },
    }
