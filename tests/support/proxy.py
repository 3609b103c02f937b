"""A TCP proxy between processes and the database, for the network faults that no signal can make.

Loopback only. What it can do to its links: cut them, hold them (both ends believe in a connection that carries nothing;
each way alone or both), delay each way, and hold a link at the very moment when a client sends a certain text. It counts
the statements that the server answered with "canceled".
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK_BYTES = 65_536
DEFAULT_PORT = 5432
QUERY_CANCELED = b"C57014\0"  # the field of an error that carries its SQLSTATE


class Way:
    """One direction, of all links or of one."""

    def __init__(self) -> None:
        self.flows = threading.Event()
        self.flows.set()
        self.delay_seconds = 0.0


class Link:
    """One client and its session at the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.flows = threading.Event()
        self.flows.set()

    def close(self) -> None:
        """Cut it: both ends see the end of the stream."""
        self.flows.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):  # the other end may have gone first
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Listens from its making until `close`. A context manager."""

    def __init__(self, database_url: str) -> None:
        """`database_url` is the server's own, with a socket folder or a host."""
        self._address = _address(database_url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = _through(database_url, port)
        self.to_server, self.to_client = Way(), Way()
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._trap = b""
        self.canceled = 0  # statements that the server gave up at somebody's wish
        self.trapped = threading.Event()  # a link is held because its client sent the trap's text
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """No new link, and no old one."""
        self._listening.close()
        self.release()
        self.cut()

    def cut(self) -> int:
        """Cut every link; how many they were. New ones are made as before."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()
        return len(links)

    def hold(self, *ways: Way) -> None:
        """Carry nothing any more, over old links and new: in these directions, or in both."""
        for way in ways or (self.to_server, self.to_client):
            way.flows.clear()

    def release(self) -> None:
        """Carry everything again, what was held first."""
        for way in (self.to_server, self.to_client):
            way.flows.set()
        with self._lock:
            for link in self._links:
                link.flows.set()

    def hold_link_at(self, text: bytes) -> None:
        """Hold the first link whose client sends this text, before the server gets any of that message."""
        self.trapped.clear()
        self._trap = text

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            try:
                server = _connect(self._address)
            except OSError:
                client.close()  # as the server itself would refuse
                continue
            link = Link(client, server)
            with self._lock:
                self._links.append(link)
            self._start(link, client, server, self.to_server, self._spring)
            self._start(link, server, client, self.to_client, self._count)

    def _start(self, link: Link, *how: object) -> None:
        threading.Thread(target=self._pump, args=(link, *how), name="proxy", daemon=True).start()

    def _spring(self, link: Link, data: bytes) -> None:
        with self._lock:
            if self._trap and self._trap in data:
                self._trap = b""
                link.flows.clear()
                self.trapped.set()

    def _count(self, link: Link, data: bytes) -> None:
        with self._lock:
            self.canceled += data.count(QUERY_CANCELED)

    def _pump(
        self,
        link: Link,
        source: socket.socket,
        sink: socket.socket,
        way: Way,
        look: Callable[[Link, bytes], None],
    ) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                look(link, data)
                time.sleep(way.delay_seconds)
                way.flows.wait()
                link.flows.wait()
                sink.sendall(data)
            way.flows.wait()  # the end of the stream is news too: held like any other
            link.flows.wait()
        except OSError:
            pass  # an end was cut; below, the other learns of it
        link.close()


def _address(database_url: str) -> str | tuple[str, int]:
    parts = urlsplit(database_url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder:
        return f"{folder}/.s.PGSQL.{parts.port or DEFAULT_PORT}"
    return unquote(parts.hostname or "localhost"), parts.port or DEFAULT_PORT


def _through(database_url: str, port: int) -> str:
    parts = urlsplit(database_url)
    user = quote(unquote(parts.username or ""))
    password = f":{quote(unquote(parts.password))}" if parts.password else ""
    plain = "sslmode=disable&gssencmode=disable"  # the trap reads what passes
    return f"postgresql://{user}{password}@127.0.0.1:{port}{parts.path}?{plain}"


def _connect(address: str | tuple[str, int]) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(address)
    except OSError:
        server.close()
        raise
    return server
