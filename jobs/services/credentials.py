"""API tokens: made here, with scopes that exist and an end; shown once, stored as a hash."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from jobs.clock import database_now
from jobs.database import commits
from jobs.errors import InvalidField
from jobs.models import ApiToken, Tenant
from jobs.policies.tokens import mint

SCOPES = frozenset(
    {
        "jobs:read",
        "jobs:write",
        "jobs:cancel",
        "payload:read",
        "dead_letters:read",
        "dead_letters:write",
        "schedules:read",
        "schedules:write",
        "webhooks:read",
        "webhooks:write",
        "stats:read",
        "tenant:read",
        "tenant:admin",
    }
)
LIFETIME = timedelta(days=365)


@commits
def create_token(
    tenant: Tenant,
    name: str,
    scopes: Iterable[str],
    created_by: str,
    kind: Literal["live", "test"] = "live",
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """A new token of a tenant.

    Args:
        tenant: The only tenant it will reach.
        name: By which people know it, 1 to 100 characters.
        scopes: What it may do, out of `SCOPES`; none means nothing.
        created_by: Who asked for it ("user:anna").
        kind: Shown in its text.
        expires_at: Aware UTC; default is a year from now by the database's clock.

    Returns:
        The stored row, and the text that its holder presents: it can never be shown again.

    Raises:
        InvalidField: Name, a scope or the expiry. Nothing is stored.
    """
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidField("/name", "length", "must have 1 to 100 printable characters")
    if unknown := sorted(set(scopes := list(scopes)) - SCOPES):
        known = ", ".join(sorted(SCOPES))
        raise InvalidField("/scopes", "unknown", f"{unknown[0]!r} is not one of {known}")
    now = database_now()
    if expires_at is None:
        expires_at = now + LIFETIME
    elif expires_at.tzinfo is None or expires_at <= now:
        raise InvalidField("/expires_at", "out_of_range", "must be an aware time in the future")
    minted = mint(kind)
    token = ApiToken.objects.create(
        id=minted.id,
        tenant=tenant,
        name=name,
        secret_hash=minted.secret_hash,
        last4=minted.last4,
        scopes=sorted(set(scopes)),
        created_by=created_by,
        expires_at=expires_at,
    )
    return token, minted.text
