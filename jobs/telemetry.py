"""Names of log events and notification channels, each in one place so that one grep finds every use."""

from __future__ import annotations

# Wake-up channels (hints only; polling never stops).
CHANNEL_DUE = "duekeeper_due"  # to schedulers: work became due; payload: empty
CHANNEL_WORKERS = (
    "duekeeper_workers"  # to workers: "pool:<id>" work published, "cancel:<worker id>"
)

# Log events: fixed names, values in `extra`.
SCHEDULER_STARTED = "scheduler.started"
SCHEDULER_STOPPED = "scheduler.stopped"
WORKER_STARTED = "worker.started"
WORKER_DRAINING = "worker.draining"
WORKER_STOPPED = "worker.stopped"
LOOP_FAILED = "loop.failed"
LEASE_LOST = "lease.lost"
LEASES_EXPIRED = "leases.expired"
REAP_ROW_FAILED = "reap.row_failed"
CLAIM_MISMATCH = "claim.mismatch"
COMPLETION_REJECTED = "completion.rejected"
OUTCOME_RETRY = "outcome.retry"
CLOCK_SKEWED = "clock.skewed"
TRANSACTION_OLD = "transaction.old"
SHARDS_CHANGED = "shards.changed"
NOTIFY_LOST = "notify.lost"
WORKER_RECYCLED = "worker.recycled"
FORKS_WITH_THREADS = "forks.with_threads"
HANDLERS_LEFT_OUT = "handlers.left_out"
HANDLER_PROCESS_ENDED = "handler.process_ended"
HANDLER_ABANDONED = "handler.abandoned"
PARTITIONS_CREATED = "partitions.created"
PAUSE_BEGUN = "pause.begun"
PAUSE_CHANGED = "pause.changed"
PAUSE_ENDED = "pause.ended"
SCHEDULE_FAULTY = "schedule.faulty"
SCHEDULE_DELAYED = "schedule.delayed"
SCHEDULE_CHANGED = "schedule.changed"
CALENDAR_CHANGED = "calendar.changed"
SCHEDULES_EXPANDED = "schedules.expanded"
