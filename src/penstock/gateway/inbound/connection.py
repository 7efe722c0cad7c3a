"""The HTTP server for callers: aiohttp's low-level server, with what the gateway needs beyond it.

aiohttp parses requests, is strict about heads, lengths and chunks, and calls the handler once for each request. The handler
writes its response itself, through `outbound.response`. This module adds a time limit for heads, error replies with the
gateway's JSON envelope, and a callback for disconnects. A caller that closes its sending side has disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDictProxy

from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.wire.kernel_stamps import TCP_ESTABLISHED, tcp_state

HEAD_S = 30.0
"""How long a head may take to arrive, from the connection or from the first byte of a later request."""
MAX_LINE_BYTES = 1 << 16
"""The longest request line and the longest header."""


class _Sent(web.StreamResponse):
    """Tells aiohttp that the handler has written its response, and whether the connection can be used again."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._reusable = keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._reusable

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the head has been written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: the body has been written."""


_REUSABLE, _LAST = _Sent(keep_alive=True), _Sent(keep_alive=False)


def sent(*, keep_alive: bool) -> web.StreamResponse:
    """Return what a handler returns after it has written its response."""
    return _REUSABLE if keep_alive else _LAST


class CallerConnection(web.RequestHandler):
    """One connection of a caller."""

    def __init__(self, manager: CallerServer, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self.full = False
        """True while the caller does not read what was written."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the caller has disconnected."""
        self.on_writable: Callable[[], None] | None = None
        """Called when the caller has read on, or has disconnected."""

    @property
    def address(self) -> str:
        """The IP address of the caller, or of the proxy before it."""
        peer = self.peername
        return str(peer[0]) if isinstance(peer, tuple) else ""

    # -- heads --------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        heads = self._request_count
        super().data_received(data)
        if self._request_count != heads:
            if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
                self._fail_bodies()
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif data and self._head_timer is None and self.is_idle:
            self._await_head()

    def _fail_bodies(self) -> None:
        """Tell handlers that their body is broken. aiohttp only queues the error, as if it were the next request."""
        bodies = [payload for _, payload in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof():
                body.set_exception(web.RequestPayloadError())
                body.feed_eof()  # a reader that was just woken by a chunk looks for the end only
                self.close()  # after the reply

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(HEAD_S, self.force_close)

    @property
    def is_idle(self) -> bool:
        """True if no request is being handled. Part of a head may have arrived."""
        return self._waiter is not None and not self._waiter.done()

    @property
    def is_busy(self) -> bool:
        """True while the handler runs."""
        return self._request_in_progress

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that aiohttp cannot parse. The details of `message` may quote the request."""
        del request, message
        refusal = Refusal(status, "invalid_request_error", "The request is not valid HTTP.")
        if status >= 500:
            log_operator_message(f"internal error: {type(exc).__name__} in a handler", "error")
            refusal = Refusal(status, "internal_error", "The gateway failed with an internal error.")
        body = refusal.body()
        head = (
            f"HTTP/1.1 {status} {refusal.type}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.write(head.encode() + body)
        return _LAST

    def log_exception(self, *_args: object, **_options: object) -> None:
        """Log nothing: aiohttp reports a body that ends too early, which the handler has answered."""

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Send bytes, or buffer them if the caller does not read. Return False if it has disconnected."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(data)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self.full = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writable()

    def _writable(self) -> None:
        self.full = False
        on_writable, self.on_writable = self.on_writable, None
        if on_writable is not None:
            on_writable()

    async def drain(self) -> None:
        """Wait until the caller has read on, so that one that only sends requests cannot fill the memory."""
        if self.full:
            await self._drain_helper()

    # -- the end ------------------------------------------------------------------------------------------------------

    def eof_received(self) -> None:
        self._disconnected()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)
        self._disconnected()
        self._writable()

    def check_disconnect(self) -> None:
        """Notice a disconnect behind data that is not read yet, such as the body of the next request. Call this several
        times a second while a request runs."""
        transport = self.transport
        if transport is None or not (self._reading_paused or self._buffer_paused):
            return
        if tcp_state(transport.get_extra_info("socket")) not in (0, TCP_ESTABLISHED):
            self._disconnected()

    def _disconnected(self) -> None:
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        if self.transport is not None:
            self.transport.abort()


class CallerServer(web.Server):
    """Makes a `CallerConnection` for each connection. Pass it to `loop.create_server`."""

    def __init__(self, handler: Callable[[web.BaseRequest], Any], keep_alive_s: float = 30.0) -> None:
        """`keep_alive_s` is how long a connection without a request is kept open."""
        super().__init__(
            handler,
            keepalive_timeout=keep_alive_s,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    def __call__(self) -> CallerConnection:
        return CallerConnection(self, loop=self._loop, **self._kwargs)

    @property
    def callers(self) -> list[CallerConnection]:
        return [connection for connection in self.connections if isinstance(connection, CallerConnection)]


def connection_of(request: web.BaseRequest) -> CallerConnection:
    """Return the connection of a request that `CallerServer` has received."""
    return cast(CallerConnection, request.protocol)


def head_error(headers: CIMultiDictProxy[str]) -> Refusal | None:
    """Return the refusal of a head that another HTTP implementation may understand in another way."""
    if len(headers.getall("authorization", ())) > 1:
        return Refusal(400, "invalid_request_error", "The request has more than one Authorization header.")
    if "transfer-encoding" in headers:
        codings = [
            coding.strip().lower() for value in headers.getall("transfer-encoding") for coding in value.split(",")
        ]
        if codings != ["chunked"]:
            return Refusal(501, "invalid_request_error", "The gateway supports no transfer encoding but `chunked`.")
    return None
