"""The shop's charge, its provider a process of its own: however a worker dies, the customer pays once."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.request import urlopen

import pytest

from tests.process.stories import (
    assert_at_rest,
    events,
    finished,
    result_of,
    seconds_between,
    story,
    submit,
)
from tests.support.process import ROOT, T_REC, Fleet

pytestmark = pytest.mark.process

KEY, TOKEN = "invoice-8812-charge", "acme/invoice-8812-charge"


def start_provider(fleet: Fleet, *options: str) -> str:
    """Start the provider and return its address, which it prints when it listens."""
    store = fleet.folder / "provider"
    process = fleet.start(
        "provider", sys.executable, ROOT / "examples/provider.py", "--data-dir", store, *options
    )
    listens = fleet.until(
        lambda: [line["url"] for line in process.logged() if "url" in line], "the provider listens"
    )
    return str(listens[0])


def seen_by_provider(url: str) -> dict[str, Any]:
    """What the provider's own books say about TOKEN."""
    with urlopen(f"{url}/report?tokens=1", timeout=10) as answer:  # noqa: S310 (our own process)
        report: dict[str, Any] = json.load(answer)
    found: dict[str, Any] = report["per_token"].get(TOKEN, {})
    return found


def test_killed_in_the_middle_of_a_charge(fleet):
    url = start_provider(fleet, "--delay-ms", "20000")
    shop = {"DUEKEEPER_APPS": "examples.shop", "SHOP_PROVIDER_URL": url}
    fleet.scheduler(**shop), fleet.worker(**shop), fleet.worker(**shop)
    fleet.ready()
    payload = {"invoice": 8812, "amount_cents": 4599, "currency": "EUR", "payment_method": "pm_1"}
    job = submit("billing.charge", request_key=KEY, payload=payload)
    lost = fleet.holder(job)
    fleet.until(
        lambda: seen_by_provider(url), "the provider has charged, and withholds its answer"
    )
    lost.kill()
    fleet.until(lambda: finished(job), "the job is finished")

    seen = seen_by_provider(url)
    assert (seen["deliveries"], seen["charges"], seen["attempts"]) == (2, 1, [1, 2])
    assert story(job) == [
        *("created", "leased", "started", "failed"),
        *("leased", "started", "succeeded"),
    ]
    (failed,) = events(job, "failed")
    assert failed.detail["cause"] == "lease_expired"
    assert seconds_between(failed.detail["heartbeat_at"], failed.at) <= T_REC
    first, second = events(job, "started")
    assert first.actor == f"worker:{failed.detail['worker']}" != second.actor
    (succeeded,) = events(job, "succeeded")
    assert (succeeded.actor, succeeded.token, first.token) == (second.actor, 2, 1)
    assert result_of(job) == {"charge_id": "ch_000001"}
    assert_at_rest()
