"""Connections to one origin: opened in advance, reused newest first or by their owner alone, replaced when the server has
closed them.

A request is sent a second time only if the server cannot have received it (`Connection.unreceived`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from time import monotonic_ns

from penstock.wire.clock import Clock
from penstock.wire.connection import Connection, Origin
from penstock.wire.connection_errors import socket_error
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.loop_marks import LoopMarks
from penstock.wire.stats import WireStats

_MAX_CONNECTING = 256  # below the usual listen backlogs


def resolve(host: str, port: int, tls: ssl.SSLContext | None) -> tuple[Origin, ...]:
    """Return all addresses of a host in the system's order of preference. Raise OSError if there are none."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(Origin(host, port, family, address, tls) for family, _, _, _, address in addresses)  # type: ignore[arg-type]


class Pool:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        clock: Clock,
        stats: WireStats,
        *,
        reuse: bool = True,
        stamps: bool = True,
        marks: LoopMarks | None = None,
        private_buffers: bool = False,
    ) -> None:
        self._private_buffers = private_buffers
        self._loop = loop
        self._origin = origin
        self._clock = clock
        self._stats = stats
        self._reuse = reuse
        self._stamps = stamps
        self._marks = marks
        self._idle: dict[Connection, None] = {}  # a stack with constant-time removal
        self._kept: dict[object, Connection] = {}
        """Idle connections that are kept for their owner."""
        self._owners: dict[Connection, object] = {}
        self._busy: dict[Exchange, Connection] = {}
        self._connecting: set[Connection] = set()
        """Connections that are being opened in advance."""
        self._open_ahead_count = 0
        self._on_open: Callable[[int, WireError | None], None] | None = None

    def open_ahead(self, count: int, on_open: Callable[[int, WireError | None], None]) -> None:
        """Open `count` connections before the first request, up to 256 at a time.

        `on_open(n, None)` is called after each connection, with the number of open ones. If one cannot be opened,
        `on_open(n, error)` is called, and it is the last call."""
        self._open_ahead_count = count
        self._on_open = on_open
        self._open_more()

    def _open_more(self) -> None:
        while (
            self._on_open
            and len(self._connecting) < _MAX_CONNECTING
            and len(self._idle) + len(self._connecting) < self._open_ahead_count
        ):
            try:
                self._connecting.add(self._connection())
            except OSError as error:
                report, self._on_open = self._on_open, None
                report(len(self._idle), socket_error(error))

    def _connection(self) -> Connection:
        return Connection(
            self._loop,
            self._origin,
            self._clock,
            self._stats,
            self._on_idle,
            self._on_closed,
            stamps=self._stamps,
            marks=self._marks,
            private_buffer=self._private_buffers,
        )

    @property
    def in_handshake(self) -> bool:
        """Whether a connection that is being opened in advance waits for the server's TLS handshake."""
        return any(connection.in_handshake for connection in self._connecting)

    def start(self, exchange: Exchange, owner: object = None) -> None:
        """Send an exchange on an idle connection, or on a new one. An owner has a connection of its own until `release`."""
        connection = self._connection_of(owner) if owner is not None else self._idle_connection()
        if connection is None:
            try:
                connection = self._connection()
            except OSError as error:
                exchange.error = socket_error(error)
                exchange.end = monotonic_ns()
                self._loop.call_soon(exchange.on_end, exchange)
                return
        self._busy[exchange] = connection
        if owner is not None:
            self._owners[connection] = owner
        connection.start(exchange)

    def _connection_of(self, owner: object) -> Connection | None:
        connection = self._kept.pop(owner, None)
        if connection is None or connection.check_open():
            return connection
        self._close(connection)
        return None

    def release(self, owner: object) -> None:
        """Close the idle connection of an owner, if it has one."""
        if (connection := self._kept.pop(owner, None)) is not None:
            self._close(connection)

    def release_all(self) -> None:
        """Close the idle connections of all owners."""
        for owner in list(self._kept):
            self.release(owner)

    def _close(self, connection: Connection) -> None:
        self._owners.pop(connection, None)
        connection.close()

    def _idle_connection(self) -> Connection | None:
        while self._idle and self._reuse:
            connection = self._idle.popitem()[0]
            if connection.check_open():
                return connection
            connection.close()
        return None

    def _on_idle(self, connection: Connection) -> None:
        if connection in self._connecting:
            self._connecting.discard(connection)
            self._idle[connection] = None
            if self._on_open:
                self._on_open(len(self._idle), None)
            self._open_more()
            return
        owner = self._owners.get(connection)
        if owner is not None:
            self._kept[owner] = connection
        elif self._reuse:
            self._idle[connection] = None
        else:
            connection.close()

    def _on_closed(self, connection: Connection, error: WireError | None) -> None:
        if connection in self._connecting:
            self._connecting.discard(connection)
            if self._on_open:
                report, self._on_open = self._on_open, None
                report(
                    len(self._idle),
                    error or WireError("ConnectionLost", "The server closed a new connection.", "server"),
                )
            return
        exchange = connection.exchange
        connection.exchange = None
        owner = self._owners.pop(connection, None)
        if exchange is None:
            self._idle.pop(connection, None)
            if self._kept.get(owner) is connection:
                del self._kept[owner]
            return
        if error and exchange.retries == 0 and connection.unreceived:
            self._stats.stale += 1
            exchange.retries = 1
            exchange.lost_ns = exchange.end - exchange.start
            exchange.start = exchange.sent = exchange.end = -1
            try:
                fresh = self._busy[exchange] = self._connection()  # keeps its position in `busy`
            except OSError as no_socket:
                error = socket_error(no_socket)
                exchange.end = monotonic_ns()
            else:
                if owner is not None:
                    self._owners[fresh] = owner
                fresh.start(exchange)
                return
        self._busy.pop(exchange, None)
        exchange.error = error
        exchange.on_end(exchange)

    def ended(self, exchange: Exchange) -> None:
        """Forget an exchange whose `on_end` was called."""
        self._busy.pop(exchange, None)

    def abort(self, exchange: Exchange, error: WireError) -> None:
        """End an exchange with this error; it keeps what has arrived of its reply."""
        connection = self._busy.pop(exchange, None)
        if connection is None:
            return
        self._owners.pop(connection, None)
        connection.abandon()
        exchange.error = error
        exchange.on_end(exchange)

    def check_resets(self, quiet_since: int) -> None:
        """Detect unreported resets of connections that have received nothing since then. Call this about every second."""
        for exchange, connection in list(self._busy.items()):
            if not exchange.times or exchange.times[-1] < quiet_since:
                connection.check_reset()

    def pause(self, exchange: Exchange) -> None:
        """Stop reading the reply of this exchange until `resume` is called."""
        if (connection := self._busy.get(exchange)) is not None:
            connection.pause()

    def resume(self, exchange: Exchange) -> None:
        if (connection := self._busy.get(exchange)) is not None:
            connection.resume()

    @property
    def busy(self) -> dict[Exchange, Connection]:
        """The exchanges in flight, oldest first."""
        return self._busy

    def close(self) -> None:
        self._on_open = None
        self._open_ahead_count = 0
        self.release_all()
        for connection in [*self._idle, *self._connecting]:
            connection.close()
        self._idle.clear()
