"""manage.py runworker: one worker process of one pool."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.errors import InvalidField, PoolMismatch
from jobs.policies.routing import parse_label_args
from jobs.services.fleet import ensure_pool
from workers.handlers import discover
from workers.process import (
    CONFIGURATION_WRONG,
    ProcessCommand,
    positive_int,
    positive_seconds,
    run_until_signalled,
)
from workers.worker import Worker


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
        parser.add_argument("--slots", type=positive_int, default=8)
        parser.add_argument("--executor", choices=["threads"], default="threads")
        parser.add_argument(
            "--drain-timeout",
            type=positive_seconds,
            default=None,
            metavar="SECONDS",
            help="grace for running jobs after SIGTERM",
        )
        parser.add_argument("--once", action="store_true", help="run what is published, then exit")
        parser.add_argument("--max-jobs", type=positive_int, default=None, metavar="N")

    def handle(self, **options: Any) -> None:
        """Run until signalled."""
        try:
            labels = None if options["labels"] is None else parse_label_args(options["labels"])
            pool = ensure_pool(name=options["pool"], labels=labels, executor=options["executor"])
        except (InvalidField, PoolMismatch) as error:
            raise CommandError(str(error), returncode=CONFIGURATION_WRONG) from error
        drain = options["drain_timeout"]
        worker = Worker(
            pool=pool,
            handlers=discover(),
            slots=options["slots"],
            drain_seconds=conf().drain_seconds if drain is None else drain,
            max_jobs=options["max_jobs"],
            once=options["once"],
        )
        run_until_signalled(worker.run, worker.stop)
        if worker.abandons:
            # Handlers that ignored the stop still run in their threads; their jobs were given back a moment ago.
            logging.shutdown()
            os._exit(0)
