"""The HTTP server for callers: time limits, malformed requests, disconnects and backpressure, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from penstock.gateway.inbound import connection as connection_module
from penstock.gateway.inbound.connection import CallerConnection, CallerRequest, CallerServer, head_error
from penstock.gateway.outbound.response import CallerResponse, CommonHeaders

POST = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """A server whose handler runs `serve`, which can be replaced."""

    def __init__(self) -> None:
        self.common = CommonHeaders()
        self.serve: Callable[[CallerRequest], Awaitable[bytes]] = self.read
        self.callers: CallerServer
        self.port = 0

    async def read(self, request: CallerRequest) -> bytes:
        return await request.content.read()

    async def handle(self, request: CallerRequest) -> bool:
        response = CallerResponse(self.common, request, ("x-request-id",), "id")
        error = head_error(request.headers)
        if error is not None:
            response.send(error.status, error.body(), {})
        else:
            response.send(200, await self.serve(request), {})
        return response.keeps_alive

    async def open(self) -> Pair:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Server]:
    server = Server()
    server.callers = CallerServer(server.handle)
    listening = await asyncio.get_running_loop().create_server(server.callers, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.callers.shutdown(0.1)


def run(scenario: Callable[[Server], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with running() as server:
            return await asyncio.wait_for(scenario(server), 60)

    return uvloop.run(main())


async def ask(server: Server, *parts: bytes) -> bytes:
    """Send a request in parts and return all bytes until the server closes the connection, or until its first reply."""
    reader, writer = await server.open()
    for part in parts:
        writer.write(part)
        await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    writer.close()
    return head + body


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Host: y\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab",
        POST + b"A: " + b"x" * 100_000 + b"\r\n\r\n",
        POST + b"".join(b"A%d: x\r\n" % number for number in range(2000)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        POST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 2\r\n\r\nab",
        POST + b"authorization: Bearer a\r\nAUTHORIZATION: Bearer a\r\nContent-Length: 2\r\n\r\nab",
    ],
)
def test_request_that_can_be_understood_in_two_ways_is_400_with_the_json_envelope(request_bytes: bytes) -> None:
    reply = run(lambda server: ask(server, request_bytes))
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nserver:" not in reply.lower()
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("coding", "status"), [(b"gzip, chunked", 501), (b"chunked, chunked", 400), (b"chunked", 200), (b"CHUNKED", 200)]
)
def test_only_chunked_transfer_encoding_is_supported(coding: bytes, status: int) -> None:
    reply = run(lambda server: ask(server, POST + b"Transfer-Encoding: %b\r\n\r\n2\r\nab\r\n0\r\n\r\n" % coding))
    assert reply.startswith(b"HTTP/1.1 %d " % status)


def test_http_1_0_is_answered_and_its_connection_closed() -> None:
    async def scenario(server: Server) -> bytes:
        reader, writer = await server.open()
        writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab")
        return await reader.read()

    reply = run(scenario)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b"connection: close\r\n\r\nab")


@pytest.mark.parametrize("start", [b"", b"POST / HT", POST])
def test_head_that_does_not_arrive_in_time_closes_the_connection(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.05)

    async def scenario(server: Server) -> bytes:
        reader, writer = await server.open()
        writer.write(start)
        return await reader.read()

    assert run(scenario) == b""


@pytest.mark.parametrize("start", [b"P", POST])
def test_time_for_a_later_head_begins_with_its_first_byte(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection may stay idle for longer than a head may take."""
    monkeypatch.setattr(connection_module, "HEAD_S", 0.2)

    async def scenario(server: Server) -> tuple[bytes, bytes]:
        reader, writer = await server.open()
        request = POST + b"Content-Length: 2\r\n\r\nab"
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nab")
        await asyncio.sleep(0.5)  # idle
        writer.write(request)
        reply = await reader.readuntil(b"\r\n\r\nab")
        writer.write(start)
        return reply, await reader.read()

    reply, rest = run(scenario)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert rest == b""


def test_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.1)

    async def scenario(server: Server) -> bytes:
        reader, writer = await server.open()
        writer.write(POST + b"Content-Length: 3\r\n\r\n")
        for byte in b"abc":
            await asyncio.sleep(0.1)
            writer.write(bytes([byte]))
        return await reader.readuntil(b"abc")

    assert run(scenario).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("pipelined", [b"", POST, POST + b"Content-Length: 1000\r\n\r\nab"])
def test_disconnect_is_reported_while_the_handler_runs(how: str, pipelined: bytes) -> None:
    async def scenario(server: Server) -> None:
        started, left = asyncio.Event(), asyncio.Event()

        async def serve(request: CallerRequest) -> bytes:
            request.connection.on_disconnect = left.set
            started.set()
            await left.wait()
            return b""

        server.serve = serve
        _, writer = await server.open()
        writer.write(POST + b"Content-Length: 2\r\n\r\nab" + pipelined)
        await started.wait()
        if how == "close":
            writer.close()
        elif how == "half-close":
            writer.write_eof()
        else:
            writer.transport.abort()
        await left.wait()

    run(scenario)


def test_caller_that_does_not_read_is_reported_as_full_and_then_as_writable() -> None:
    async def scenario(server: Server) -> None:
        full, read_on = asyncio.Event(), asyncio.Event()

        async def serve(request: CallerRequest) -> bytes:
            stream = CallerResponse(server.common, request, ("x-request-id",), "id").begin_stream(200, {})
            while not stream.full:
                stream.send(b"x" * 65536)
                await asyncio.sleep(0)
            full.set()
            writable = asyncio.get_running_loop().create_future()
            stream.wait_until_writable(lambda: writable.set_result(None))
            await writable
            assert not stream.full
            stream.close()
            read_on.set()
            return b""

        server.serve = serve
        reader, writer = await server.open()
        writer.write(POST + b"Content-Length: 0\r\n\r\n")
        await full.wait()
        received = await reader.readuntil(b"\r\n\r\n")
        while not read_on.is_set():
            received = await reader.read(1 << 20)
        assert received
        writer.close()

    run(scenario)


