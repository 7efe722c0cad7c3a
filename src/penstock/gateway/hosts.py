"""Connections to the servers that providers live on: one `Host` for each scheme, name and port, whoever's key is used.

The wire is the benchmark's, without its receive stamps: a gateway measures in milliseconds, and the two system calls
that a stamp costs are a tenth of what a request costs here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Any

from penstock.wire import tls
from penstock.wire.clock import Clock
from penstock.wire.connection import Connection, Origin
from penstock.wire.exchange import Exchange, Trouble
from penstock.wire.gauge import Gauge
from penstock.wire.pool import Pool

__all__ = ["Host", "HostKey", "Hosts"]

HostKey = tuple[str, str, int, bool]
"""Scheme, name, port, whether its certificate is checked."""

IDLE_S = 30.0
"""How long an unused connection is kept: below the idle limits of the usual proxies and firewalls on the way."""
ADDRESSES_S = 30.0
"""How long the addresses of a name are believed."""


class _Pool(Pool):
    def __init__(self, loop: asyncio.AbstractEventLoop, origin: Origin, clock: Clock, gauge: Gauge) -> None:
        super().__init__(loop, origin, clock, gauge, stamps=False)
        self._idle_since: dict[Connection, float] = {}

    def _connection(self) -> Connection:
        made = super()._connection()
        made.keep_alive()
        return made

    def _on_idle(self, connection: Connection) -> None:
        self._idle_since[connection] = monotonic()
        super()._on_idle(connection)

    def _on_closed(self, connection: Connection, trouble: Trouble | None) -> None:
        self._idle_since.pop(connection, None)
        super()._on_closed(connection, trouble)

    def sweep(self, before: float) -> None:
        """Close what has been idle since before that time."""
        # The newest is used first, so the oldest are at the front.
        for connection in list(self._idle):
            if self._idle_since[connection] > before:
                break
            connection.close()

    def retire(self) -> None:
        """Serve what is under way, and keep no connection after it."""
        self._reuse = False
        self.close()

    @property
    def open(self) -> int:
        return len(self._idle) + len(self._busy)


class _Start:
    """An exchange on its way to a connection: the addresses that are left to try, and who waits for its end."""

    __slots__ = ("exchange", "left", "on_end")

    def __init__(self, exchange: Exchange, on_end: Callable[[Exchange], None]) -> None:
        self.exchange = exchange
        self.on_end = on_end
        self.left: list[_Pool] = []


class Host:
    """`exchange.tag` is the host's: the pool that carries the exchange, None while its name is looked up."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        port: int,
        context: ssl.SSLContext | None,
        clock: Clock,
        gauge: Gauge,
    ) -> None:
        self._loop = loop
        self.name = name
        self._port = port
        self._tls = context
        self._clock = clock
        self._gauge = gauge
        self._pools: dict[tuple[str, int] | tuple[str, int, int, int], _Pool] = {}
        self._order: list[_Pool] = []
        """One for each address, the one that last worked first."""
        self._believed_until = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._waiting: dict[Exchange, _Start] = {}
        self._retired = False
        try:
            self._take(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
            self._believed_until = float("inf")
        except OSError:
            pass

    def _take(self, found: list[Any]) -> None:
        """What getaddrinfo found."""
        order: list[_Pool] = []
        for family, _, _, _, address in found:
            pool = self._pools.get(address)
            if pool is None:
                origin = Origin(self.name, self._port, family, address, self._tls)
                pool = self._pools[address] = _Pool(self._loop, origin, self._clock, self._gauge)
            order.append(pool)
        for address, pool in list(self._pools.items()):
            if pool not in order:
                pool.retire()
                if not pool.busy:
                    del self._pools[address]
        self._order = order

    def start(self, exchange: Exchange) -> None:
        if monotonic() > self._believed_until and self._looking is None:
            self._looking = self._loop.create_task(self._look_up())
        if not self._order:
            exchange.tag = None
            self._waiting[exchange] = _Start(exchange, exchange.on_end)
            return
        if len(self._order) > 1:
            self._start_on_any(_Start(exchange, exchange.on_end))
            return
        exchange.tag = self._order[0]
        self._order[0].start(exchange)

    def _start_on_any(self, start: _Start) -> None:
        start.left = self._order.copy()
        exchange = start.exchange

        def ended(exchange: Exchange) -> None:
            pool = exchange.tag
            if exchange.trouble is not None and exchange.start < 0 and not exchange.cancelled:
                if start.left:  # nothing was sent: another address may do better
                    exchange.trouble = None
                    exchange.tag = start.left.pop(0)
                    exchange.tag.start(exchange)
                    return
            elif pool in self._order and self._order[0] is not pool:
                self._order.remove(pool)
                self._order.insert(0, pool)
            start.on_end(exchange)

        exchange.on_end = ended
        exchange.tag = start.left.pop(0)
        exchange.tag.start(exchange)

    async def _look_up(self) -> None:
        trouble = None
        try:
            self._take(await self._loop.getaddrinfo(self.name, self._port, type=socket.SOCK_STREAM))
            self._believed_until = monotonic() + ADDRESSES_S
        except OSError:
            trouble = Trouble("NameNotFound", f"The name {self.name} has no address.", "network")
        finally:
            self._looking = None
        waiting, self._waiting = self._waiting, {}
        for start in waiting.values():
            if not self._order:
                start.exchange.trouble = trouble or Trouble(
                    "NameNotFound", f"The name {self.name} has no address.", "network"
                )
                start.on_end(start.exchange)
            else:
                self._start_on_any(start)

    def ended(self, exchange: Exchange) -> None:
        if exchange.tag is not None:
            exchange.tag.ended(exchange)

    def abort(self, exchange: Exchange, trouble: Trouble) -> None:
        """End it from our side; `on_end` is called before this returns."""
        exchange.cancelled = True
        if exchange.tag is not None:
            exchange.tag.abort(exchange, trouble)
        elif self._waiting.pop(exchange, None) is not None:
            exchange.trouble = trouble
            exchange.on_end(exchange)

    def pause(self, exchange: Exchange) -> None:
        exchange.tag.pause(exchange)

    def resume(self, exchange: Exchange) -> None:
        exchange.tag.resume(exchange)

    def sweep(self) -> None:
        for pool in self._order:
            pool.sweep(monotonic() - IDLE_S)

    def retire(self) -> None:
        for pool in self._pools.values():
            pool.retire()

    @property
    def open(self) -> int:
        return sum(pool.open for pool in self._pools.values())


class Hosts:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clock = Clock()
        self._gauge = Gauge()
        self._hosts: dict[HostKey, Host] = {}
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def get(self, scheme: str, name: str, port: int, verify: bool) -> Host:
        key = (scheme, name, port, verify)
        host = self._hosts.get(key)
        if host is None:
            context = self._context(verify) if scheme == "https" else None
            host = self._hosts[key] = Host(self._loop, name, port, context, self._clock, self._gauge)
        return host

    def _context(self, verify: bool) -> ssl.SSLContext:
        if verify not in self._contexts:
            self._contexts[verify] = tls.client_context(verify)
        return self._contexts[verify]

    def keep(self, used: set[HostKey]) -> None:
        """After a reload: let go of the hosts that nothing names any more."""
        for key, host in list(self._hosts.items()):
            if key not in used:
                host.retire()
                del self._hosts[key]

    def sweep(self) -> None:
        for host in self._hosts.values():
            host.sweep()

    @property
    def open(self) -> int:
        return sum(host.open for host in self._hosts.values())
