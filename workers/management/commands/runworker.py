"""manage.py runworker: one worker process of one pool."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from jobs import telemetry
from jobs.conf import conf
from jobs.errors import InvalidField, PoolMismatch
from jobs.policies.routing import parse_label_args
from jobs.services.fleet import ensure_pool
from workers.executors.factory import NAMES, make_executor
from workers.executors.interface import Executor
from workers.executors.wire import Gone
from workers.handlers import HandlerSpec, discover
from workers.memory import MEBIBYTE, resident_bytes
from workers.process import (
    CONFIGURATION_WRONG,
    ProcessCommand,
    positive_int,
    positive_seconds,
    run_until_signalled,
)
from workers.worker import Worker

log = logging.getLogger(__name__)


class Command(ProcessCommand):
    """Arguments → Worker → run."""

    help = "Takes published jobs of its pool, runs their handlers, reports how they ended."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Flags of the process."""
        parser.add_argument("--pool", default="default")
        parser.add_argument(
            "--labels",
            action="append",
            metavar="NAME=VALUE",
            help="labels of the pool; makes an absent pool, must agree with a stored one; repeatable",
        )
        parser.add_argument(
            "--slots",
            type=positive_int,
            default=None,
            help="attempts at once: 8 threads, 100 coroutines or a process for each processor",
        )
        parser.add_argument(
            "--executor",
            choices=NAMES,
            default=None,
            help="how handlers run; as the pool says unless given, threads in a new one",
        )
        parser.add_argument(
            "--drain-timeout",
            type=positive_seconds,
            default=None,
            metavar="SECONDS",
            help="grace for running jobs after SIGTERM",
        )
        parser.add_argument("--once", action="store_true", help="run what is published, then exit")
        parser.add_argument(
            "--max-jobs",
            type=positive_int,
            default=None,
            metavar="N",
            help="end after so many attempts; a supervisor starts it anew",
        )
        parser.add_argument(
            "--max-memory-mb",
            type=positive_int,
            default=None,
            metavar="N",
            help="threads, async: end with more in memory; processes: limit of each handler's process",
        )
        parser.add_argument(
            "--pass-env",
            action="append",
            default=[],
            metavar="NAME",
            help="processes: a variable that handlers may see besides the usual ones; repeatable",
        )

    def handle(self, **options: Any) -> None:
        """Run until signalled."""
        try:
            labels = None if options["labels"] is None else parse_label_args(options["labels"])
            named = options["executor"]
            pool = ensure_pool(name=options["pool"], labels=labels, executor=named or "threads")
        except (InvalidField, PoolMismatch) as error:
            raise CommandError(str(error), returncode=CONFIGURATION_WRONG) from error
        name, drain = named or pool.executor, options["drain_timeout"]
        memory = options["max_memory_mb"] and options["max_memory_mb"] * MEBIBYTE
        if name != "processes" and memory is not None and resident_bytes() > memory:
            raise CommandError(
                f"--max-memory-mb: the process has {resident_bytes() // MEBIBYTE} MiB already.",
                returncode=CONFIGURATION_WRONG,
            )
        executor = _executor(
            name, size=options["slots"], memory_bytes=memory, passed=options["pass_env"]
        )
        worker = Worker(
            pool=pool,
            handlers=_handlers(name, executor),
            executor=executor,
            drain_seconds=conf().drain_seconds if drain is None else drain,
            max_jobs=options["max_jobs"],
            max_memory_bytes=None if name == "processes" else memory,
            once=options["once"],
        )
        run_until_signalled(worker.run, worker.stop)
        if worker.abandons or name == "async":
            # Handlers that ignored the stop still run in their threads, and coroutines may have left some to others;
            # jobs were given back a moment ago.
            logging.shutdown()
            os._exit(0)


def _executor(name: str, **options: Any) -> Executor:
    try:
        return make_executor(name, **options)
    except (Gone, ValueError) as error:
        raise CommandError(str(error), returncode=CONFIGURATION_WRONG) from error


def _handlers(name: str, executor: Executor) -> dict[str, HandlerSpec]:
    """The handlers that this executor takes; the others are named in the log."""
    found = discover()
    taken = {one: spec for one, spec in found.items() if executor.takes(spec)}
    if left_out := sorted(found.keys() - taken.keys()):
        log.warning(telemetry.HANDLERS_LEFT_OUT, extra={"executor": name, "handlers": left_out})
    if name == "async" and not taken:
        executor.close()
        raise CommandError(
            f"None of the {len(found)} handlers can run in the executor 'async':"
            " it takes coroutines (async def) that are not transactional.",
            returncode=CONFIGURATION_WRONG,
        )
    return taken
