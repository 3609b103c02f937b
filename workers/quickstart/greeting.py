"""What a newcomer needs once everything runs: addresses, a way in, and where to look."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from workers.quickstart.demo import TENANTS, USER, Demo


def greeting(
    demo: Demo, *, url: str, worker_pid: int, logs: Path, database_url: str, has_shop: bool
) -> list[str]:
    """Lines to print, secrets made for this run among them; a database's password is not shown."""
    slug = next(iter(TENANTS))
    token = demo.tokens[slug]
    secret = urlsplit(database_url).password or "password=" in database_url
    database = "that of your DATABASE_URL" if secret else f"DATABASE_URL='{database_url}'"
    request = (
        f"try      curl -sS {url}/api/v1/jobs -H 'Authorization: Bearer {token}'"
        " -H 'Content-Type: application/json'"
        """ -d '{"handler":"billing.receipt","payload":{"to":"you@example.com"},"delay_seconds":5}'"""
    )
    return [
        f"console  {url}/console/   user {USER}, password {demo.password}",
        f"admin    {url}/admin/",
        f"API      {url}/api/v1/jobs   token of {slug}: {token}",
        request if has_shop else "handlers none: name your apps in DUEKEEPER_APPS",
        f"worker   pid {worker_pid}: kill -9 it to see a recovery",
        f"logs     {logs}",
        f"database {database}",
    ]
