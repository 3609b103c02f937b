"""manage.py runscheduler: one scheduler process."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from jobs.conf import conf
from workers.process import ProcessCommand, run_until_signalled
from workers.scheduler import Scheduler


def shard_range(text: str) -> tuple[int, int] | None:
    """`auto`, or `first-last`, for argparse."""
    if text == "auto":
        return None
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise ArgumentTypeError("must be auto, a number, or first-last")
    return int(first), int(last or first)


class Command(ProcessCommand):
    """Arguments → Scheduler → run."""

    help = "Claims due jobs of its shards, publishes them to pools, takes back expired leases."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Flags of the process."""
        parser.add_argument(
            "--shards",
            type=shard_range,
            default=None,
            help="auto (share all with the other schedulers, the default), or first-last",
        )
        parser.add_argument("--once", action="store_true", help="publish what is due, then exit")

    def handle(self, *, shards: tuple[int, int] | None, once: bool, **options: Any) -> None:
        """Run until signalled."""
        first, last = shards or (0, conf().shards - 1)
        scheduler = Scheduler(
            shards=list(range(first, min(last, conf().shards - 1) + 1)), once=once
        )
        run_until_signalled(scheduler.run, scheduler.stop)
