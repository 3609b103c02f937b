"""Sessions of this database whose open transaction keeps dead rows from being cleaned up."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from jobs.database import rows

# Times of other roles' sessions are shown to a member of pg_read_all_stats only.
OLDEST = """
select pid, coalesce(application_name, ''), coalesce(usename::text, ''), state, xact_start,
    extract(epoch from clock_timestamp() - xact_start)::float8
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
    and (backend_xmin is not null or backend_xid is not null) and xact_start is not null
order by xact_start limit 1"""


class OpenTransaction(NamedTuple):
    """A session inside a transaction; `seconds` is how long so far."""

    pid: int
    application: str
    user: str
    state: str
    since: datetime
    seconds: float


def oldest_transaction() -> OpenTransaction | None:
    """The oldest one of another session of this database that holds a snapshot or has written, if there is one."""
    found = rows(OLDEST, {})
    return OpenTransaction(*found[0]) if found else None