def test_replies_ask_callers_to_close_while_the_worker_drains() -> None:
    async def scenario(server: Server) -> bytes:
        server.common.draining = True
        reader, writer = await server.open()
        writer.write(POST + b"Content-Length: 2\r\n\r\nab")
        return await reader.read()  # until the server closes

    assert b"\r\nconnection: close\r\n" in run(scenario)


def test_broken_chunks_after_a_valid_body_are_an_error() -> None:
    """The body is complete JSON, but its last chunk is not: another parser may see more of it."""

    async def scenario(server: Server) -> list[bool]:
        failed: list[bool] = []
        started, done = asyncio.Event(), asyncio.Event()

        async def serve(request: CallerRequest) -> bytes:
            started.set()
            try:
                await request.content.read()
                failed.append(request.content.exception() is not None)
            except Exception:
                failed.append(True)
            done.set()
            return b""

        server.serve = serve
        for end in (b"\r\nZ\r\n\r\n", b"xx0\r\n\r\n", b"\r\n-1\r\n\r\n"):
            done.clear()
            started.clear()
            _, writer = await server.open()
            writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}")
            await started.wait()
            writer.write(end)
            await done.wait()
            writer.close()
        return failed

    assert run(scenario) == [True, True, True]


def test_pipelined_requests_are_answered_in_order_until_the_caller_disconnects() -> None:
    async def scenario(server: Server) -> tuple[list[bytes], bytes]:
        served: list[bytes] = []
        left = asyncio.Event()

        async def serve(request: CallerRequest) -> bytes:
            body = await request.content.read()
            served.append(body)
            if body == b"3":
                request.connection.on_disconnect = left.set
                writer.write_eof()
                await left.wait()
            return b"reply to " + body

        server.serve = serve
        reader, writer = await server.open()
        writer.write(b"".join(POST + b"Content-Length: 1\r\n\r\n%d" % number for number in range(1, 6)))
        return served, await reader.read()

    served, received = run(scenario)
    assert served == [b"1", b"2", b"3"]
    assert received.count(b"HTTP/1.1 200 ") >= 2
    assert received.index(b"reply to 1") < received.index(b"reply to 2")


@pytest.mark.parametrize("end", [b"", POST + b"Content-Length: 2\r\n\r\ncd"])
def test_body_after_an_upgrade_is_a_body_and_the_next_request_is_answered(end: bytes) -> None:
    async def scenario(server: Server) -> bytes:
        reader, writer = await server.open()
        writer.write(POST + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nab" + end)
        received = await reader.readuntil(b"\r\n\r\nab")
        if end:
            received += await reader.readuntil(b"\r\n\r\ncd")
        return received

    assert run(scenario).count(b"HTTP/1.1 200 ") == 1 + (end != b"")


@pytest.mark.parametrize("trailer", [b"Authorization: Bearer b", b"X-Request-Id: b", b"X-Api-Key: b\r\nX-Other: c"])
def test_trailers_never_become_headers(trailer: bytes) -> None:
    async def scenario(server: Server) -> tuple[bytes, list[list[str]]]:
        seen: list[list[str]] = []

        async def serve(request: CallerRequest) -> bytes:
            body = await request.content.read()
            seen.append([*request.headers])
            return body

        server.serve = serve
        head = POST + b"Authorization: Bearer a\r\nTransfer-Encoding: chunked\r\n\r\n"
        return await ask(server, head + b"2\r\nab\r\n0\r\n%b\r\n\r\n" % trailer), seen

    reply, seen = run(scenario)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert seen == [["Host", "Authorization", "Transfer-Encoding"]]


@pytest.mark.parametrize("rest", [b"x" * 1000, b""])
def test_body_that_the_handler_does_not_read_is_skipped(rest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the reply, and the next one if it sends the body within the time for that."""
    monkeypatch.setattr(connection_module, "LINGER_S", 60 if rest else 0.05)

    async def scenario(server: Server) -> bytes:
        async def serve(request: CallerRequest) -> bytes:
            return b"ab" if request.path == "/v1/responses" else await request.content.read()

        server.serve = serve
        reader, writer = await server.open()
        writer.write(POST + b"Content-Length: 1000\r\n\r\n")
        received = await reader.readuntil(b"\r\n\r\nab")
        writer.write(rest + (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\ncd" if rest else b""))
        return received + (await reader.readuntil(b"\r\n\r\ncd") if rest else await reader.read())

    assert run(scenario).count(b"HTTP/1.1 200 ") == 1 + (rest != b"")


def test_handler_that_fails_is_answered_with_500_and_the_connection_closed() -> None:
    async def scenario(server: Server) -> bytes:
        async def serve(request: CallerRequest) -> bytes:
            raise RuntimeError("secret")

        server.serve = serve
        reader, writer = await server.open()
        writer.write(POST + b"Content-Length: 0\r\n\r\n")
        return await reader.read()

    reply = run(scenario)
    assert reply.startswith(b"HTTP/1.1 500 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == "internal_error"


def test_connections_are_known_to_the_server() -> None:
    async def scenario(server: Server) -> list[CallerConnection]:
        await ask(server, POST + b"Content-Length: 0\r\n\r\n")
        return server.callers.callers

    assert all(isinstance(connection, CallerConnection) for connection in run(scenario))
