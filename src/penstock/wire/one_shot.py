"""Single requests outside the workers, such as readiness checks and scrapes, on the same wire as the workers' requests.

    reply = await send(origin, "GET", "/metrics", timeout_s=5)
    reply = send_blocking(origin, "POST", "/reset_prefix_cache", timeout_s=5)

Each request has a connection and a read buffer of its own, so it does not disturb a worker in the same process.
`KeptConnections` keeps the connections for the next requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import NamedTuple

from penstock import __version__
from penstock.wire.clock import Clock
from penstock.wire.connection import Origin
from penstock.wire.content_encoding import LARGEST, BadCoding, decoded
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.http1 import request_head
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats

_CHECK_S = 1.0
"""Time between checks for a lost connection that the event loop does not report."""
_SIZE_CHECK_S = 0.02
"""Time between checks of the size of a reply that has a limit."""
_WITHOUT_BODY = ("GET", "OPTIONS", "DELETE")
"""Methods of requests that need no Content-Length if they have no body."""


class Response(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    body: bytes
    """Without its content coding."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with this name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


class RequestFailed(Exception):
    """There is no complete response. The text is a sentence for the user."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.message)
        self.error = error


async def send(
    origin: Origin,
    method: str,
    target: str,
    *,
    timeout_s: float,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> Response:
    """Send a request and return its response, whatever its status. Raise RequestFailed if none is complete in time.

    `target` is the path with its query. The timeout covers the connection, the request and the response.
    """
    pool = Pool(asyncio.get_running_loop(), origin, Clock(), WireStats(), reuse=False, private_buffers=True)
    try:
        return await _exchange(pool, origin, _request(origin, method, target, headers, body), timeout_s)
    finally:
        pool.close()


class KeptConnections:
    """Sends requests on connections that stay open between them. It belongs to one event loop."""

    def __init__(self) -> None:
        self._pools: dict[Origin, Pool] = {}

    async def get(
        self,
        origin: Origin,
        target: str,
        *,
        timeout_s: float,
        headers: Iterable[tuple[str, str]] = (),
        max_bytes: int | None = None,
    ) -> Response:
        """Send a GET request as `send` does. A reply of more than `max_bytes` is not read to its end, and fails."""
        pool = self._pools.get(origin)
        if pool is None:
            loop = asyncio.get_running_loop()
            pool = self._pools[origin] = Pool(loop, origin, Clock(), WireStats(), private_buffers=True)
        return await _exchange(pool, origin, _request(origin, "GET", target, headers, b""), timeout_s, max_bytes)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


async def _exchange(
    pool: Pool, origin: Origin, request: bytes, timeout_s: float, max_bytes: int | None = None
) -> Response:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_end(exchange: Exchange) -> None:
        pool.ended(exchange)
        if not ended.done():
            ended.set_result(None)

    exchange = Exchange(request, on_end)

    def is_too_large() -> bool:
        return max_bytes is not None and exchange.bytes_received > max_bytes

    pool.start(exchange)
    try:
        await _wait(ended, pool, timeout_s, _CHECK_S if max_bytes is None else _SIZE_CHECK_S, is_too_large)
        if is_too_large():
            raise RequestFailed(_size_error(origin, max_bytes or 0))
    finally:  # after the timeout, for a reply that is too large, or if the caller cancels
        pool.abort(exchange, _timeout_error(origin, timeout_s))
    return _response(exchange, LARGEST if max_bytes is None else max_bytes)


def send_blocking(
    origin: Origin,
    method: str,
    target: str,
    *,
    timeout_s: float,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> Response:
    """Do the same as `send` and block the thread, which must not have a running event loop."""
    loop = asyncio.SelectorEventLoop()  # asyncio.run() would replace the signal handler and the loop of the thread
    try:
        return loop.run_until_complete(send(origin, method, target, timeout_s=timeout_s, headers=headers, body=body))
    finally:
        loop.close()


def _request(origin: Origin, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    scheme, default_port = ("http", 80) if origin.tls is None else ("https", 443)
    name = f"[{origin.host}]" if ":" in origin.host else origin.host
    host = name if origin.port == default_port else f"{name}:{origin.port}"
    host_header = next((value for key, value in given if key.lower() == "host"), host)
    given = [(key, value) for key, value in given if key.lower() != "host"]
    if "user-agent" not in names:
        given.insert(0, ("User-Agent", f"penstock/{__version__}"))
    if body or method not in _WITHOUT_BODY:
        given.append(("Content-Length", str(len(body))))
    if origin.proxy and origin.tls is None:  # the proxy reads the request; with TLS it only sees a tunnel
        target = f"{scheme}://{host}{target}"
        if origin.proxy_authorization:
            given.append(("Proxy-Authorization", origin.proxy_authorization))
    return request_head(method, target, host_header, given) + b"\r\n" + body


async def _wait(
    ended: asyncio.Future[None], pool: Pool, timeout_s: float, check_s: float, is_too_large: Callable[[], bool]
) -> None:
    """Return when the exchange has ended or its reply is too large, or after the timeout."""
    deadline = monotonic_ns() + round(timeout_s * 1e9)
    while not ended.done() and not is_too_large() and (left := deadline - monotonic_ns()) > 0:
        await asyncio.wait({ended}, timeout=min(check_s, left / 1e9))
        pool.check_resets(monotonic_ns())


def _timeout_error(origin: Origin, timeout_s: float) -> WireError:
    return WireError("Timeout", f"{origin.host_port} sent no complete reply within {timeout_s:g} s.", "server")


def _size_error(origin: Origin, max_bytes: int) -> WireError:
    return WireError("TooLarge", f"{origin.host_port} sent a reply of more than {max_bytes / 1e6:g} MB.", "server")


def _response(exchange: Exchange, largest: int) -> Response:
    if exchange.error is not None:
        raise RequestFailed(exchange.error)
    coding = (exchange.header(b"content-encoding") or b"").strip().lower() or b"identity"
    try:
        body = decoded(coding, b"".join(exchange.pieces), largest)
    except BadCoding as error:
        raise RequestFailed(WireError("BadEncoding", str(error), "server")) from None
    return Response(exchange.status, exchange.headers, body)
