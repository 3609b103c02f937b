"""dk tenant|lane|pool|handler pause and resume; dk pause list."""

from __future__ import annotations

import getpass
import json
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime, timedelta
from typing import Any, TextIO

from jobs.clock import database_now
from jobs.errors import InvalidField, NotFound, NotPaused
from jobs.models import Pause
from jobs.policies.times import format_time
from jobs.queries.pauses import Paused, pauses_in_force
from jobs.services.pausing import pause, resume
from workers.dk.history import moment, printable

DONE, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 4
LONGEST_SECONDS = 366 * 86_400.0
GOES_ON = "what was published before still runs"


class Pausable:
    """The noun of one kind of thing that can be paused."""

    def __init__(self, kind: Pause.Kind) -> None:
        self._kind = kind
        self.__doc__ = f"pause and resume a {kind}"

    def add_verbs(self, parser: ArgumentParser) -> None:
        """Verbs of this noun."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        stop = verbs.add_parser("pause", help=f"claim nothing more of it; {GOES_ON}")
        stop.add_argument("name")
        stop.add_argument("--reason", required=True, help="why, for those who wonder")
        end = stop.add_mutually_exclusive_group()
        end.add_argument("--until", type=moment, metavar="TIME", help="ends by itself then")
        end.add_argument(
            "--for",
            dest="seconds",
            type=span,
            metavar="SECONDS",
            help="ends by itself after this time",
        )
        go_on = verbs.add_parser("resume", help="go on with it")
        go_on.add_argument("name")
        for verb in (stop, go_on):
            verb.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, options: Namespace, out: TextIO, err: TextIO) -> int:
        """Pause or resume; exit code 3 for an unknown name, 4 when it is not paused."""
        try:
            told, words = self._do(options)
        except NotFound as error:
            return _refused(err, error.detail, NOT_FOUND)
        except NotPaused as error:
            return _refused(err, error.detail, REFUSED)
        except InvalidField as error:
            return _refused(err, str(error), USAGE)
        out.write((json.dumps(told) if options.json else printable(words)) + "\n")
        return DONE

    def _do(self, options: Namespace) -> tuple[dict[str, Any], str]:
        name = f"{self._kind} {options.name}"
        if options.verb == "resume":
            ended = resume(kind=self._kind, target=options.name, actor=operator())
            return {"resumed": document(ended)}, f"{name}: paused → going on"
        until: datetime | None = options.until
        if options.seconds is not None:
            until = database_now() + timedelta(seconds=options.seconds)
        paused = pause(
            kind=self._kind,
            target=options.name,
            actor=operator(),
            reason=options.reason,
            resume_at=until,
        )
        before = "paused already, now with this reason and end" if paused.already else "going on"
        end = f" until {format_time(until)}" if until else ""
        words = f"{name}: {before} → paused{end} ({paused.reason}); {GOES_ON}"
        return {"paused": document(paused), "already": paused.already}, words


class Pauses:
    """What is paused"""

    def add_verbs(self, parser: ArgumentParser) -> None:
        """Verbs of this noun."""
        verb = parser.add_subparsers(dest="verb", required=True).add_parser(
            "list", help="what is paused now, by whom and why"
        )
        verb.add_argument("--json", action="store_true", help="one JSON document")

    def run(self, options: Namespace, out: TextIO, err: TextIO) -> int:
        """One line a pause."""
        paused = pauses_in_force()
        if options.json:
            out.write(json.dumps({"pauses": [document(one) for one in paused]}) + "\n")
            return DONE
        for one in paused:
            end = f" until {format_time(one.resume_at)}" if one.resume_at else ""
            since = f"since {format_time(one.paused_at)}{end} by {one.paused_by}"
            out.write(printable(f"{one.kind} {one.target}  {since}: {one.reason}") + "\n")
        if not paused:
            out.write("nothing is paused\n")
        return DONE


def document(paused: Paused) -> dict[str, Any]:
    """A pause for programs."""
    return {
        "kind": str(paused.kind),
        "target": paused.target,
        "reason": paused.reason,
        "paused_by": paused.paused_by,
        "paused_at": format_time(paused.paused_at),
        "resume_at": paused.resume_at and format_time(paused.resume_at),
    }


def operator() -> str:
    """Who sits at this terminal, as history names them."""
    try:
        return f"command:{getpass.getuser()}"[:150]
    except (OSError, KeyError):  # a user id without a name
        return "command:?"


def span(text: str) -> float:
    """A time in seconds, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, at most a year")
    return seconds


def _refused(err: TextIO, detail: str, code: int) -> int:
    err.write(f"{printable(detail)}\n")
    return code
