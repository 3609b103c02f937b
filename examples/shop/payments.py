"""The shop's calls to its payment provider: what every delivery carries, what every answer means."""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from workers.handlers import JobContext, PermanentFailure, RetryAfter

CALL_SECONDS = 10.0
# The provider stands beside the worker: a proxy from the environment would only be in the way.
opener = build_opener(ProxyHandler({}))


class ProviderTrouble(Exception):
    """The provider failed in a way that may pass; the job's retry policy decides when to try again."""


def post(
    ctx: JobContext, path: str, body: Mapping[str, object], *, effect: str = ""
) -> dict[str, Any]:
    """Delivers `body` under the job's idempotency token and returns the provider's answer.

    A lost answer is left to the retry: the repeat carries the same token, so it collapses.

    Args:
        effect: Names one of several effects of the same job; each gets a token of its own.

    Raises:
        PermanentFailure: The provider will refuse this body however often it is sent.
        RetryAfter: It said when to come back.
        ProviderTrouble: It failed otherwise.
        OSError: No answer came; what happened there is unknown.
    """
    token = f"{ctx.idempotency_token}#{effect}" if effect else ctx.idempotency_token
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": quote(token),  # headers are ASCII, request keys need not be
        "Fencing-Token": str(ctx.fencing_token),
        "Job-Attempt": str(ctx.attempt),
    }
    return call(ctx, path, data=json.dumps(body).encode(), headers=headers)


def call(
    ctx: JobContext,
    path: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """GETs from the provider, or POSTs when there is data; raises what `post` raises."""
    address = os.environ["SHOP_PROVIDER_URL"] + path
    # The address is the operator's setting and never comes from a payload.
    request = Request(address, data=data, headers=dict(headers or {}))  # noqa: S310
    try:
        with opener.open(request, timeout=call_seconds(ctx)) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return answer
    except HTTPError as refusal:
        with refusal:
            raise verdict(refusal) from refusal


def call_seconds(ctx: JobContext) -> float:
    """How long a call may take: never beyond the lease, for then the job may run elsewhere."""
    seconds = min(ctx.lease_remaining(), CALL_SECONDS)
    if seconds <= 0:
        raise ProviderTrouble("not called: the lease of this attempt has run out")
    return seconds


def verdict(refusal: HTTPError) -> Exception:
    """A refusal as the exception that steers the job."""
    text = refusal.read(4096).decode(errors="replace")
    reason = f"provider answered {refusal.code}: {text}"
    wait = refusal.headers.get("Retry-After", "")
    if refusal.code in {429, 503} and wait.isascii() and wait.isdigit():
        return RetryAfter(float(wait), reason)
    if refusal.code >= 500 or refusal.code in {408, 425, 429}:
        return ProviderTrouble(reason)
    return PermanentFailure(reason)
