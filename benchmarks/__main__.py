"""`python -m benchmarks drain`: arguments → database → runs → one result on standard output."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import django

from benchmarks.database import connect, fresh_database
from benchmarks.processes import BenchmarkError, environment, run_command
from workers.process import positive_int

# What each benchmark does, and its sizes with their defaults.
BENCHMARKS: dict[str, tuple[str, dict[str, int]]] = {
    "drain": (
        "no-op jobs that come due at one moment",
        {"jobs": 20_000, "slots": 16, "tenants": 50},
    ),
    "enqueue": (
        "jobs stored by one client, one a commit and many",
        {"single": 2_000, "bulk": 20_000, "batch": 500, "tenants": 50},
    ),
    "latency": (
        "from the client's call to the handler, on an idle system",
        {"jobs": 300, "gap_ms": 50, "slots": 16},
    ),
    "precision": (
        "from the due time to the handler, jobs due one after the other",
        {"jobs": 1_000, "seconds": 30, "slots": 16},
    ),
    "depth": (
        "a drain among many jobs for later",
        {"jobs": 5_000, "future": 1_000_000, "slots": 16, "tenants": 50},
    ),
    "backlog": (
        "a drain out of very many due jobs of many tenants, lanes and routes",
        {
            "due": 1_000_000,
            "future": 1_000_000,
            "few": 60_000,
            "tenants": 1_000,
            "slots": 48,
            "seconds": 15,
        },
    ),
    "schedules": (
        "what recurring rules cost, and a night with a moved clock under killed schedulers",
        {"schedules": 10_000, "zones": 50, "kills": 30},
    ),
}
SLOW = {"backlog", "schedules"}  # they take minutes, and are not part of all


def arguments() -> Namespace:
    """What to measure."""
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="benchmark", required=True)
    for name, (what, sizes) in BENCHMARKS.items():
        one = names.add_parser(name, help=what)
        for size, value in sizes.items():
            option = f"--{size.replace('_', '-')}"
            one.add_argument(option, type=positive_int, default=value, help="default: %(default)s")
    names.add_parser("all", help="each of them, with its default sizes")
    for one in names.choices.values():
        one.add_argument(
            "--repeat", type=positive_int, default=1, help="so many runs; medians of them"
        )
        one.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def measure(url: str, options: Namespace) -> str:
    """Run what was asked for; the result as it is printed."""
    from benchmarks import (
        backlog,
        depth,
        drain,
        engines,
        enqueue,
        moments,
        report,
        schedules,
    )  # these need the settings

    measures: dict[str, Callable[..., report.Result]] = {
        "drain": drain.measure,
        "enqueue": enqueue.measure,
        "latency": moments.measure_latency,
        "precision": moments.measure_precision,
        "depth": depth.measure,
        "backlog": backlog.measure,
        "schedules": schedules.measure,
    }
    with connect(url) as link:
        engines.introduce(url, link)
    chosen = [name for name in BENCHMARKS if name not in SLOW]
    if options.benchmark != "all":
        chosen = [options.benchmark]
    results = []
    for name in chosen:
        report.say(name)
        sizes = {
            size: getattr(options, size, value) for size, value in BENCHMARKS[name][1].items()
        }
        results.append(measures[name](url, repeat=options.repeat, **sizes))
    with connect(url) as link:
        around = report.surroundings(link)
    if not options.json:
        return report.table(results, around)
    if options.benchmark == "all":
        values = {"benchmark": "all"} | {one.name: one.values() for one in results}
    else:
        values = results[0].values()
    return json.dumps(values | around)


def main() -> int:
    """Run one benchmark in a database of its own."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleared away
    try:
        with fresh_database() as url:
            os.environ.update(environment(url))
            os.environ["DJANGO_SETTINGS_MODULE"] = "scheduler_site.settings"
            run_command(["manage.py", "migrate", "--verbosity", "0"], url)
            django.setup()
            print(measure(url, options))
    except BenchmarkError as error:
        print(f"no result: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
