"""`python -m benchmarks drain`: arguments → database → runs → one result on standard output."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import django

from benchmarks.database import connect, fresh_database
from benchmarks.processes import BenchmarkError, environment, run_command
from workers.process import positive_int


def arguments() -> Namespace:
    """What to measure."""
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="benchmark", required=True)
    drain = names.add_parser("drain", help="no-op jobs that come due at one moment")
    drain.add_argument("--jobs", type=positive_int, default=20_000)
    drain.add_argument("--slots", type=positive_int, default=16)
    drain.add_argument("--tenants", type=positive_int, default=50)
    drain.add_argument("--repeat", type=positive_int, default=1, help="product and limit in turn")
    drain.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def measure_drain(url: str, options: Namespace) -> tuple[dict[str, Any], str]:
    """All runs of the drain benchmark; the result and its table."""
    from benchmarks import report  # needs the settings, which need the URL
    from benchmarks.drain import drain_limit, drain_product, say

    size = {"jobs": options.jobs, "slots": options.slots, "tenants": options.tenants}
    runs = []
    for number in range(1, options.repeat + 1):
        say(f"run {number} of {options.repeat}; load {os.getloadavg()[0]:.1f}")
        product, shape = drain_product(url, **size)
        say(
            f"  product {product.jobs_per_s:8.0f} jobs/s; others {product.foreign_cores:.2f} cores"
        )
        limit, limit_shape = drain_limit(url, **size)
        say(f"  limit   {limit.jobs_per_s:8.0f} jobs/s; others {limit.foreign_cores:.2f} cores")
        if shape != limit_shape:
            raise BenchmarkError(
                "limit.py no longer leaves the rows that the product leaves;"
                f" product:\n{shape}\nlimit:\n{limit_shape}"
            )
        runs.append((product, limit))
    with connect(url) as link:
        values = report.result(runs, **size) | report.surroundings(link)
    return values, report.table(values)


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
            values, table = measure_drain(url, options)
    except BenchmarkError as error:
        print(f"no result: {error}", file=sys.stderr)
        return 1
    print(json.dumps(values) if options.json else table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
