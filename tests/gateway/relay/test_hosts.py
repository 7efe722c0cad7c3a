"""Names with several addresses: those that lead nowhere, those that change, and hosts that are let go meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from penstock.gateway.relay.hosts import Host, Hosts
from penstock.gateway.relay.upstream_attempt import Timeouts, UpstreamAttempt
from penstock.wire.exchange import Exchange

GOOD, OTHER = "127.0.0.1", "127.0.0.2"
NAME = "provider.example"
REQUEST = b"POST / HTTP/1.1\r\nHost: provider.example\r\nContent-Length: 0\r\n\r\n"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers on one address; `paused` holds its answers back."""

    def __init__(self) -> None:
        self.connections = 0
        self.paused = asyncio.Event()
        self.paused.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self.paused.wait()
                writer.write(REPLY)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()


class Owner:
    """A request that is only interested in its end."""

    route: Any = "responses"
    stream: Any = None
    caller_gone = False

    def watch(self) -> None: ...

    begin_stream: Any = None
    block: Any = None


class Scene:
    def __init__(self, port: int) -> None:
        self.port = port
        self.loop: Any = asyncio.get_running_loop()
        self.answer: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.loop.getaddrinfo = self._resolve
        self.hosts = Hosts(self.loop)
        self.host = self.hosts.get("http", NAME, port, True)

    async def _resolve(self, name: str, port: int, **_: Any) -> list[Any]:
        await self.hold.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answer]

    def attempt(self, connect_s: float | None = 0.4) -> UpstreamAttempt:
        target: Any = type("Target", (), {"host": self.host})()
        return UpstreamAttempt(self.loop, Owner(), target, REQUEST, Timeouts(connect_s, None, None))

    async def ask(self) -> Exchange:
        """Without anybody who looks at the clock: an address that leads nowhere would be waited for without end."""
        attempt = self.attempt()
        await asyncio.wait_for(attempt.run(), 5)
        return attempt.exchange

    async def ask_with_time(self) -> Exchange:
        attempt = self.attempt()
        running = asyncio.ensure_future(attempt.run())
        while not (await asyncio.wait([running], timeout=0.02))[0]:
            attempt.tick(self.loop.time())
        return attempt.exchange

    async def refreshed(self) -> None:
        """As when the addresses are no longer believed."""
        await self.host._look_up()


@pytest.fixture
def port() -> Iterator[int]:
    """Free on both addresses."""
    while True:
        with socket.create_server((GOOD, 0)) as first:
            number = first.getsockname()[1]
            try:
                socket.create_server((OTHER, number)).close()
            except OSError:
                continue
        yield number
        return


@pytest.fixture
def hole(port: int) -> Iterator[None]:
    """The other address takes no connection and refuses none: its queue is full."""
    with socket.socket() as listener:
        listener.bind((OTHER, port))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex((OTHER, port))
        yield
        for one in waiting:
            one.close()


def play(port: int, script: Callable[[Scene, dict[str, Server]], Awaitable[None]], *addresses: str) -> None:
    async def run() -> None:
        servers = {address: Server() for address in addresses}
        made = [await asyncio.start_server(one.serve, address, port) for address, one in servers.items()]
        await script(Scene(port), servers)
        for server in made:
            server.close()

    asyncio.run(run())


