"""Addresses of this machine: a free port, a web process that answers, a call that no proxy gets to see."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from workers.quickstart.stack import Stack, StackError

WEB_SECONDS = 60.0
# A proxy of the environment cannot reach our loopback.
opener = build_opener(ProxyHandler({}))


def fetch_json(url: str) -> dict[str, Any]:
    """GET a JSON object.

    Raises:
        OSError: No answer within 10 s, or a refusal.
    """
    with opener.open(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def free_port(wanted: int) -> int:
    """The port itself if nothing listens on it; any free one for 0.

    Raises:
        StackError: It is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise StackError(f"Port {wanted} is in use; choose another with --port.") from error
        port: int = probe.getsockname()[1]
        return port


def wait_for_web(url: str, stack: Stack) -> None:
    """Return when the web process answers; any HTTP answer will do.

    Raises:
        StackError: It ended, or is silent for 60 s.
        Stopped: Whoever started the stack does not want it any more.
    """
    deadline = time.monotonic() + WEB_SECONDS
    while time.monotonic() < deadline:
        stack.raise_if_stopping()
        try:
            with opener.open(url, timeout=2):
                return
        except HTTPError as refusal:
            refusal.close()
            return
        except OSError:
            if stack.children["web"].process.poll() is not None:
                raise stack.failure("web", "The web process ended at its start") from None
            time.sleep(0.1)
    raise stack.failure("web", f"The web process was silent for {WEB_SECONDS:g} s")
