"""Hosts with several addresses: unreachable and changing ones, and hosts that are retired meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from penstock.gateway.upstream.attempt import Timeouts, UpstreamAttempt
from penstock.gateway.upstream.hosts import Host, Hosts
from penstock.wire.exchange import Exchange
from support.ports import unused_port

GOOD, OTHER = "127.0.0.1", "127.0.0.2"
NAME = "provider.example"
REQUEST = b"POST / HTTP/1.1\r\nHost: provider.example\r\nContent-Length: 0\r\n\r\n"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A server on one address. It waits for `resumed` before each reply."""

    def __init__(self) -> None:
        self.connections = 0
        self.waiting = 0
        """The number of requests that wait for their reply."""
        self.resumed = asyncio.Event()
        self.resumed.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.waiting += 1
                await self.resumed.wait()
                self.waiting -= 1
                writer.write(REPLY)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()


class Receiver:
    """Takes the bytes of a reply."""

    max_bytes = float("inf")
    complete = False

    def feed(self, data: bytes) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class HostFixture:
    """A host whose name resolves to `addresses`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.loop: Any = asyncio.get_running_loop()
        self.addresses: list[str] = []
        self.resolve = asyncio.Event()
        self.resolve.set()
        self.loop.getaddrinfo = self._resolve
        self.hosts = Hosts(self.loop)
        self.host = self.hosts.get("http", NAME, port, True)

    async def _resolve(self, name: str, port: int, **_: Any) -> list[Any]:
        await self.resolve.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]

    def make_attempt(self, connect_s: float | None = 0.4) -> UpstreamAttempt:
        target: Any = type("Target", (), {"host": self.host})()
        return UpstreamAttempt(self.loop, target, REQUEST, Timeouts(connect_s, None, None), lambda _: Receiver())

    async def send(self) -> Exchange:
        """Send a request without checking timeouts: it would wait for an unreachable address for ever."""
        attempt = self.make_attempt()
        await asyncio.wait_for(attempt.run(), 60)
        return attempt.exchange

    async def send_with_timeouts(self) -> Exchange:
        attempt = self.make_attempt()
        running = asyncio.ensure_future(attempt.run())
        while not (await asyncio.wait([running], timeout=0.02))[0]:
            attempt.tick(self.loop.time())
        return attempt.exchange

    async def resolve_again(self) -> None:
        """Resolve the name again, as after the cache time."""
        await self.host._look_up()


@pytest.fixture
def port() -> int:
    return unused_port(GOOD, OTHER)


@pytest.fixture
def full_backlog(port: int) -> Iterator[None]:
    """OTHER neither accepts nor refuses connections: its backlog is full."""
    with socket.socket() as listener:
        listener.bind((OTHER, port))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex((OTHER, port))
        yield
        for client in waiting:
            client.close()


def run_script(port: int, script: Callable[[HostFixture, dict[str, Server]], Awaitable[None]], *addresses: str) -> None:
    async def run() -> None:
        servers = {address: Server() for address in addresses}
        listeners = [await asyncio.start_server(server.serve, address, port) for address, server in servers.items()]
        await script(HostFixture(port), servers)
        for listener in listeners:
            listener.close()

    asyncio.run(run())


@pytest.mark.usefixtures("full_backlog")
def test_unreachable_address_is_tried_last_after_one_timeout(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [OTHER, GOOD]
        first = await fixture.send_with_timeouts()
        assert (first.status, first.error) == (200, None)
        # the address is now tried last, even if the resolver returns it first again
        assert (await fixture.send()).status == 200
        await fixture.resolve_again()
        assert [(await fixture.send()).status for _ in range(3)] == [200] * 3

    run_script(port, script, GOOD)


@pytest.mark.usefixtures("full_backlog")
def test_only_unreachable_addresses_end_with_a_timeout(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [OTHER]
        exchange = await fixture.send_with_timeouts()
        assert exchange.error is not None
        assert exchange.error.type == "TimedOut"

    run_script(port, script)


@pytest.mark.parametrize("in_use", [True, False])
def test_check_resets_finds_a_reset_without_an_event(port: int, in_use: bool) -> None:
    """Also on a host that a reload has retired meanwhile."""

    async def script(fixture: HostFixture, _servers: dict[str, Server]) -> None:
        with socket.create_server((GOOD, port)) as listener:
            fixture.addresses = [GOOD]
            attempt = fixture.make_attempt()
            running = asyncio.ensure_future(attempt.run())
            await until(lambda: attempt.exchange.sent >= 0)
            taken, _ = listener.accept()
            if not in_use:
                fixture.hosts.keep(set())
            fixture.host.pause(attempt.exchange)  # libuv also stops reading after an error
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            taken.close()
            await asyncio.sleep(0.1)
            assert not running.done()
            fixture.hosts.check_resets()
            await asyncio.wait_for(running, 60)
        assert attempt.exchange.error is not None
        assert attempt.exchange.error.type == "ConnectionLost"
        fixture.hosts.sweep()
        assert fixture.hosts.open == 0

    run_script(port, script)


def test_connect_timeout_is_at_most_the_request_timeout() -> None:
    assert Timeouts(5.0, 1.0, None).connect_s == 1.0
    assert Timeouts(5.0, None, 2.0).connect_s == 2.0
    assert Timeouts(None, None, None).connect_s is None


@pytest.mark.usefixtures("full_backlog")
def test_cancelled_attempt_does_not_change_the_address_order(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [OTHER, GOOD]
        attempt = fixture.make_attempt()
        running = asyncio.ensure_future(attempt.run())
        await until(lambda: fixture.host._order)
        before = list(fixture.host._order)
        running.cancel()
        await asyncio.wait([running])
        assert fixture.host._order == before

    run_script(port, script, GOOD)


def test_readded_address_keeps_its_connections_again(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [GOOD]
        await fixture.send()
        servers[GOOD].resumed.clear()
        busy = asyncio.ensure_future(fixture.send())  # so that its pool is kept
        await until(lambda: servers[GOOD].waiting)
        fixture.addresses = [OTHER]
        await fixture.resolve_again()
        fixture.addresses = [GOOD]
        await fixture.resolve_again()
        servers[GOOD].resumed.set()
        await busy
        before = servers[GOOD].connections
        for _ in range(4):
            assert (await fixture.send()).status == 200
        assert servers[GOOD].connections <= before + 1

    run_script(port, script, GOOD, OTHER)


def test_address_order_does_not_follow_the_resolver(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [GOOD, OTHER]
        await fixture.send()
        for rotated in ([OTHER, GOOD], [GOOD, OTHER], [OTHER, GOOD]):
            fixture.addresses = rotated
            await fixture.resolve_again()
            await fixture.send()
        assert servers[OTHER].connections == 0

    run_script(port, script, GOOD, OTHER)


def test_host_retired_during_lookup_keeps_no_connection(port: int) -> None:
    async def script(fixture: HostFixture, servers: dict[str, Server]) -> None:
        fixture.addresses = [GOOD]
        fixture.resolve.clear()
        request = asyncio.ensure_future(fixture.send())
        await asyncio.sleep(0)
        fixture.hosts.keep(set())
        fixture.resolve.set()
        assert (await request).status == 200
        assert fixture.host.open == 0

    run_script(port, script, GOOD)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".example", "no-such-name.invalid"])
def test_unknown_or_invalid_name_ends_with_name_not_found(name: str) -> None:
    async def script() -> Exchange:
        loop: Any = asyncio.get_running_loop()
        host: Host = Hosts(loop).get("http", name, 80, True)
        ended = loop.create_future()
        exchange = Exchange(REQUEST, lambda _exchange: ended.set_result(None))
        host.start(exchange, 5.0)
        await asyncio.wait_for(ended, 60)
        return exchange

    exchange = uvloop.run(script())
    assert exchange.error is not None
    assert exchange.error.type == "NameNotFound"
