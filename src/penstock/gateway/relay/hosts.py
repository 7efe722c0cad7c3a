"""Connections to the servers that providers live on: one `Host` for each scheme, name and port, whoever's key is used.

The wire is the benchmark's, without its receive stamps: a gateway measures in milliseconds, and the two system calls
that a stamp costs are a tenth of what a request costs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import Any

from penstock.wire import tls
from penstock.wire.clock import Clock
from penstock.wire.connection import Connection, Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats

__all__ = ["Host", "HostKey", "Hosts"]

HostKey = tuple[str, str, int, bool]
"""Scheme, name, port, whether its certificate is checked."""

Address = tuple[str, int] | tuple[str, int, int, int]

IDLE_S = 30.0
"""How long an unused connection is kept: below the idle limits of the usual proxies and firewalls on the way."""
QUIET_NS = 1_000_000_000
"""How long a connection has heard nothing when somebody looks after it."""
ADDRESSES_S = 30.0
"""How long the addresses of a name are believed."""
_NO_ADDRESS = (OSError, UnicodeError)
"""What a resolver raises for a name that it cannot find, or that can be no name at all (`a..b`)."""


class _Pool(Pool):
    def __init__(self, loop: asyncio.AbstractEventLoop, origin: Origin, clock: Clock, wire_stats: WireStats) -> None:
        super().__init__(loop, origin, clock, wire_stats, stamps=False)
        self._idle_since: dict[Connection, float] = {}
        self.failed = False
        """The last connection to it could not be opened."""

    def _connection(self) -> Connection:
        made = super()._connection()
        made.keep_alive()
        return made

    def _on_idle(self, connection: Connection) -> None:
        self._idle_since[connection] = monotonic()
        super()._on_idle(connection)

    def _on_closed(self, connection: Connection, error: WireError | None) -> None:
        self._idle_since.pop(connection, None)
        super()._on_closed(connection, error)

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

    def revive(self) -> None:
        """Its address is one of the host's again."""
        self._reuse = True

    @property
    def open(self) -> int:
        return len(self._idle) + len(self._busy)


class _Trip:
    """An exchange on its way: the address that it tries, those that are left, and who waits for its end."""

    __slots__ = ("_allowed_s", "_retries", "deadline", "due", "left", "on_end", "pool")

    def __init__(self, on_end: Callable[[Exchange], None], now: float, allowed_s: float) -> None:
        self.on_end = on_end
        self._allowed_s = allowed_s
        self.deadline = self.due = now + allowed_s
        """When one of the addresses must be connected, and when this one must be."""
        self.pool: _Pool | None = None
        """None while the name is looked up."""
        self.left: list[_Pool] = []
        self._retries = 0

    def renew(self, exchange: Exchange, now: float) -> None:
        """The pool sends again what it sent on a connection that the server had closed: that has its own time."""
        if exchange.retries > self._retries:
            self._retries = exchange.retries
            self.due = self.deadline = now + self._allowed_s


