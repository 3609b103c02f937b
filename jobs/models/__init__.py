"""Rows: fields, constraints, indexes and predicates. No workflow lives here."""

from jobs.models.catalog import Handler, Lane, Pause, Pool, Reserve, Route, StartBucket
from jobs.models.dead_letters import DeadLetter
from jobs.models.events import JobEvent
from jobs.models.fleet import SchedulerNode, Shard, Worker
from jobs.models.jobs import DueEntry, Job
from jobs.models.leases import Lease
from jobs.models.schedules import Calendar, Occurrence, Schedule, ScheduleVersion
from jobs.models.tenants import ApiToken, ConcurrencyLimit, Tenant

__all__ = [
    "ApiToken",
    "Calendar",
    "ConcurrencyLimit",
    "DeadLetter",
    "DueEntry",
    "Handler",
    "Job",
    "JobEvent",
    "Lane",
    "Lease",
    "Occurrence",
    "Pause",
    "Pool",
    "Reserve",
    "Route",
    "Schedule",
    "ScheduleVersion",
    "SchedulerNode",
    "Shard",
    "StartBucket",
    "Tenant",
    "Worker",
]
