"""Where other schedulers' cron rules mean something else than ours. Pure; knows no file and no database.

Debian's cron (and cronie) calls a field a star when its text begins with `*`. A star in minute or hour makes a wildcard rule,
which follows the clock on the wall; a star in a day field joins both day fields by AND, else they are joined by OR.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import islice

from jobs.policies.cron import MONTHS, WEEKDAYS, CronRule, parse_cron
from jobs.policies.zones import shifts
from jobs.states import OnGap, OnOverlap
from workers.importing.entries import Finding, Kind

AHEAD = timedelta(days=549)  # as far as `dk schedule preview` looks
LITERAL = {"on_gap": OnGap.SKIP.value, "on_overlap": OnOverlap.BOTH.value}
ONCE = {"on_gap": OnGap.NEXT_VALID.value, "on_overlap": OnOverlap.FIRST.value}
_WEEKS = {tuple(range(7 * n - 6, 7 * n + 1)): n for n in range(1, 5)}
_BARE_STEP = re.compile(r"(?:^|,)[0-9A-Za-z]+/")
_SUNDAY_END = re.compile(r"(?i)(?:^|,)(?:[1-6]|MON|TUE|WED|THU|FRI|SAT)-SUN(?:/|,|$)")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*,/-]+")
_NAMES = frozenset(MONTHS + WEEKDAYS)
_LETTERS = re.compile(r"[A-Z]+")


def foreign_to_cron(fields: list[str]) -> Finding | None:
    """Why cron itself would not read five fields as ours do; None if it would."""
    text = " ".join(fields)
    if "~" in text:
        return Finding(
            "random_range",
            f"{text}: a range with ~ is a random time, drawn by cronie when it reads the file (Debian's cron sees its"
            " first number only); name a time, or spread the runs with jitter_seconds",
        )
    if any(_BARE_STEP.search(one) for one in fields):
        return Finding(
            "step_without_range",
            f"{text}: cron refuses a step without a range, so this never ran; write 5-59/10 for 5/10",
        )
    words = set(_LETTERS.findall(text.upper()))
    if not all(_CRON_FIELD.fullmatch(one) for one in fields) or not words <= _NAMES:
        return Finding("unsupported", f"{text}: cron knows no ?, #, L, W, H or other words here")
    return None


def both_days(text: str) -> tuple[str | None, bool]:
    """The rule with which a date has to match both day fields, where ours want either.

    Args:
        text: Five fields that `parse_cron` takes.

    Returns:
        An expression in our grammar for those dates, or None if there is none; and whether it differs from the text.

    >>> both_days("0 6 1-7 * MON")
    ('0 6 * * 1#1', True)
    >>> both_days("0 6 13 * FRI")
    (None, True)
    >>> both_days("0 6 13 * *")
    ('0 6 13 * *', False)
    """
    rule = parse_cron(text)
    if rule.weekdays is None or rule.days is None:
        return text, False
    minute, hour, days, month, weekdays = text.split()
    every_day, every_weekday = len(rule.days) == 31, len(rule.weekdays) == 7
    if every_day and every_weekday:
        return text, False
    if every_day:
        return f"{minute} {hour} * {month} {weekdays}", True
    if every_weekday:
        return f"{minute} {hour} {days} {month} *", True
    if week := _WEEKS.get(rule.days):
        items = ",".join(f"{weekday}#{week}" for weekday in rule.weekdays)
        return f"{minute} {hour} * {month} {items}", True
    return None, True


def day_findings(text: str, *, who: str, stars_decide: bool) -> tuple[str, list[Finding]]:
    """The expression to use here, and what is to be said about its days.

    Args:
        text: Five fields or an alias that `parse_cron` takes.
        who: Whose rule it is, for the words.
        stars_decide: Both day fields have to match only if one of them begins with `*`; else always.
    """
    fields = text.split()
    if len(fields) != 5:
        return text, []
    found: list[Finding] = []
    if stars_decide and _SUNDAY_END.search(fields[4]):
        found.append(
            Finding(
                "sunday_range",
                f"{fields[4]}: a range that ends on Sunday written as SUN is empty for Debian's cron; cronie and"
                " Duekeeper run it up to Sunday",
                other_days=True,
            )
        )
    if stars_decide and not (fields[2].startswith("*") or fields[4].startswith("*")):
        return text, found
    same, differs = both_days(text)
    if same is None:
        why = " because one of them begins with *" if stars_decide else ""
        days = f"day-of-month {fields[2]} and day-of-week {fields[4]}"
        found.append(
            Finding(
                "day_rule",
                f"{who} runs this on dates that match {days} both{why}; Duekeeper on dates that match either of them",
                other_days=True,
            )
        )
    elif differs:
        found.append(
            Finding(
                "day_rule",
                f"{who} wants both day fields to match, Duekeeper either: written here as {same}",
                Kind.KEPT,
            )
        )
    return same or text, found


def is_wildcard(text: str) -> bool:
    """cron follows the clock on the wall with this rule, through every change of it."""
    fields = text.split()
    return text == "@hourly" or (len(fields) == 5 and "*" in (fields[0][0], fields[1][0]))


def cron_dst(text: str, zone: str, now: datetime) -> tuple[dict[str, str], list[Finding]]:
    """Policies with which a rule of cron keeps its meaning where the clock is moved, and what they cannot keep.

    Args:
        text: As cron reads it.
        zone: Where it runs.
        now: Changes of the clock in the 18 months after it are looked at.
    """
    rule, wild = parse_cron(text), is_wildcard(text)
    policies = LITERAL if wild else ONCE
    gap, overlap = _most_slots(rule, zone, now)
    if not (gap or overlap):
        return policies, []
    if rule.is_interval:
        if wild:
            return policies, []
        return policies, [
            Finding(
                "dst_hourly",
                "cron takes this for fixed times, as no field begins with *: runs that the clock skips come right after"
                " the change, an hour shown twice is run once; here a rule of all 24 hours follows elapsed time",
            )
        ]
    if wild:
        return policies, [_literal("cron takes a rule with * in minute or hour by the clock")]
    found = [
        Finding(
            "dst",
            "cron runs what the clock skips right after the change, and an hour shown twice once:"
            " kept with on_gap=next_valid, on_overlap=first",
            Kind.KEPT,
        )
    ]
    if gap > 1:
        found.append(
            Finding(
                "dst_merged",
                f"up to {gap} runs fall together where the clock skips time: cron starts each of them after the change, here they are one",
            )
        )
    return policies, found


def literal_dst(text: str, zone: str, now: datetime, who: str) -> list[Finding]:
    """What to say of a rule that is taken by the clock on the wall; LITERAL keeps that."""
    rule = parse_cron(text)
    touched = any(_most_slots(rule, zone, now)) and not rule.is_interval
    return [_literal(who)] if touched else []


def touched_by_shift(text: str, zone: str, now: datetime) -> bool:
    """Some slot of it is skipped or shown twice in the coming 18 months, and a policy decides."""
    rule = parse_cron(text)
    return not rule.is_interval and any(_most_slots(rule, zone, now))


def _literal(who: str) -> Finding:
    return Finding(
        "dst",
        f"{who}: a time that is skipped does not run, one that is shown twice runs twice:"
        " kept with on_gap=skip, on_overlap=both",
        Kind.KEPT,
    )


def _most_slots(rule: CronRule, zone: str, now: datetime) -> tuple[int, int]:
    """The most slots that one gap, and one overlap, of the coming 18 months touches; at most 1,000.

    A slot at the very end of a gap counts if others fall into the gap: they would all run at that instant.
    """
    begin = int(now.timestamp())
    most = {True: 0, False: 0}
    for move in shifts(zone, begin, begin + int(AHEAD.total_seconds())):
        low, high = move.at + min(move.before, move.after), move.at + max(move.before, move.after)
        ahead = move.after > move.before
        count = sum(1 for _ in islice(rule.slots(low, high), 1000))
        if ahead and count:
            count += sum(1 for _ in rule.slots(high, high + 1))
        most[ahead] = max(most[ahead], count)
    return most[True], most[False]
