"""Connections to one origin: opened ahead, reused newest first, replaced when the server closed them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from time import monotonic_ns

from penstock.wire.clock import Clock
from penstock.wire.connection import Connection, Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.stats import WireStats

__all__ = ["Pool", "resolve"]

_OPENING_AT_ONCE = 256  # stays below the usual listen backlogs
_AT_ONCE_NS = 50_000_000
"""A connection that the server had closed is lost within a round trip of using it: the end that was on its way arrives, or the
answer to our first bytes does. Longer than this, and than three times what the connection took to open, the server had the
request."""
_RESET_NS = 1_000_000_000
"""When it was reset, nobody had read the request, or not all of it: a busy server may come to that a while later."""


def resolve(host: str, port: int, tls: ssl.SSLContext | None) -> tuple[Origin, ...]:
    """Every address of a host, in the system's order of preference; OSError when there is none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(Origin(host, port, family, address, tls) for family, _, _, _, address in found)  # type: ignore[arg-type]


class Pool:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        clock: Clock,
        gauge: WireStats,
        *,
        reuse: bool = True,
        stamps: bool = True,
    ) -> None:
        self._loop = loop
        self._origin = origin
        self._clock = clock
        self._gauge = gauge
        self._reuse = reuse
        self._stamps = stamps
        self._idle: dict[Connection, None] = {}  # a stack from which any one can go at once
        self._busy: dict[Exchange, Connection] = {}
        self._opening: set[Connection] = set()
        self._wanted = 0
        self._on_open: Callable[[int, WireError | None], None] | None = None

    def open_ahead(self, count: int, on_open: Callable[[int, WireError | None], None]) -> None:
        """Opens `count` connections, some at a time; on_open gets how many are open, or why one could not be."""
        self._wanted = count
        self._on_open = on_open
        self._open_more()

    def _open_more(self) -> None:
        while (
            self._on_open
            and len(self._opening) < _OPENING_AT_ONCE
            and len(self._idle) + len(self._opening) < self._wanted
        ):
            try:
                self._opening.add(self._connection())
            except OSError as error:
                report, self._on_open = self._on_open, None
                report(len(self._idle), _socket_trouble(error))

    def _connection(self) -> Connection:
        return Connection(
            self._loop, self._origin, self._clock, self._gauge, self._on_idle, self._on_closed, stamps=self._stamps
        )

    def start(self, exchange: Exchange) -> None:
        """Send an exchange on an idle connection, or on a new one."""
        connection = None
        if self._idle and self._reuse:
            connection = self._idle.popitem()[0]
        else:
            try:
                connection = self._connection()
            except OSError as error:
                exchange.error = _socket_trouble(error)
                exchange.end = monotonic_ns()
                self._loop.call_soon(exchange.on_end, exchange)
                return
        self._busy[exchange] = connection
        connection.start(exchange)

    def _on_idle(self, connection: Connection) -> None:
        if connection in self._opening:
            self._opening.discard(connection)
            self._idle[connection] = None
            if self._on_open:
                self._on_open(len(self._idle), None)
            self._open_more()
            return
        if self._reuse:
            self._idle[connection] = None
        else:
            connection.close()

    def _on_closed(self, connection: Connection, trouble: WireError | None) -> None:
        if connection in self._opening:
            self._opening.discard(connection)
            if self._on_open:
                report, self._on_open = self._on_open, None
                report(
                    len(self._idle),
                    trouble or WireError("ConnectionLost", "The server closed a new connection.", "server"),
                )
            return
        exchange = connection.exchange
        connection.exchange = None
        if exchange is None:
            self._idle.pop(connection, None)
            return
        if trouble and exchange.retries == 0 and _was_stale(connection, exchange):
            self._gauge.stale += 1
            exchange.retries = 1
            exchange.lost_ns = exchange.end - exchange.start
            exchange.start = exchange.sent = exchange.end = -1
            try:
                fresh = self._busy[exchange] = self._connection()  # in its old place: the oldest come first
            except OSError as error:
                trouble = _socket_trouble(error)
                exchange.end = monotonic_ns()
            else:
                fresh.start(exchange)
                return
        self._busy.pop(exchange, None)
        exchange.error = trouble
        exchange.on_end(exchange)

    def ended(self, exchange: Exchange) -> None:
        """The caller has seen the end of this exchange."""
        self._busy.pop(exchange, None)

    def abort(self, exchange: Exchange, trouble: WireError) -> None:
        """End an exchange from our side; what has arrived of its reply stays with it."""
        connection = self._busy.pop(exchange, None)
        if connection is None:
            return
        connection.abandon()
        exchange.error = trouble
        exchange.on_end(exchange)

    def look(self, before: int) -> None:
        """See after those that have heard nothing since that time. Call this every second or so."""
        for exchange, connection in list(self._busy.items()):
            if not exchange.times or exchange.times[-1] < before:
                connection.look()

    def pause(self, exchange: Exchange) -> None:
        """Stop reading the reply of this exchange until `resume`."""
        if (connection := self._busy.get(exchange)) is not None:
            connection.pause()

    def resume(self, exchange: Exchange) -> None:
        if (connection := self._busy.get(exchange)) is not None:
            connection.resume()

    @property
    def busy(self) -> dict[Exchange, Connection]:
        """In flight, oldest first."""
        return self._busy

    def close(self) -> None:
        self._on_open = None
        self._wanted = 0
        for connection in [*self._idle, *self._opening]:
            connection.close()
        self._idle.clear()


def _was_stale(connection: Connection, exchange: Exchange) -> bool:
    """It had been idle, and was lost at once with nothing of a reply: the server had closed it and never saw the request."""
    if not connection.used or connection.heard:
        return False
    patience = _RESET_NS if connection.reset else _AT_ONCE_NS
    return exchange.end - exchange.start <= max(patience, 3 * (connection.opened - connection.opening))


def _socket_trouble(error: OSError) -> WireError:
    hint = " Raise the limit (ulimit -n)." if error.errno == errno.EMFILE else ""
    return WireError("NoSocket", f"The system gave no socket: {os.strerror(error.errno or 0)}.{hint}", "penstock")