@pytest.mark.usefixtures("hole")
def test_an_address_that_leads_nowhere_costs_its_share_once(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [OTHER, GOOD]
        first = await scene.ask_with_time()
        assert (first.status, first.error) == (200, None)
        # it is known now, also when the resolver names it first again
        assert (await scene.ask()).status == 200
        await scene.refreshed()
        assert [(await scene.ask()).status for _ in range(3)] == [200] * 3

    play(port, script, GOOD)


@pytest.mark.usefixtures("hole")
def test_when_all_of_them_lead_nowhere_the_time_is_not_longer(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [OTHER]
        exchange = await scene.ask_with_time()
        assert exchange.error is not None
        assert exchange.error.type == "TimedOut"

    play(port, script)


@pytest.mark.parametrize("named", [True, False])
def test_a_reset_that_nobody_told_us_of_is_found(port: int, named: bool) -> None:
    """Also on a host that a reload has let go of meanwhile."""

    async def script(scene: Scene, _servers: dict[str, Server]) -> None:
        with socket.create_server((GOOD, port)) as listener:
            scene.answer = [GOOD]
            attempt = scene.attempt()
            running = asyncio.ensure_future(attempt.run())
            await asyncio.sleep(0.1)
            taken, _ = listener.accept()
            if not named:
                scene.hosts.keep(set())
            scene.host.pause(attempt.exchange)  # as libuv does after an error: it watches no more
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            taken.close()
            await asyncio.sleep(0.1)
            assert not running.done()
            scene.hosts.check_resets()
            await asyncio.wait_for(running, 5)
        assert attempt.exchange.error is not None
        assert attempt.exchange.error.type == "ConnectionLost"
        scene.hosts.sweep()
        assert scene.hosts.open == 0

    play(port, script)


def test_connecting_has_no_more_time_than_the_request() -> None:
    assert Timeouts(5.0, 1.0, None).connect_s == 1.0
    assert Timeouts(5.0, None, 2.0).connect_s == 2.0
    assert Timeouts(None, None, None).connect_s is None


@pytest.mark.usefixtures("hole")
def test_a_caller_that_gives_up_says_nothing_about_an_address(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [OTHER, GOOD]
        attempt = scene.attempt()
        running = asyncio.ensure_future(attempt.run())
        while not scene.host._order:
            await asyncio.sleep(0.01)
        before = list(scene.host._order)
        running.cancel()
        await asyncio.wait([running])
        assert scene.host._order == before

    play(port, script, GOOD)


def test_an_address_that_comes_back_keeps_its_connections_again(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [GOOD]
        await scene.ask()
        servers[GOOD].paused.clear()
        busy = asyncio.ensure_future(scene.ask())  # so that its pool is not forgotten
        await asyncio.sleep(0.05)
        scene.answer = [OTHER]
        await scene.refreshed()
        scene.answer = [GOOD]
        await scene.refreshed()
        servers[GOOD].paused.set()
        await busy
        before = servers[GOOD].connections
        for _ in range(4):
            assert (await scene.ask()).status == 200
        assert servers[GOOD].connections <= before + 1

    play(port, script, GOOD, OTHER)


def test_the_order_is_kept_whatever_the_resolver_s_is(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [GOOD, OTHER]
        await scene.ask()
        for turned in ([OTHER, GOOD], [GOOD, OTHER], [OTHER, GOOD]):
            scene.answer = turned
            await scene.refreshed()
            await scene.ask()
        assert servers[OTHER].connections == 0

    play(port, script, GOOD, OTHER)


def test_a_host_let_go_while_it_is_looked_up_keeps_nothing(port: int) -> None:
    async def script(scene: Scene, servers: dict[str, Server]) -> None:
        scene.answer = [GOOD]
        scene.hold.clear()
        asked = asyncio.ensure_future(scene.ask())
        await asyncio.sleep(0)
        scene.hosts.keep(set())
        scene.hold.set()
        assert (await asked).status == 200
        assert scene.host.open == 0

    play(port, script, GOOD)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".example", "no-such-name.invalid"])
def test_what_can_be_no_name_has_no_address(name: str) -> None:
    async def script() -> Exchange:
        loop: Any = asyncio.get_running_loop()
        host: Host = Hosts(loop).get("http", name, 80, True)
        ended = loop.create_future()
        exchange = Exchange(REQUEST, lambda _exchange: ended.set_result(None))
        host.start(exchange, 5.0)
        await asyncio.wait_for(ended, 10)
        return exchange

    exchange = uvloop.run(script())
    assert exchange.error is not None
    assert exchange.error.type == "NameNotFound"
