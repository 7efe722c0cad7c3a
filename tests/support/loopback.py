"""A scripted server and a pool with its own event loop, connected over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import uvloop

from penstock.wire.clock import Clock
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.pool import Pool, resolve
from penstock.wire.stats import WireStats

Handler = Callable[[socket.socket, int], None]


def request(body: bytes = b"{}") -> bytes:
    return b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def reply(body: bytes = b"hello", *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_request(sock: socket.socket) -> bytes | None:
    """Read one request and return its body; None if the client has closed the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    received = bytearray(body)
    while len(received) < length:
        received += sock.recv(1 << 20)
    return bytes(received)


def close_with_reset(sock: socket.socket) -> None:
    """Close the socket with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def always_reply(data: bytes) -> Handler:
    """Return a handler that sends the same reply to every request."""

    def handler(sock: socket.socket, _: int) -> None:
        while read_request(sock) is not None:
            sock.sendall(data)

    return handler


class Server:
    """Calls `handler(socket, connection number)` in a thread for each connection, then closes the socket."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.settimeout(0.05)
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.closed = 0
        """The number of connections that have been closed."""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            sock.settimeout(60)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = self.connections
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        self._open.add(sock)
        with contextlib.suppress(OSError):
            if self._tls is not None:
                self._open.discard(sock)
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._open.add(sock)
            self._handler(sock, number)
        self._open.discard(sock)
        with contextlib.suppress(OSError):
            sock.close()
        self.closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(2)


class Client:
    """A pool with an event loop that only runs while a test waits."""

    def __init__(
        self, port: int, *, reuse: bool = True, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self.stats = WireStats()
        origin = next(o for o in resolve(host, port, tls) if o.family == socket.AF_INET)
        self.pool = Pool(self.loop, origin, Clock(), self.stats, reuse=reuse)

    def start(self, data: bytes | None = None, owner: object = None) -> Exchange:
        done: asyncio.Future[None] = self.loop.create_future()

        def ended(exchange: Exchange) -> None:
            self.pool.ended(exchange)
            done.set_result(None)

        exchange = Exchange(request() if data is None else data, ended, done)
        self.pool.start(exchange, owner)
        return exchange

    def wait(self, *exchanges: Exchange, timeout: float = 60) -> None:
        async def all_done() -> None:
            await asyncio.wait_for(asyncio.gather(*[exchange.tag for exchange in exchanges]), timeout)

        self.loop.run_until_complete(all_done())

    def send(self, data: bytes | None = None, timeout: float = 60, owner: object = None) -> Exchange:
        exchange = self.start(data, owner)
        self.wait(exchange, timeout=timeout)
        return exchange

    def open_ahead(self, count: int) -> tuple[int, WireError | None]:
        done: asyncio.Future[tuple[int, WireError | None]] = self.loop.create_future()

        def opened(n: int, error: WireError | None) -> None:
            if not done.done() and (error or n == count):
                done.set_result((n, error))

        self.pool.open_ahead(count, opened)
        return self.loop.run_until_complete(asyncio.wait_for(done, 60))

    def run(self, seconds: float) -> None:
        """Run the loop for some time."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def run_until(self, condition: Callable[[], Any], timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "the condition was not met in time"
            self.run(0.002)

    def wait_for_close(self) -> None:
        """Wait until the server's close has reached the only idle connection. The loop does not run, so the pool sees
        nothing of it."""
        (idle,) = self.pool._idle
        readable, _, _ = select.select([idle._sock], [], [], 60)
        assert readable, "the server did not close the connection"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()
        self.run(0)
        self.loop.close()


def body_of(exchange: Exchange) -> bytes:
    return b"".join(exchange.pieces)
