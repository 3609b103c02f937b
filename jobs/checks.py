"""System checks: a process with unusable settings refuses to start instead of misbehaving at midnight."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError

from jobs.conf import FIELDS, JobsConf
from jobs.models import Shard


@register()
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """JOBS has known names and usable values; the project runs in UTC."""
    given: dict[str, Any] = getattr(settings, "JOBS", {})
    found: list[CheckMessage] = [
        Error(
            f"JOBS has an unknown setting {name!r}.",
            hint=f"Known: {', '.join(FIELDS)}.",
            id="jobs.E001",
        )
        for name in sorted(set(given) - set(FIELDS))
    ]
    if not found:
        found += [
            Error(
                f"JOBS[{name!r}] {problem}.", hint="Fix the environment variable.", id="jobs.E002"
            )
            for name, problem in JobsConf(**given).problems()
        ]
    if not settings.USE_TZ or settings.TIME_ZONE != "UTC":
        found.append(Error("USE_TZ must be True and TIME_ZONE 'UTC'.", id="jobs.E003"))
    return found


@register(Tags.database)
def check_shards(
    app_configs: Any = None, databases: Any = None, **kwargs: Any
) -> list[CheckMessage]:
    """The number of shards is the one fixed at the first migrate."""
    if not databases:
        return []
    try:
        stored = Shard.objects.count()
    except DatabaseError:  # not migrated yet: migrate itself runs this check
        return []
    wanted = JobsConf(**getattr(settings, "JOBS", {})).shards
    if stored and stored != wanted:
        return [
            Error(
                f"The database has {stored} shards, the settings say {wanted}.",
                hint="The number is fixed at the first migrate; set DUEKEEPER_SHARDS back.",
                id="jobs.E004",
            )
        ]
    return []
