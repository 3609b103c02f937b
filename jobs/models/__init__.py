"""Rows: fields, constraints, indexes and predicates. No workflow lives here."""

from jobs.models.catalog import Handler, Lane, Pool, Route
from jobs.models.dead_letters import DeadLetter
from jobs.models.events import JobEvent
from jobs.models.fleet import SchedulerNode, Shard, Worker
from jobs.models.jobs import DueEntry, Job
from jobs.models.leases import Lease
from jobs.models.tenants import ApiToken, Tenant

__all__ = [
    "ApiToken",
    "DeadLetter",
    "DueEntry",
    "Handler",
    "Job",
    "JobEvent",
    "Lane",
    "Lease",
    "Pool",
    "Route",
    "SchedulerNode",
    "Shard",
    "Tenant",
    "Worker",
]
