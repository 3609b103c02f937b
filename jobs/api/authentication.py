"""Who calls: `Authorization: Bearer dk_…` and nothing else. Cookies and sessions mean nothing here."""

from __future__ import annotations

from typing import cast

from django.db.models.functions import Now
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from jobs.api.errors import Problem
from jobs.models import ApiToken, Tenant
from jobs.policies import tokens

REALM = 'Bearer realm="duekeeper"'
_NOBODY = bytes(
    32
)  # compared with when there is no such token, so that a miss takes as long as a hit


class TokenAuthentication(BaseAuthentication):
    """Finds the token; a text that cannot be one (form, checksum) costs no query."""

    def authenticate(self, request: Request) -> tuple[Tenant, ApiToken]:
        """The tenant the token belongs to, and the token.

        Raises:
            Problem: token_missing, token_invalid (also revoked) or token_expired.
        """
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Problem(
                "token_missing",
                'Send "Authorization: Bearer dk_…".',
                headers={"WWW-Authenticate": REALM},
            )
        try:
            presented = tokens.parse(text.strip())
        except ValueError:
            raise _refused("token_invalid") from None
        stored = (
            ApiToken.objects.select_related("tenant")
            .annotate(read_at=Now())
            .filter(pk=presented.id)
            .first()
        )
        known = bytes(stored.secret_hash) if stored else _NOBODY
        if not tokens.matches(known, presented.secret_hash) or stored is None:
            raise _refused("token_invalid")
        if stored.revoked_at is not None and stored.revoked_at <= stored.read_at:
            raise _refused("token_invalid")
        if stored.expires_at is not None and stored.expires_at <= stored.read_at:
            raise _refused("token_expired")
        return stored.tenant, stored


def token_of(request: Request) -> ApiToken:
    """The token that an authenticated request came with."""
    return cast("ApiToken", request.auth)


def has_scope(token: ApiToken, scope: str) -> bool:
    """True when the token was given this scope by its exact name."""
    return isinstance(token.scopes, list) and scope in token.scopes


def require_scope(token: ApiToken, scope: str) -> None:
    """Pass when the token may do this.

    Raises:
        Problem: scope_missing, naming the scope.
    """
    if not has_scope(token, scope):
        raise Problem(
            "scope_missing",
            f"The API token lacks the scope {scope}.",
            headers={"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{scope}"'},
            scope=scope,
        )


def _refused(code: str) -> Problem:
    return Problem(code, headers={"WWW-Authenticate": f'{REALM}, error="invalid_token"'})
