"""Drain a worker: finish running requests, and do not wait for connections without one.

Granian closes idle connections, but not those on which part of a request head has arrived, and it waits until the last
byte of every reply has been read. So this module checks the connections while the worker drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.gateway.relay.response_stream import borrowed

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["Drain"]

CHECK_S = 0.25


class Drain:
    """Shuts down the connections of a worker, and ends its requests when `drain_s` is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: App) -> None:
        self._loop = loop
        self._app = app
        self._started = False
        self._time_is_over = False
        self._idle_clients: set[str] = set()
        """Callers without a request at the last check. They are closed at the next check, which leaves time for a head or
        a reply that is being sent."""

    def start(self) -> bool:
        """Start to drain; return False if it was already started."""
        if self._started:
            return False
        self._started = True
        self._app.common_headers.append(("connection", "close"))  # callers open their next connection elsewhere
        self._loop.call_later(self._app.config.listen.drain_s, self.cut_off)
        self._loop.call_later(CHECK_S, self._close_idle_connections)
        return True

    def has_connections(self) -> bool:
        """Return whether callers are connected."""
        return any(True for _ in self._connections())

    def cut_off(self) -> None:
        """End all requests that are left; each writes its entry."""
        if not self._time_is_over:
            self._time_is_over = True
            self._app.cut_off()

    def _close_idle_connections(self) -> None:
        self._loop.call_later(CHECK_S, self._close_idle_connections)
        app = self._app
        busy = {request.client for request in app.requests}
        idle_clients: set[str] = set()
        for client, connection in self._connections():
            if client not in busy and (self._time_is_over or not _unsent_bytes(connection)):
                idle_clients.add(client)
                if client in self._idle_clients:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
        self._idle_clients = idle_clients

    def _connections(self) -> Iterator[tuple[str, socket.socket]]:
        """Yield the address and the socket of each caller that is connected."""
        for client, file in self._app.client_sockets.all().items():
            with contextlib.suppress(OSError), borrowed(file) as connection:
                if connection.getsockname()[1] == self._app.config.listen.port:
                    yield client, connection


def _unsent_bytes(connection: socket.socket) -> int:
    """Return the number of bytes that are not yet sent, or 0 if the system does not report it."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
