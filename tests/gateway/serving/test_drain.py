"""A worker that drains: its idle connections get a notice before they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from penstock.gateway.inbound.connection import CallerRequest, CallerServer
from penstock.gateway.outbound.response import CallerResponse, CommonHeaders
from penstock.gateway.serving import drain as drain_module
from penstock.gateway.serving.drain import drain

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Start = Callable[[asyncio.Event], "asyncio.Task[None]"]


def run(scenario: Callable[[Start, Open], Awaitable[None]]) -> None:
    async def main() -> None:
        common = CommonHeaders()

        async def handle(request: CallerRequest) -> bool:
            response = CallerResponse(common, request, (), "id")
            response.send(200, b"ok", {})
            return response.keeps_alive

        loop = asyncio.get_running_loop()
        callers = CallerServer(handle)
        listening = await loop.create_server(callers, "127.0.0.1", 0)
        config = SimpleNamespace(listen=SimpleNamespace(drain_s=600))
        app: Any = SimpleNamespace(common_headers=common, config=config, requests={}, cut_off=lambda: None)
        port = listening.sockets[0].getsockname()[1]

        def start(cut_off: asyncio.Event) -> asyncio.Task[None]:
            listening.close()
            return loop.create_task(drain(app, callers, cut_off))

        await asyncio.wait_for(scenario(start, lambda: asyncio.open_connection("127.0.0.1", port)), 60)

    uvloop.run(main())


@pytest.mark.parametrize("requests_before", [0, 1])
def test_request_on_an_idle_connection_is_answered_within_the_notice(
    requests_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "NOTICE_S", 3600)

    async def scenario(start: Start, connect: Open) -> None:
        reader, writer = await connect()
        for _ in range(requests_before):
            writer.write(POST)
            assert b"connection: close" not in await reader.readuntil(b"\r\n\r\nok")
        await asyncio.sleep(2 * drain_module.CHECK_S)  # the server has accepted the connection
        ended = start(asyncio.Event())
        await asyncio.sleep(4 * drain_module.CHECK_S)
        writer.write(POST)
        assert b"\r\nconnection: close\r\n" in await reader.read()  # until the server closes
        await ended

    run(scenario)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_idle_connection_is_closed_when_the_notice_or_the_drain_time_is_over(
    is_cut_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "NOTICE_S", 3600 if is_cut_off else 0.05)

    async def scenario(start: Start, connect: Open) -> None:
        reader, _ = await connect()
        await asyncio.sleep(2 * drain_module.CHECK_S)
        cut_off = asyncio.Event()
        ended = start(cut_off)
        if is_cut_off:
            await asyncio.sleep(4 * drain_module.CHECK_S)
            assert not reader.at_eof()
            assert not ended.done()
            cut_off.set()
        assert await reader.read() == b""
        await ended

    run(scenario)
