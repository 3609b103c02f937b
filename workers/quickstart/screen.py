"""What a quickstart shows: a live table on a terminal, a line now and then elsewhere, and the report."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from workers.quickstart.figures import Figures, Report

LINE_SECONDS = 5.0


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 90 else f"{value / 60:.1f} min"


class Screen:
    """Prints; knows nothing of processes. A context manager around the live view."""

    def __init__(self) -> None:
        self._console = Console()
        self._news: deque[str] = deque(maxlen=5)
        self._live = Live(console=self._console, refresh_per_second=4, auto_refresh=False)
        self._line_at = 0.0
        self._figures: Figures | None = None  # the last ones

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def happened(self, text: str) -> None:
        """Something to know now; the live view keeps the last few."""
        if self._live.is_started:
            self._news.append(f"{time.strftime('%H:%M:%S')}  {text}")
        else:
            self.say(text)

    def show(self, figures: Figures | None, *, accepted: int, replayed: int, refused: int) -> None:
        """The present state; None while the database is away, when the last figures stay."""
        away, self._figures = figures is None, figures or self._figures
        if self._live.is_started:
            parts = [Text(line, "dim") for line in self._news]
            if away:
                parts.insert(0, Text("database away: these are its last figures", "bold yellow"))
            if self._figures:
                self._live.update(
                    Group(self._table(self._figures, accepted, replayed, refused), *parts),
                    refresh=True,
                )
            else:
                self._live.update(Group(*parts), refresh=True)
        elif figures and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + LINE_SECONDS
            self.say(self._line(figures, accepted))

    def report(
        self, report: Report, *, replayed: int, faults: tuple[int, int] | None = None
    ) -> None:
        """The books of the run; `faults` are kills and freezes on purpose."""
        books, table = report.books, Table(show_header=False, box=None, pad_edge=False)
        lines: list[tuple[str, object]] = [
            ("accepted", books.accepted),
            ("replayed", replayed),
            ("succeeded", books.succeeded),
            ("dead", books.dead),
            ("cancelled", books.cancelled),
            ("unfinished", books.unfinished),
            ("lost", books.lost),
            ("deliveries at the provider", books.deliveries),
            ("charges", books.charges),
            ("charge jobs succeeded", books.charge_jobs_succeeded),
            ("mails", books.mails),
            ("duplicate deliveries collapsed", books.duplicate_deliveries_collapsed),
            ("charged but not succeeded", books.charged_but_not_succeeded),
            ("stale completions refused", report.stale_completions_refused),
            ("recoveries after a lost worker", self._recoveries(report.recoveries)),
            ("histories verified", report.verdict.jobs),
            ("events verified", report.verdict.events),
            ("violations", sum(report.verdict.by_invariant.values())),
        ]
        if faults:
            lines += [("processes killed", faults[0]), ("processes frozen", faults[1])]
        for name, value in lines:
            table.add_row(name, str(value))
        panel = Panel(Group(table, Text(), self._verdict(report)), title="report", expand=False)
        self._console.print(panel)

    def _verdict(self, report: Report) -> Text:
        if report.problems:
            return Text("\n".join(["BOOKS DO NOT BALANCE", *report.problems]), "bold red")
        if unfinished := report.books.unfinished:
            go_on = "they go on at the next start; nothing lost"
            return Text(f"stopped early: {unfinished} unfinished, {go_on}", "bold yellow")
        return Text("books balance", "bold green")

    def _recoveries(self, found: list[float]) -> str:
        if not found:
            return "0"
        middle = found[len(found) // 2]
        return f"{len(found)} (median {seconds(middle)}, longest {seconds(found[-1])})"

    def _table(self, figures: Figures, accepted: int, replayed: int, refused: int) -> Group:
        table = Table(box=None, pad_edge=False)
        columns: list[tuple[str, int, str]] = [
            ("accepted", accepted, ""),
            ("replayed", replayed, "dim"),
            ("upcoming", figures.upcoming, ""),
            ("due", figures.due, "yellow" if figures.due else ""),
            ("published", figures.published, ""),
            ("running", figures.running, "cyan"),
            ("succeeded", figures.finished.get("succeeded", 0), "green"),
            ("cancelled", figures.finished.get("cancelled", 0), ""),
            ("dead", figures.finished.get("dead", 0), "red"),
        ]
        if refused:
            columns.append(("refused", refused, "red"))
        for name, _, _ in columns:
            table.add_column(name, justify="right")
        table.add_row(*(Text(str(count), style) for _, count, style in columns))
        return Group(table, Text(self._lag(figures)), Text(self._oldest(figures)))

    def _line(self, figures: Figures, accepted: int) -> str:
        done = ", ".join(f"{count} {status}" for status, count in sorted(figures.finished.items()))
        return (
            f"accepted {accepted}; upcoming {figures.upcoming}, due {figures.due},"
            f" published {figures.published}, running {figures.running}; {done or 'none finished'};"
            f" {self._lag(figures)}; {self._oldest(figures)}"
        )

    def _lag(self, figures: Figures) -> str:
        if figures.lag is None:
            return "start lag: nothing started yet"
        p50, p95, most = (seconds(max(0.0, value)) for value in figures.lag)
        return f"start lag, last minute: p50 {p50}, p95 {p95}, max {most}"

    def _oldest(self, figures: Figures) -> str:
        if figures.oldest is None:
            return "oldest due job: none"
        age, handler, tenant = figures.oldest
        return f"oldest due job: {seconds(age)} ({handler}, {tenant})"
