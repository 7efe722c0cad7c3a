"""Reads the body of a request. Large bodies count against the memory of the worker until the request ends."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Any

from penstock.gateway.relay.context import WorkerContext
from penstock.gateway.relay.large_bodies import LARGE_BYTES, join
from penstock.gateway.relay.replies import too_busy, too_large
from penstock.gateway.rsgi import HTTPProtocol, Scope

__all__ = ["BodyReader", "CallerGoneError"]

EARLY_BYTES = 1 << 16
"""A body up to this size is requested from the server's thread before the key is looked up, which hides the latency
between the threads. A larger one is only read for a valid key."""
MAX_BODY_BYTES = 256 << 20
"""Bytes of large bodies that a worker holds at a time, if none is larger."""


class CallerGoneError(Exception):
    """The caller closed its connection before it had the reply."""


class BodyReader:
    """The body of one request."""

    __slots__ = ("_context", "_future", "_held_bytes", "_length", "_protocol", "_scope")

    def __init__(self, context: WorkerContext, scope: Scope, protocol: HTTPProtocol) -> None:
        self._context = context
        self._scope = scope
        self._protocol = protocol
        self._length: int | None = None
        self._future: Any = None
        """What is awaited at present."""
        self._held_bytes = 0
        """Bytes counted in `WorkerContext.body_bytes`."""

    def begin(self, length: str | None) -> None:
        """Check the announced length, and begin to read a small body."""
        if length is None:
            return
        if not length.isdigit() or int(length) > self._context.max_body:
            raise too_large(self._context.max_body)
        self._length = int(length)
        if self._length <= EARLY_BYTES:
            self._future = self._protocol()

    def read(self) -> Awaitable[bytes]:
        """Return the body as an awaitable. Call `received` when it is there."""
        length = self._length
        if self._future is None and length is not None:
            self.hold_bytes(length)
            if length <= LARGE_BYTES:
                self._future = self._protocol()
        awaitable: Awaitable[bytes] = self._read_pieces() if self._future is None else self._future
        return awaitable

    def received(self) -> None:
        self._future = None

    async def _read_pieces(self) -> bytes:
        """Read a body that is large, or whose length is not known. The server would copy a large one at once."""
        pieces: list[bytes] = []
        size = 0
        body = aiter(self._protocol)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                self._future = anext(body)
                pieces.append(await self._future)
                size += len(pieces[-1])
                if self._length is not None:
                    continue
                self.hold_bytes(len(pieces[-1]))
                if size > self._context.max_body:
                    raise too_large(self._context.max_body)
        if self._length is not None and size < self._length:
            raise CallerGoneError
        # Every body ends with an empty piece. One that breaks off has another empty piece before it.
        if pieces[-2:] == [b"", b""] and self._context.client_sockets.is_closed(self._scope.client):
            raise CallerGoneError
        self._future = None
        return await join(pieces)

    def hold_bytes(self, size: int) -> None:
        """Count bytes against the memory of the worker until `release`."""
        context = self._context
        if context.body_bytes + size > max(MAX_BODY_BYTES, context.max_body):
            raise too_busy()
        context.body_bytes += size
        self._held_bytes += size

    def release(self) -> None:
        self._context.body_bytes -= self._held_bytes
        self._held_bytes = 0

    @property
    def waiting(self) -> bool:
        """True while the body has not arrived."""
        return self._future is not None

    def cancel(self) -> None:
        """Raise CancelledError in `read`."""
        if self._future is not None:
            self._future.cancel()
