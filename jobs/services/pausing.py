"""pause, resume: a person stops a tenant, a lane, a pool or a handler, and lets it go on.

Nothing of what is paused is claimed. No job changes: what waits goes on waiting, and what was published before still runs.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from django.db.models import Model

from jobs import telemetry
from jobs.clock import NOW_SQL, database_now
from jobs.database import atomically, notify, rows
from jobs.errors import InvalidField, NotFound, NotPaused
from jobs.models import Handler, Lane, Pause, Pool, Tenant
from jobs.policies.payloads import check_scalar
from jobs.queries.pauses import COLUMNS, Paused

log = logging.getLogger(__name__)

MAX_REASON = 1_000  # characters
# What can be paused, and by which field it is named.
TARGETS: dict[Pause.Kind, tuple[type[Model], str]] = {
    Pause.Kind.TENANT: (Tenant, "slug"),
    Pause.Kind.LANE: (Lane, "name"),
    Pause.Kind.POOL: (Pool, "name"),
    Pause.Kind.HANDLER: (Handler, "name"),
}


# One that has ended by its time is a new one. Of one in force the beginning stays; reason and person go together.
PAUSE = f"""
insert into jobs_pause as known (kind, target, reason, paused_by, paused_at, resume_at)
values (%(kind)s, %(target)s, %(reason)s, %(actor)s, {NOW_SQL}, %(resume_at)s)
on conflict (kind, target) do update set reason = excluded.reason, paused_by = excluded.paused_by,
    resume_at = excluded.resume_at,
    paused_at = case when known.resume_at <= excluded.paused_at then excluded.paused_at else known.paused_at end
returning {COLUMNS}, paused_at < {NOW_SQL}"""
RESUME = f"""
delete from jobs_pause where kind = %(kind)s and target = %(target)s
returning {COLUMNS}, coalesce(resume_at <= {NOW_SQL}, false)"""
END_PAUSES = f"""
delete from jobs_pause where resume_at <= {NOW_SQL}
returning {COLUMNS}"""


def check_pause(reason: str, resume_at: datetime | None, now: datetime | None) -> None:
    """Whether a pause may have this reason and this end.

    Raises:
        InvalidField: At /reason or /resume_at.
    """
    if not reason.strip() or len(reason) > MAX_REASON:
        detail = f"must have 1 to {MAX_REASON} characters, not only spaces"
        raise InvalidField("/reason", "length", detail)
    check_scalar(reason, "/reason")
    if resume_at is not None and (
        resume_at.tzinfo is None or resume_at <= (now or database_now())
    ):
        raise InvalidField("/resume_at", "out_of_range", "must be an aware time in the future")


@atomically
def pause(
    *,
    kind: Pause.Kind,
    target: str,
    actor: str,
    reason: str,
    resume_at: datetime | None = None,
    now: datetime | None = None,
) -> Paused:
    """Claim nothing more of this target; a scheduler follows within a second.

    Args:
        kind: What it is.
        target: Its slug or name.
        actor: Who asks ("user:anna").
        reason: Why, for those who wonder: 1 to 1,000 characters.
        resume_at: Aware; when it ends by itself, by the database's clock. None: when somebody resumes it.
        now: Aware UTC; default is the database clock.

    Returns:
        The pause; `already` if there was one, which now has this reason, this person and this end.

    Raises:
        NotFound: There is no such target. Nothing is stored.
        InvalidField: Kind, reason or end. Nothing is stored.
    """
    if kind not in TARGETS:
        raise InvalidField("/kind", "unknown", f"must be one of {', '.join(TARGETS)}")
    check_pause(reason, resume_at, now)
    check_scalar(target, "/target")
    if not is_there(kind, target):
        raise NotFound(f"There is no {kind} named {target!r}.")
    params = {
        "kind": kind.value,
        "target": target,
        "reason": reason,
        "actor": actor,
        "resume_at": resume_at,
        "now": now,
    }
    paused = Paused(*rows(PAUSE, params)[0])
    _tell(telemetry.PAUSE_CHANGED if paused.already else telemetry.PAUSE_BEGUN, paused, by=actor)
    return paused


@atomically
def resume(*, kind: Pause.Kind, target: str, actor: str, now: datetime | None = None) -> Paused:
    """Go on with this target, as far as nothing else that its jobs belong to is paused.

    A target that is gone meanwhile can be resumed all the same.

    Args:
        kind: What it is.
        target: Its slug or name.
        actor: Who asks.
        now: Aware UTC; default is the database clock.

    Returns:
        The pause that is over.

    Raises:
        NotPaused: It is not paused, or the pause has ended by its time.
    """
    check_scalar(target, "/target")
    found = rows(RESUME, {"kind": kind.value, "target": target, "now": now})
    if not found or found[0][-1]:
        raise NotPaused(f"The {kind} {target!r} is not paused.")
    ended = Paused(*found[0][:-1])
    _tell(telemetry.PAUSE_ENDED, ended, by=actor)
    notify(telemetry.CHANNEL_DUE, "")
    return ended


@atomically
def end_pauses(*, now: datetime | None = None) -> int:
    """Take away pauses whose time is over. Nobody waits for this: they count no more since that moment.

    Args:
        now: Aware UTC; default is the database clock.

    Returns:
        How many there were.
    """
    ended = [Paused(*row) for row in rows(END_PAUSES, {"now": now})]
    for one in ended:
        _tell(telemetry.PAUSE_ENDED, one, by="")
    if ended:
        notify(telemetry.CHANNEL_DUE, "")
    return len(ended)


def is_there(kind: Pause.Kind, target: str) -> bool:
    """Whether there is such a tenant, lane, pool or handler."""
    model, name = TARGETS[kind]
    return model._default_manager.filter(**{name: target}).exists()


def _tell(event: str, pause: Paused, *, by: str) -> None:
    extra: dict[str, Any] = {
        "kind": pause.kind,
        "target": pause.target,
        "reason": pause.reason,
        "paused_by": pause.paused_by,
        "paused_at": pause.paused_at.isoformat(),
        "resume_at": pause.resume_at and pause.resume_at.isoformat(),
        "by": by,
    }
    log.info(event, extra=extra)
