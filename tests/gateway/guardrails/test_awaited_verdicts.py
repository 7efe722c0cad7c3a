"""A verdict that takes time: the upstream is paused until it is known."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.dialects.sse_frames import Frame, Frames, joined
from penstock.gateway.guardrails import Blocked
from penstock.gateway.memory import Holding, MemoryBudget
from penstock.gateway.outbound.chain import ReplyChain
from penstock.gateway.outbound.filters import Inspect
from penstock.gateway.routes import BY_NAME
from penstock.gateway.upstream.attempt import Timeouts, UpstreamAttempt
from penstock.wire.exchange import Exchange


class Host:
    """A host without a network, which records whether it is paused."""

    def __init__(self, *, compressed: bool) -> None:
        self.exchange: Exchange | None = None
        self.paused = False
        self._compressor = zlib.compressobj(wbits=31) if compressed else None

    def start(self, exchange: Exchange, _connect_s: float | None) -> None:
        self.exchange = exchange

    def pause(self, _exchange: Exchange) -> None:
        self.paused = True

    def resume(self, _exchange: Exchange) -> None:
        self.paused = False

    def ended(self, _exchange: Exchange) -> None: ...

    def abort(self, exchange: Exchange, error: Any) -> None:
        exchange.error = error
        exchange.on_end(exchange)

    def connect_due(self, _exchange: Exchange) -> float:
        return float("inf")

    def receive(self, data: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        assert exchange.on_data is not None
        exchange.status = 200
        exchange.headers = [(b"content-type", b"text/event-stream")]
        if self._compressor is not None:
            exchange.headers.append((b"content-encoding", b"gzip"))
            data = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        exchange.pieces.append(data)
        exchange.on_data(exchange)


class RemoteGuard:
    """A guard that asks another service about each event."""

    holds = True
    waiting = False
    held_bytes = 0
    heartbeat_s = None
    max_event_bytes = 1 << 20

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.verdict: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def feed(self, frames: list[Frame], _pending: int) -> bytes | Awaitable[bytes]:
        data = b"".join(frame.raw for frame in frames)
        self.asked.append(data)
        return self._ask(data)

    async def _ask(self, data: bytes) -> bytes:
        await self.verdict
        return data

    async def finish(self, _rest: Frame | None) -> bytes:
        return b""


class Caller:
    """The caller: what was sent to it."""

    reads_only = False
    held_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def feed(self, frames: list[Frame]) -> list[Frame]:
        self.sent.append(joined(frames))
        return []

    def finish(self) -> list[Frame]:
        return []


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("blocked", [False, True])
def test_upstream_is_paused_while_a_verdict_is_awaited(blocked: bool, compressed: bool) -> None:
    async def run() -> None:
        host, caller, dialect = Host(compressed=compressed), Caller(), BY_NAME["chat"]
        target: Any = SimpleNamespace(host=host)
        guard: Any = RemoteGuard()
        policy: Any = SimpleNamespace(stream=lambda _: guard)
        blocks: list[Blocked] = []

        def receive(attempt: UpstreamAttempt) -> ReplyChain:
            splitter = Frames()
            inspect = Inspect(policy, dialect, splitter, lambda _: None, lambda _: None)
            holding = Holding(MemoryBudget(1 << 20))
            return ReplyChain([inspect, caller], splitter, dialect.stream_reader(), attempt, holding, blocks.append)

        timeouts = Timeouts(None, None, None)
        attempt = UpstreamAttempt(asyncio.get_running_loop(), target, b"", timeouts, receive)
        running = asyncio.create_task(attempt.run())
        await asyncio.sleep(0)
        host.receive(b"data: one\n\n")
        assert (host.paused, caller.sent) == (True, [])
        host.receive(b"data: two\n\n")  # was already on its way
        assert guard.asked == [b"data: one\n\n"]
        if blocked:
            guard.verdict.set_exception(Blocked("remote"))
        else:
            guard.verdict.set_result(b"")
        while host.paused:
            await asyncio.sleep(0)
        assert bool(blocks) == blocked
        assert caller.sent == ([] if blocked else [b"data: one\n\n", b"data: two\n\n"])
        assert host.exchange is not None
        host.exchange.on_end(host.exchange)
        await running

    asyncio.run(run())
