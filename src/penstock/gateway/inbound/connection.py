"""The HTTP server for callers: aiohttp's low-level server, with what the gateway needs beyond it.

aiohttp parses requests, and is strict about heads, lengths and chunks. The handler is called for one request of a connection
after the other, and writes its response itself, through `outbound.response`. This module adds a time limit for heads, error
replies with the gateway's JSON envelope, and a callback for disconnects. A caller that closes its sending side has
disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDictProxy

from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.wire.kernel_stamps import TCP_ESTABLISHED, tcp_state

HEAD_S = 30.0
"""How long a head may take to arrive, from the connection or from the first byte of a later request."""
MAX_LINE_BYTES = 1 << 16
"""The longest request line and the longest header."""
LINGER_S = 10.0
"""How long the rest of a body is read after the response."""


class CallerRequest:
    """A request: its head, and its body while that arrives."""

    def __init__(self, connection: CallerConnection, message: RawRequestMessage, content: StreamReader) -> None:
        self.connection = connection
        self.method = message.method
        self.headers: CIMultiDictProxy[str] = message.headers
        self.is_http10 = message.version < (1, 1)
        self.keep_alive = not message.should_close
        self.content = content
        self._message = message

    @property
    def path(self) -> str:
        return self._message.url.raw_path

    @property
    def target(self) -> str:
        """The path as the caller wrote it: with a query, or with the host before it."""
        return self._message.path

    def _cancel(self, error: BaseException) -> None:
        """End the body. aiohttp calls this when the connection is lost."""
        self.content.set_exception(error)


Handler = Callable[[CallerRequest], Awaitable[bool]]
"""Answers a request. Returns whether its connection can carry another one."""


class CallerConnection(web.RequestHandler):
    """One connection of a caller."""

    def __init__(self, manager: CallerServer, handler: Handler, **options: Any) -> None:
        super().__init__(manager, **options)
        self._handle = handler
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

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on after a pause. aiohttp calls this whenever a body has been read."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

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

    # -- requests -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Handle one request after the other. The method of aiohttp makes a task, a writer and a response for each, which
        takes 15 µs."""
        while not self._force_close:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, content = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                self._resume_reading_if_drained()
            if isinstance(message, RawRequestMessage):
                self._keepalive = await self._answer(message, content)
            else:
                self._keepalive = False
                self._refuse(message.status)
            if not self._keepalive or self._close or self._force_close:
                break
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        if not self._force_close and self.transport is not None:
            self._task_handler = None
            self.transport.close()

    async def _answer(self, message: RawRequestMessage, content: StreamReader) -> bool:
        """Return whether the connection can carry another request."""
        request = CallerRequest(self, message, content)
        self._request_in_progress = True
        self._current_request = cast(web.BaseRequest, request)
        try:
            keep_alive = await self._handle(request)
        except Exception as error:
            log_operator_message(f"internal error: {type(error).__name__} in a handler", "error")
            self._refuse(500)
            return False
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)  # `shutdown` waits for it
        if self._upgraded and not self._messages and self._parser is not None:
            self._parser.set_upgraded(False)  # the request to change the protocol was ignored
            self._upgraded = False
            tail, self._message_tail = self._message_tail, b""
            self.data_received(tail)
        if not content.is_eof():
            await self._skip(content)
        return keep_alive

    async def _skip(self, content: StreamReader) -> None:
        """Read the rest of the body, so that the caller gets the response instead of a reset."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not self._force_close and not content.is_eof():
                    await content.readany()
        except Exception:
            self.close()

    def _refuse(self, status: int) -> None:
        """Answer a request that is not valid HTTP, or whose handler has failed."""
        refusal = Refusal(status, "invalid_request_error", "The request is not valid HTTP.")
        if status >= 500:
            refusal = Refusal(status, "internal_error", "The gateway failed with an internal error.")
        body = refusal.body()
        head = (
            f"HTTP/1.1 {status} {refusal.type}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.write(head.encode() + body)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Send bytes, or buffer them if the caller does not read. Return False if it has disconnected."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(data)
        return True

    def call_after_next(self, callback: Callable[[], None]) -> None:
        """Call a function after the tasks that run in the next iteration of the event loop."""
        self._loop.call_soon(self._loop.call_soon, callback)

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
        self._close = True  # after the request that runs
        on_disconnect, self.on_disconnect = self.on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        if self.transport is not None:
            self.transport.abort()


class CallerServer(web.Server):
    """Makes a `CallerConnection` for each connection. Pass it to `loop.create_server`."""

    def __init__(self, handler: Handler, keep_alive_s: float = 30.0) -> None:
        """`keep_alive_s` is how long a connection without a request is kept open."""
        super().__init__(
            cast(Any, handler),
            keepalive_timeout=keep_alive_s,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        self._handler = handler

    def __call__(self) -> CallerConnection:
        return CallerConnection(self, self._handler, loop=self._loop, **self._kwargs)

    @property
    def callers(self) -> list[CallerConnection]:
        return [connection for connection in self.connections if isinstance(connection, CallerConnection)]


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
