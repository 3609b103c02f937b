"""The shop's day: reads orders, posts each through the REST API, cancels what the shop cancels."""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.client import ApiError, Client


class Shop:
    """Posts the orders in a thread of its own. Results may be read while it works.

    Attributes:
        accepted: Idempotency token → job id of every request that the API accepted.
        refused: One line per request that it did not.
        done: Set when everything is posted and cancelled.
    """

    def __init__(
        self, *, orders: Path, url: str, tokens: Mapping[str, str], key_suffix: str = ""
    ) -> None:
        self.accepted: dict[str, str] = {}
        self.refused: list[str] = []
        self.replayed = 0
        self.done = threading.Event()
        self._orders, self._suffix = orders, key_suffix
        self._clients = {slug: Client(url, token) for slug, token in tokens.items()}
        self._stopped = threading.Event()
        self._cancels: list[tuple[float, str, str]] = []  # (monotonic time, tenant, job id)
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)

    def start(self) -> None:
        """Begin posting."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present request."""
        self._stopped.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        with self._orders.open(encoding="utf-8") as lines:
            for line in lines:
                if self._stopped.is_set():
                    return
                self._post(json.loads(line))
                self._cancel_due()
        while self._cancels and not self._stopped.is_set():
            self._stopped.wait(max(0.0, self._cancels[0][0] - time.monotonic()))
            self._cancel_due()
        self.done.set()

    def _post(self, order: dict[str, Any]) -> None:
        tenant = order.pop("tenant")
        cancel_after_ms, then = order.pop("cancel_after_ms", None), order.pop("then", None)
        if self._suffix and "request_key" in order:
            order["request_key"] += self._suffix
        try:
            made = self._clients[tenant].submit(order)
        except (ApiError, OSError) as error:
            self.refused.append(f"{order.get('handler')}: {error}")
            return
        self.accepted[made.job["idempotency_token"]] = made.job["id"]
        self.replayed += made.replayed
        if then == "cancel" and not made.replayed:
            at = time.monotonic() + cancel_after_ms / 1000
            heapq.heappush(self._cancels, (at, tenant, made.job["id"]))

    def _cancel_due(self) -> None:
        while self._cancels and self._cancels[0][0] <= time.monotonic():
            _, tenant, job_id = heapq.heappop(self._cancels)
            try:
                self._clients[tenant].cancel(job_id, "the shop called the campaign off")
            except (ApiError, OSError) as error:
                self.refused.append(f"cancel {job_id}: {error}")
