"""Connections to upstream servers: one `Host` for each scheme, name and port, shared by all provider keys.

They use the benchmark's HTTP client without its receive timestamps: the gateway measures in milliseconds, and the two
system calls of a timestamp are a tenth of the cost of a request here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from math import inf
from time import monotonic, monotonic_ns
from typing import Any

from penstock.wire import tls
from penstock.wire.clock import Clock
from penstock.wire.connection import Connection, Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats

HostKey = tuple[str, str, int, bool]
"""Scheme, name, port, and whether the certificate is verified."""

Address = tuple[str, int] | tuple[str, int, int, int]

IDLE_NS = 30_000_000_000
"""How long an unused connection is kept: less than the idle limits of common proxies and firewalls."""
QUIET_NS = 1_000_000_000
"""Time without data after which a connection is checked for a reset."""
DNS_CACHE_S = 30.0
"""How long resolved addresses are used without a new lookup."""
_NO_ADDRESS = (OSError, UnicodeError)
"""Exceptions of a resolver for an unknown name, or for an invalid one (`a..b`)."""


class _Pool(Pool):
    """The connections to one address of a host."""

    def __init__(self, loop: asyncio.AbstractEventLoop, origin: Origin, clock: Clock, wire_stats: WireStats) -> None:
        super().__init__(loop, origin, clock, wire_stats, stamps=False)
        self.failed = False
        """True if the last connection could not be opened."""

    def _connection(self) -> Connection:
        connection = super()._connection()
        connection.keep_alive()
        return connection

    def sweep(self, before: int) -> None:
        """Close connections that have been idle since before that time in ns."""
        # The most recently used connection is reused first, so the oldest are at the front.
        for connection in list(self._idle):
            if connection.idle_since > before:
                break
            connection.close()

    def retire(self) -> None:
        """Finish running exchanges, and keep no connection after them."""
        self._reuse = False
        self.close()

    def revive(self) -> None:
        """Keep connections again: the host has this address again."""
        self._reuse = True

    @property
    def open(self) -> int:
        return len(self._idle) + len(self._busy)


class _ConnectState:
    """The state of an exchange: the address that is being tried, the untried ones, and the callback for its end."""

    def __init__(self, on_end: Callable[[Exchange], None], now: float, connect_s: float) -> None:
        self.on_end = on_end
        self._connect_s = connect_s
        self.deadline = self.due = now + connect_s
        """The deadlines for connecting to any address, and to the one that is being tried."""
        self.pool: _Pool | None = None
        """None while the name is being resolved."""
        self.untried: list[_Pool] = []
        self._retries = 0

    def extend_after_retry(self, exchange: Exchange, now: float) -> None:
        """Restart the connect timeout when the pool resends a request after the server had closed its connection."""
        if exchange.retries > self._retries:
            self._retries = exchange.retries
            self.due = self.deadline = now + self._connect_s


class Host:
    """An upstream server with all its addresses. Stores a `_ConnectState` in `exchange.tag` of each exchange."""

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
        """The pools of the current addresses, in the order in which they are tried: failed ones last."""
        self._addresses_expire_at = 0.0
        self._lookup: asyncio.Task[None] | None = None
        self._waiting: dict[Exchange, None] = {}
        self._retired = False
        with contextlib.suppress(*_NO_ADDRESS):
            self._update_addresses(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
            self._addresses_expire_at = inf

    def _update_addresses(self, infos: list[Any]) -> None:
        """Take over the addresses from a result of getaddrinfo. Known addresses keep their order, because most resolvers
        rotate theirs with every answer."""
        current = {address: self._pool(family, address) for family, _, _, _, address in infos}
        for address, pool in list(self._pools.items()):
            if address not in current:
                pool.retire()
                if not pool.busy:
                    del self._pools[address]
        position = {pool: number for number, pool in enumerate(self._order)}
        self._order = sorted(current.values(), key=lambda pool: (pool.failed, position.get(pool, len(position))))

    def _pool(self, family: int, address: Address) -> _Pool:
        pool = self._pools.get(address)
        if pool is None:
            origin = Origin(self.name, self._port, family, address, self._tls)
            pool = self._pools[address] = _Pool(self._loop, origin, self._clock, self._wire_stats)
        if self._retired:  # a request that began before the reload still resolves the name
            pool.retire()
        else:
            pool.revive()
        return pool

    def start(self, exchange: Exchange, connect_s: float | None) -> None:
        """Start an exchange. `connect_s` limits the time until it is sent, over all addresses. Each address gets a share
        of it: call `try_next_address` when `connect_due` has passed."""
        now = monotonic()
        if now > self._addresses_expire_at and self._lookup is None:
            self._lookup = self._loop.create_task(self._look_up())
        exchange.tag = _ConnectState(exchange.on_end, now, inf if connect_s is None else connect_s)
        exchange.on_end = self._on_end
        if self._order:
            exchange.tag.untried = self._order.copy()
            self._try_next(exchange, now)
        else:
            self._waiting[exchange] = None

    def _try_next(self, exchange: Exchange, now: float) -> None:
        state: _ConnectState = exchange.tag
        if exchange.retries:
            state.extend_after_retry(exchange, now)
        state.due = now + (state.deadline - now) / len(state.untried)
        state.pool = state.untried.pop(0)
        state.pool.start(exchange)

    def _on_end(self, exchange: Exchange) -> None:
        state: _ConnectState = exchange.tag
        pool = state.pool
        if pool is not None:
            if exchange.start >= 0:
                pool.failed = False
            elif exchange.error is not None and not exchange.cancelled:
                self._move_last(pool)
                if state.untried:  # nothing was sent: try another address
                    exchange.error = None
                    exchange.end = -1
                    self._try_next(exchange, monotonic())
                    return
        state.on_end(exchange)

    def _move_last(self, pool: _Pool) -> None:
        pool.failed = True
        if pool in self._order:
            self._order.remove(pool)
            self._order.append(pool)

    async def _look_up(self) -> None:
        try:
            self._update_addresses(await self._loop.getaddrinfo(self.name, self._port, type=socket.SOCK_STREAM))
            self._addresses_expire_at = monotonic() + DNS_CACHE_S
        except _NO_ADDRESS:
            pass  # keep the previous addresses, if any
        finally:
            self._lookup = None
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting:
            if self._order:
                exchange.tag.untried = self._order.copy()
                self._try_next(exchange, monotonic())
            else:
                exchange.error = WireError("NameNotFound", f"The name {self.name} has no address.", "network")
                exchange.on_end(exchange)

    def connect_due(self, exchange: Exchange) -> float:
        state: _ConnectState = exchange.tag
        if exchange.start >= 0:
            return inf
        state.extend_after_retry(exchange, monotonic())
        return state.due

    def try_next_address(self, exchange: Exchange, error: WireError) -> None:
        """Try the next address after a connect timeout, or end with `error` if there is none."""
        if exchange.tag.pool is not None:
            exchange.tag.pool.abort(exchange, error)
        else:
            self.abort(exchange, error)

    def ended(self, exchange: Exchange) -> None:
        if exchange.tag.pool is not None:
            exchange.tag.pool.ended(exchange)

    def abort(self, exchange: Exchange, error: WireError) -> None:
        """End an exchange; `on_end` is called before this returns."""
        exchange.cancelled = True
        if exchange.tag.pool is not None:
            exchange.tag.pool.abort(exchange, error)
        elif exchange in self._waiting:
            del self._waiting[exchange]
            exchange.error = error
            exchange.on_end(exchange)

    def pause(self, exchange: Exchange) -> None:
        exchange.tag.pool.pause(exchange)

    def resume(self, exchange: Exchange) -> None:
        exchange.tag.pool.resume(exchange)

    def sweep(self) -> None:
        for pool in self._order:
            pool.sweep(monotonic_ns() - IDLE_NS)

    def check_resets(self) -> None:
        """End exchanges whose connection was reset without an event. Call this about every second."""
        for pool in self._pools.values():
            pool.check_resets(monotonic_ns() - QUIET_NS)

    def retire(self) -> None:
        """Keep no idle connections: the resources no longer name this host, but running requests may still use it."""
        self._retired = True
        for pool in self._pools.values():
            pool.retire()

    @property
    def open(self) -> int:
        return sum(pool.open for pool in self._pools.values())


class Hosts:
    """All upstream hosts of a worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clock = Clock()
        self._wire_stats = WireStats()
        self._hosts: dict[HostKey, Host] = {}
        self._retired_hosts: list[Host] = []
        """Retired hosts with running requests."""
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
        """Retire the hosts that are no longer used after a reload."""
        for key, host in list(self._hosts.items()):
            if key not in used:
                host.retire()
                del self._hosts[key]
                self._retired_hosts.append(host)

    def sweep(self) -> None:
        self._retired_hosts = [host for host in self._retired_hosts if host.open]
        for host in self._hosts.values():
            host.sweep()

    def check_resets(self) -> None:
        for host in (*self._hosts.values(), *self._retired_hosts):
            host.check_resets()

    @property
    def open(self) -> int:
        return sum(host.open for host in (*self._hosts.values(), *self._retired_hosts))
