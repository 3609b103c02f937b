"""Faults of recurring schedules: rules, the ledger, missed and overlapping runs, closed days, versions."""

from __future__ import annotations

from tests.mutations.changes import Mutation, mutation

RECURRENCE = "tests/unit/test_recurrence.py"
SCHEDULES = "tests/services/test_schedules.py"
RUNNING = "tests/services/test_on_running.py"
BUSINESS = "tests/services/test_business_days.py"
VERSIONS = "tests/services/test_schedule_versions.py"
EDGES = "tests/services/test_schedule_edges.py"
WITHDRAW = "tests/transitions/test_withdraw.py"
P, S, T = "jobs/policies/", "jobs/services/", "jobs/transitions/"

SCHEDULE_MUTATIONS: tuple[Mutation, ...] = (
    mutation(
        "an hourly rule is chosen between where the clock is set back",
        P + "recurrence.py",
        "if rule.is_interval or _wanted(number, schedule.on_overlap):",
        "if _wanted(number, schedule.on_overlap):",
        RECURRENCE,
    ),
    mutation(
        "the second time is taken for the first",
        P + "recurrence.py",
        "return 1 if instant < at else 2",
        "return 2 if instant < at else 1",
        RECURRENCE,
    ),
    mutation(
        "what a gap moves belongs to the window of its slot",
        P + "recurrence.py",
        "elif low < move.at <= high:",
        "elif low <= move.at < high:",
        RECURRENCE,
    ),
    mutation(
        "two slots of one instant are two firings",
        P + "recurrence.py",
        "found[at] = _preferred(found.get(at), one)",
        "found[-at] = one",
        RECURRENCE,
    ),
    mutation(
        "either day field becomes both",
        P + "cron.py",
        "for day, _ in groupby(merge(*both)):",
        "for day in sorted(set.intersection(*map(set, both))):",
        RECURRENCE,
    ),
    mutation(
        "a verdict is given twice",
        T + "ledger.py",
        "    where known.verdict = 'superseded'\n",
        "",
        SCHEDULES,
        VERSIONS,
    ),
    mutation(
        "the zone is no part of a firing's identity",
        T + "ledger.py",
        "(other.timezone, other.slot, other.number) <> (found.timezone, found.slot, found.number))",
        "(other.slot, other.number) <> (found.slot, found.number))",
        VERSIONS,
    ),
    mutation(
        "a missed job is claimed before it is judged",
        "jobs/models/jobs.py",
        "return self.due(now).exclude(misfire_at__lte=at(now))",
        "return self.due(now)",
        SCHEDULES,
    ),
    mutation(
        "latest runs every one that was missed",
        P + "misfire.py",
        "case Misfire.LATEST if not overtaken:",
        "case Misfire.LATEST:",
        SCHEDULES,
    ),
    mutation(
        "an edit leaves what the old version had made",
        S + "schedules.py",
        'old = take_back(_still_open(schedule_id, moment), "edited", actor, moment)',
        "old: list[Ahead] = []",
        SCHEDULES,
    ),
    mutation(
        "an edit forgets what had fired and was not decided",
        S + "schedules.py",
        "    since = min(stored.expanded_until, moment)\n    _write_version",
        "    since = moment\n    _write_version",
        VERSIONS,
    ),
    mutation(
        "a resume runs what fired into the pause",
        S + "schedules.py",
        '        skip_until=moment,\n        skip_reason="paused",\n',
        "",
        SCHEDULES,
    ),
    mutation(
        "a pause lets run what has fired and is still to be due",
        S + "schedules.py",
        'old = _drop(schedule_id, "paused", actor, moment)',
        'old = take_back(_still_open(schedule_id, moment), "paused", actor, moment)',
        VERSIONS,
    ),
    mutation(
        "skip leaves a run out after the earlier one has ended",
        S + "missed.py",
        """    and exists (select from jobs_lease lease where lease.shard = any(%(everywhere)s)
        and lease.tenant_id = due.tenant_id and lease.concurrency_key = due.concurrency_key)
""",
        "",
        RUNNING,
    ),
    mutation(
        "cancel_running asks nobody",
        S + "missed.py",
        "    for shard, job_id in rows(HOLDERS, params):",
        "    for shard, job_id in ():",
        RUNNING,
    ),
    mutation(
        "one that waits for an earlier run is never judged again",
        S + "missed.py",
        "    return stored.read_at + timedelta(seconds=stored.grace_seconds)\n",
        "    return None\n",
        RUNNING,
    ),
    mutation(
        "runs that must not overlap have no key",
        S + "firings.py",
        "concurrency_key=stored.key or request.concurrency_key,",
        "concurrency_key=request.concurrency_key,",
        RUNNING,
    ),
    mutation(
        "a daily rule runs once for each closed day",
        P + "timing.py",
        "            if self._has_slot(datetime.combine(day, firing.slot.time())):\n                return None\n",
        "",
        BUSINESS,
    ),
    mutation(
        "closed days forget the bounds",
        P + "timing.py",
        "return at is None or begin is None or end is None or begin <= at <= end",
        "return True",
        EDGES,
    ),
    mutation(
        "a run before the closed days is made up for",
        P + "misfire.py",
        "due_at < one.known_at and due_at <= expanded_until",
        "False",
        EDGES,
    ),
    mutation(
        "a full backlog takes nothing of a schedule that has more",
        S + "expansion.py",
        "part = replace(one, plan=first_runs(one.plan, room, again))",
        "part = replace(one, plan=first_runs(one.plan, 0, again))",
        EDGES,
    ),
    mutation(
        "the last of a limited number of runs is overtaken",
        S + "missed.py",
        "followed = one.followed if over else None",
        "followed = None",
        EDGES,
    ),
    mutation(
        "a changed policy runs a slot on both passes",
        S + "expansion.py",
        "made = _once_an_overlap(stored, timing, made)",
        "pass",
        EDGES,
    ),
    mutation(
        "a run before the closed days is seen too late",
        P + "misfire.py",
        "until = now if paused else timing.reach(now + ahead)",
        "until = now if paused else now + ahead",
        BUSINESS,
    ),
    mutation(
        "a new edition of a calendar changes nothing",
        S + "revision.py",
        'return "calendar"',
        'return ""',
        BUSINESS,
    ),
    mutation(
        "a changed policy changes nothing",
        S + "revision.py",
        'return "policy"',
        'return ""',
        VERSIONS,
    ),
    mutation(
        "newer zone data loses a slot whose time is over by now",
        S + "revision.py",
        "        since = _before_overtaken(fresh, timing, since)\n",
        "        pass\n",
        VERSIONS,
    ),
    mutation(
        "a process with older zone data expands",
        "jobs/queries/schedules.py",
        " and schedule.zone_data <= %(zone_data)s",
        "",
        SCHEDULES,
    ),
    mutation(
        "catching up makes what has run once more",
        T + "ledger.py",
        "    and occurrence.verdict in ('skipped', 'dropped')\n",
        "",
        VERSIONS,
    ),
    mutation(
        "catching up works on closed days",
        S + "catching_up.py",
        "if timing.due_at(one) is not None]",
        "if one]",
        VERSIONS,
    ),
    mutation(
        "a schedule takes back a job that ran late before",
        T + "withdraw.py",
        """        and misfire_at is not null
    returning job_id, shard, tenant_id""",
        "    returning job_id, shard, tenant_id",
        WITHDRAW,
    ),
)
