"""The end of a worker's service: what is under way is finished, and what is not does not hold it up.

The server closes connections that wait for a request, but not those on which half a head has arrived, and it waits for the
last byte of every reply, whoever reads it. So the connections are looked through while it drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import TYPE_CHECKING

from penstock.gateway.relay.response_stream import borrowed

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["Drain"]

LOOK_S = 0.25


class Drain:
    def __init__(self, loop: asyncio.AbstractEventLoop, app: App) -> None:
        self._loop = loop
        self._app = app
        self._started = False
        self._over = False
        self._quiet: set[str] = set()
        """Callers without a request at the last look: a head that is just being sent, or a reply that is just leaving, is
        given until the next one."""

    def start(self) -> bool:
        """False when it had been started before."""
        if self._started:
            return False
        self._started = True
        self._loop.call_later(self._app.config.listen.drain_s, self.cut_off)
        self._loop.call_later(LOOK_S, self._look)
        return True

    def cut_off(self) -> None:
        """Its time is over: what is left ends now, each with its record."""
        if not self._over:
            self._over = True
            self._app.cut_off()

    def _look(self) -> None:
        self._loop.call_later(LOOK_S, self._look)
        app = self._app
        busy = {call.client for call in app.calls}
        quiet: set[str] = set()
        for client, file in app.peers.all().items():
            if client in busy:
                continue
            with contextlib.suppress(OSError), borrowed(file) as connection:
                if connection.getsockname()[1] != app.config.listen.port:
                    continue
                if self._over or not _unsent(connection):
                    quiet.add(client)
                    if client in self._quiet:
                        connection.shutdown(socket.SHUT_RDWR)
        self._quiet = quiet


def _unsent(connection: socket.socket) -> int:
    """Bytes that the caller has not taken yet; 0 where the system does not tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
