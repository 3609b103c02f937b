"""What a quickstart puts into the database: three tenants, a staff user, a token for each tenant."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth import get_user_model
from django.db.models.functions import Now

from jobs.clock import database_now
from jobs.models import ApiToken, Job, Tenant
from jobs.services.credentials import create_token

TENANTS = {"acme-shop": "Acme Shop", "nordwind": "Nordwind Handel", "kiosk-24": "Kiosk 24"}
USER, TOKEN_NAME = "demo", "quickstart"
SCOPES = [
    "jobs:read",
    "jobs:write",
    "jobs:cancel",
    "payload:read",
    "dead_letters:read",
    "schedules:read",
    "schedules:write",
]


@dataclass(frozen=True, slots=True)
class Demo:
    """What was made; secrets are shown once and stored as hashes only.

    Attributes:
        password: Of the staff user.
        tokens: Tenant slug → API token.
        began_at: Database time before anything was made.
        run: "" for the first run on this database, otherwise a text that makes request keys new.
    """

    password: str
    tokens: dict[str, str]
    began_at: datetime
    run: str


def prepare() -> Demo:
    """Make what is missing; a repeated run gets a new password and new tokens, and the old ones end."""
    began_at = database_now()
    tenants = [
        Tenant.objects.get_or_create(slug=slug, defaults={"name": name})[0]
        for slug, name in TENANTS.items()
    ]
    password = secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(
        username=USER, defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
    ApiToken.objects.filter(name=TOKEN_NAME, revoked_at=None).update(revoked_at=Now())
    tokens = {}
    for tenant in tenants:
        _, tokens[tenant.slug] = create_token(
            tenant=tenant, name=TOKEN_NAME, scopes=SCOPES, created_by="quickstart", kind="test"
        )
    used = Job.objects.filter(tenant__in=tenants).exists()
    return Demo(password, tokens, began_at, f"-{secrets.token_hex(3)}" if used else "")