class Host:
    """`exchange.tag` is the host's: the `_Trip` of the exchange."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        port: int,
        context: ssl.SSLContext | None,
        clock: Clock,
        wire_stats: WireStats,
    ) -> None:
        self._loop = loop
        self.name = name
        self._port = port
        self._tls = context
        self._clock = clock
        self._wire_stats = wire_stats
        self._pools: dict[Address, _Pool] = {}
        self._order: list[_Pool] = []
        """One for each address, those that failed last behind the others."""
        self._believed_until = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._waiting: dict[Exchange, None] = {}
        self._retired = False
        with contextlib.suppress(*_NO_ADDRESS):
            self._take(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
            self._believed_until = float("inf")

    def _take(self, found: list[Any]) -> None:
        """What getaddrinfo found. What is known of an address counts more than the resolver's order, which most of them
        turn round with every answer."""
        named = {address: self._pool(family, address) for family, _, _, _, address in found}
        for address, pool in list(self._pools.items()):
            if address not in named:
                pool.retire()
                if not pool.busy:
                    del self._pools[address]
        place = {pool: number for number, pool in enumerate(self._order)}
        self._order = sorted(named.values(), key=lambda pool: (pool.failed, place.get(pool, len(place))))

    def _pool(self, family: int, address: Address) -> _Pool:
        pool = self._pools.get(address)
        if pool is None:
            origin = Origin(self.name, self._port, family, address, self._tls)
            pool = self._pools[address] = _Pool(self._loop, origin, self._clock, self._wire_stats)
        if self._retired:  # for requests that began before
            pool.retire()
        else:
            pool.revive()
        return pool

    def start(self, exchange: Exchange, connect_s: float | None) -> None:
        """`connect_s`: how long it may take until it is sent, on whichever address. `connect_due` is when the address
        that is tried now has had its share; `move_on` is to be called then."""
        now = monotonic()
        if now > self._believed_until and self._looking is None:
            self._looking = self._loop.create_task(self._look_up())
        exchange.tag = _Trip(exchange.on_end, now, float("inf") if connect_s is None else connect_s)
        exchange.on_end = self._on_end
        if self._order:
            self._try_all(exchange, now)
        else:
            self._waiting[exchange] = None

    def _try_all(self, exchange: Exchange, now: float) -> None:
        trip: _Trip = exchange.tag
        trip.left = self._order.copy()
        self._try_next(exchange, now)

    def _try_next(self, exchange: Exchange, now: float) -> None:
        trip: _Trip = exchange.tag
        trip.renew(exchange, now)
        trip.due = now + (trip.deadline - now) / len(trip.left)
        trip.pool = trip.left.pop(0)
        trip.pool.start(exchange)

    def _on_end(self, exchange: Exchange) -> None:
        trip: _Trip = exchange.tag
        pool = trip.pool
        if pool is not None:
            if exchange.start >= 0:
                pool.failed = False
            elif exchange.error is not None and not exchange.cancelled:
                self._put_last(pool)
                if trip.left:  # nothing was sent: another address may do better
                    exchange.error = None
                    exchange.end = -1
                    self._try_next(exchange, monotonic())
                    return
        trip.on_end(exchange)

    def _put_last(self, pool: _Pool) -> None:
        pool.failed = True
        if pool in self._order:
            self._order.remove(pool)
            self._order.append(pool)

    async def _look_up(self) -> None:
        try:
            self._take(await self._loop.getaddrinfo(self.name, self._port, type=socket.SOCK_STREAM))
            self._believed_until = monotonic() + ADDRESSES_S
        except _NO_ADDRESS:
            pass  # the addresses of before, if there were any, are as good as any guess
        finally:
            self._looking = None
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting:
            if self._order:
                self._try_all(exchange, monotonic())
            else:
                exchange.error = WireError("NameNotFound", f"The name {self.name} has no address.", "network")
                exchange.on_end(exchange)

    def connect_due(self, exchange: Exchange) -> float:
        trip: _Trip = exchange.tag
        if exchange.start >= 0:
            return float("inf")
        trip.renew(exchange, monotonic())
        return trip.due

    def move_on(self, exchange: Exchange, trouble: WireError) -> None:
        """This address took too long: try the next one, or end with `trouble` when there is none."""
        if exchange.tag.pool is not None:
            exchange.tag.pool.abort(exchange, trouble)
        else:
            self.abort(exchange, trouble)

    def ended(self, exchange: Exchange) -> None:
        if exchange.tag.pool is not None:
            exchange.tag.pool.ended(exchange)

    def abort(self, exchange: Exchange, trouble: WireError) -> None:
        """End it from our side; `on_end` is called before this returns."""
        exchange.cancelled = True
        if exchange.tag.pool is not None:
            exchange.tag.pool.abort(exchange, trouble)
        elif exchange in self._waiting:
            del self._waiting[exchange]
            exchange.error = trouble
            exchange.on_end(exchange)

    def pause(self, exchange: Exchange) -> None:
        exchange.tag.pool.pause(exchange)

    def resume(self, exchange: Exchange) -> None:
        exchange.tag.pool.resume(exchange)

    def sweep(self) -> None:
        for pool in self._order:
            pool.sweep(monotonic() - IDLE_S)

    def check_resets(self) -> None:
        """Notice connections that were reset without a word to us. Call this every second or so."""
        for pool in self._pools.values():
            pool.check_resets(monotonic_ns() - QUIET_NS)

    def retire(self) -> None:
        """Nothing names this host any more; requests that began before may still use it."""
        self._retired = True
        for pool in self._pools.values():
            pool.retire()

    @property
    def open(self) -> int:
        return sum(pool.open for pool in self._pools.values())


class Hosts:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clock = Clock()
        self._wire_stats = WireStats()
        self._hosts: dict[HostKey, Host] = {}
        self._leaving: list[Host] = []
        """Retired, with requests under way."""
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def get(self, scheme: str, name: str, port: int, verify: bool) -> Host:
        key = (scheme, name, port, verify)
        host = self._hosts.get(key)
        if host is None:
            context = self._context(verify) if scheme == "https" else None
            host = self._hosts[key] = Host(self._loop, name, port, context, self._clock, self._wire_stats)
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
                self._leaving.append(host)

    def sweep(self) -> None:
        self._leaving = [host for host in self._leaving if host.open]
        for host in self._hosts.values():
            host.sweep()

    def check_resets(self) -> None:
        for host in (*self._hosts.values(), *self._leaving):
            host.check_resets()

    @property
    def open(self) -> int:
        return sum(host.open for host in (*self._hosts.values(), *self._leaving))
