"""Random stories of one schedule: whatever people and schedulers do to it, the ledger is the calendar, and no job is lost.

A longer run: `SCHEDULE_STORIES=2000 uv run pytest tests/services/test_schedule_stories.py`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from jobs.errors import NotPaused, QuotaExceeded, ValidationFailed
from jobs.models import DueEntry, Job, Occurrence, Schedule, Tenant
from jobs.queries.schedules import lock_schedule
from jobs.services.calendars import create_calendar, parse_calendar, replace_calendar
from jobs.services.catching_up import catch_up
from jobs.services.missed import decide_running, judge_missed_jobs, settle_occurrences
from jobs.services.revision import mark_stale_schedules
from jobs.services.schedule_requests import parse_schedule
from jobs.services.schedules import (
    delete_schedule,
    edit_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
)
from jobs.services.timings import defaults, tenant_defaults
from jobs.services.upcoming import upcoming
from jobs.services.verifying_schedules import check_ledgers, check_strays
from jobs.transitions.claim import claim_batch
from tests.factories import (
    SCHEDULER,
    all_shards,
    make_handler,
    make_pool,
    make_schedule,
    make_tenant,
    make_worker,
)
from tests.support.recurring import expand_all

pytestmark = [pytest.mark.django_db, pytest.mark.long, pytest.mark.timeout(3600)]

STORIES = int(os.environ.get("SCHEDULE_STORIES") or 20)
STEPS = 25
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")
BEGINS = (
    "2027-03-27T20:10:00Z",
    "2027-10-30T18:00:00Z",
    "2027-11-06T23:59:30Z",
    "2027-05-07T11:00:00Z",
)
RULES: tuple[dict[str, Any], ...] = (
    {"cron": "*/20 * * * *"},
    {"cron": "30 2 * * *"},
    {"cron": "15,45 0-3,9 * * *"},
    {"cron": "0 9 * * sat,sun"},
    {"cron": "@daily"},
    {"cron": "50 59 1,2,13 * * *"},
    {"cron": "0 6,18 1-28 * fri"},
    {"cron": None, "every": "7h", "anchor": "2027-01-01T00:30:00Z"},
    {"cron": None, "every": "1d", "anchor": "2027-01-01T02:30:00"},
)


class Story:
    """One schedule and its clock."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.told: list[str] = []
        self.now = datetime.fromisoformat(self.draw.choice(BEGINS))
        self.tenant = make_tenant(f"t{seed}")
        self.closed: list[str] = []
        create_calendar(tenant=self.tenant, request=self._calendar(), actor="user:anna")
        fields = self._fields()
        self.schedule = make_schedule(self.tenant, self.now, **fields)
        self.tell(f"created {fields}")

    @property
    def who(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant,
            "schedule_id": self.schedule.pk,
            "actor": "user:anna",
            "now": self.now,
        }

    def tell(self, what: str) -> None:
        self.told.append(f"{self.now:%m-%dT%H:%M:%S} {what}")

    def say(self, *odd: object) -> str:
        """The story, for a test that fails."""
        return "\n".join([f"seed {self.seed}", *self.told, *map(str, odd)])

    def step(self) -> None:
        acts = [self.advance] * 8 + [
            self.claim, self.claim, self.edit, self.pause, self.resume, self.trigger, self.catch_up,
            self.change_policy, self.change_calendar, self.limit, self.outage,
        ]  # fmt: skip
        act = self.draw.choice(acts)
        self.tell(act.__name__)
        act()

    def turn(self) -> None:
        """What a scheduler does within a second."""
        shards: dict[str, Any] = {"shards": all_shards(), "now": self.now}
        mark_stale_schedules(**shards)
        expand_all(self.now)
        judge_missed_jobs(**shards, actor=SCHEDULER)
        decide_running(**shards, actor=SCHEDULER)
        settle_occurrences(**shards)

    def advance(self) -> None:
        """Time goes by with a scheduler at work and nobody to claim; what was announced is what comes."""
        self.turn()
        announced = self._announced()
        before = self.now
        span = self.draw.choice([1, 7, 30, 59, 240])
        for _ in range(self.draw.randrange(1, 5)):
            self.now += timedelta(minutes=span)
            self.turn()
        limited = Tenant.objects.get(pk=self.tenant.pk).max_backlog is not None
        if announced is not None and not limited:
            self._compare(announced, before)

    def outage(self) -> None:
        self.now += timedelta(hours=self.draw.choice([1, 5, 30]))

    def claim(self) -> None:
        """Somebody takes what is due."""
        self.turn()
        waiting = DueEntry.objects.filter(tenant=self.tenant, due_at__lte=self.now)
        ids = list(waiting.values_list("pk", flat=True)[:20])
        if ids:
            claim_batch(
                shards=all_shards(), job_ids=ids, pool=make_pool(), actor=SCHEDULER, now=self.now
            )

    def edit(self) -> None:
        fields = {"name": "nightly", "job": {"handler": "billing.charge"}, **self._fields()}
        request = parse_schedule(fields, defaults=tenant_defaults(self.tenant))
        version = Schedule.objects.get(pk=self.schedule.pk).version
        self.tell(f"to {fields}")
        edit_schedule(**self.who, version=version, request=request)

    def pause(self) -> None:
        end = self.now + timedelta(minutes=self.draw.choice([5, 90, 2000]))
        pause_schedule(**self.who, reason="audit", resume_at=self.draw.choice([None, end]))

    def resume(self) -> None:
        with suppress(NotPaused):
            resume_schedule(**self.who)

    def trigger(self) -> None:
        trigger_schedule(tenant=self.tenant, schedule_id=self.schedule.pk, actor="user:anna")

    def catch_up(self) -> None:
        begin = self.now - timedelta(hours=self.draw.choice([1, 9, 50]))
        until = self.now - timedelta(minutes=self.draw.choice([0, 1, 55]))
        catch_up(**self.who, begin=begin, until=until)

    def change_policy(self) -> None:
        Tenant.objects.filter(pk=self.tenant.pk).update(
            timezone=self.draw.choice(ZONES),
            on_gap=self.draw.choice(["", "skip", "shift_forward", "next_valid"]),
            on_overlap=self.draw.choice(["", "first", "second", "both"]),
        )
        self.tenant.refresh_from_db()
        self.turn()

    def change_calendar(self) -> None:
        day = self.now + timedelta(days=self.draw.randrange(-1, 3))
        self.closed.append(f"{day:%Y-%m-%d}")
        request = self._calendar()
        replace_calendar(tenant=self.tenant, request=request, actor="user:anna", now=self.now)
        self.turn()

    def limit(self) -> None:
        Tenant.objects.filter(pk=self.tenant.pk).update(
            max_backlog=self.draw.choice([1, 3, None, None])
        )
        self.tenant.refresh_from_db()

    def check(self) -> None:
        findings = [
            one for checked in check_ledgers(shards=all_shards()) for one in checked.findings
        ]
        findings += check_strays(shards=all_shards())
        assert not findings, self.say(*findings[:5])
        rows = Occurrence.objects.filter(schedule=self.schedule)
        assert all(row.job_id for row in rows if row.verdict in ("pending", "ran", "late"))
        living = Job.objects.filter(schedule_id=self.schedule.pk, fire_at__isnull=False)
        living = living.exclude(status="cancelled")
        doubled = [at for at, times in Counter(job.fire_at for job in living).items() if times > 1]
        assert not doubled, self.say(*doubled)
        # Nobody waits for ever: what is not flagged is expanded or paused.
        self.schedule.refresh_from_db()
        assert self.schedule.fault is None, self.say(self.schedule.fault)

    def _announced(self) -> list[dict[str, Any]] | None:
        """As the API tells it; None while it does not say."""
        stored = lock_schedule(schedule_id=self.schedule.pk, defaults=defaults(), now=self.now)
        assert stored is not None
        if stored.paused or stored.max_runs is not None:
            return None
        return upcoming(stored, after=self.now, count=60).runs

    def _compare(self, announced: list[dict[str, Any]], before: datetime) -> None:
        recent = before - timedelta(days=4)  # some have fired, and are still to be due
        rows = Occurrence.objects.filter(
            schedule=self.schedule, known_at__range=(recent, self.now)
        )
        rows = rows.exclude(verdict="superseded").order_by("known_at")
        happened = {(row.slot, row.number): row for row in rows}
        for one in announced:
            if one["fire_at"] is None or datetime.fromisoformat(one["fire_at"]) > self.now:
                continue
            row = happened.get((one["slot"], one["pass"]))
            assert row is not None, self.say(one)
            if row.caught_up:
                continue
            if row.due_at is not None and one["due_at"] is not None:
                assert row.due_at == datetime.fromisoformat(one["due_at"]), self.say(one)
            if one["due_at"] is None:
                assert (row.verdict, row.reason) == ("skipped", "calendar"), self.say(one)

    def _fields(self) -> dict[str, Any]:
        draw = self.draw
        fields: dict[str, Any] = {
            **draw.choice(RULES),
            "timezone": draw.choice([None, *ZONES]),
            "on_gap": draw.choice([None, "skip", "shift_forward", "next_valid"]),
            "on_overlap": draw.choice([None, "first", "second", "both"]),
            "misfire": draw.choice(["skip", "latest", "all"]),
            "on_running": draw.choice(["allow", "skip", "queue", "cancel_running"]),
            "jitter_seconds": draw.choice([0, 0, 40, 900]),
            "grace_seconds": draw.choice([60, 1, 4000]),
            "max_runs": draw.choice([None, None, None, 4]),
        }
        if draw.random() < 0.4:
            fields["calendar"] = "works"
            if fields.get("cron") not in (None, "*/20 * * * *"):
                fields["on_holiday"] = draw.choice(
                    ["skip", "next_business_day", "previous_business_day"]
                )
        if draw.random() < 0.2:
            fields["starts_at"] = (
                self.now + timedelta(seconds=draw.randrange(86_400))
            ).isoformat()
        return fields

    def _calendar(self) -> Any:
        fields = {
            "name": "works",
            "weekend": ["sat", "sun"],
            "days": dict.fromkeys(self.closed, "x"),
        }
        return parse_calendar(fields, today=self.now.date())


@pytest.fixture(autouse=True)
def a_world() -> None:
    make_handler()
    make_pool()
    make_worker()


def test_i13_f23_whatever_happens_to_a_schedule_its_ledger_is_the_calendar() -> None:
    done: Counter[str] = Counter()
    for seed in range(STORIES):
        with transaction.atomic():
            story = Story(seed)
            for _ in range(STEPS):
                with suppress(ValidationFailed, QuotaExceeded):
                    story.step()
                story.check()
            if story.draw.random() < 0.3:
                delete_schedule(**story.who)
                story.check()
            done.update(Occurrence.objects.values_list("verdict", flat=True))
            transaction.set_rollback(True)
    assert {"ran", "late", "skipped", "superseded", "pending"} <= done.keys(), done
