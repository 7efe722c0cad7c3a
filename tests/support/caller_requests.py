"""Requests of callers without a network: what a handler of the gateway's server gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy


class RecordingConnection:
    """A connection that keeps what is written to it."""

    def __init__(self, on_write: Callable[[bytes], object] = lambda _: None) -> None:
        self._on_write = on_write
        self.written = b""
        self.full = False
        self.on_disconnect: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.address = "127.0.0.1"

    def write(self, data: bytes) -> bool:
        self.written += data
        self._on_write(data)
        return True

    def check_disconnect(self) -> None:
        """The caller stays connected."""

    async def drain(self) -> None:
        """The caller reads everything."""


def caller_request(connection: Any = None, headers: dict[str, str] | None = None, body: Any = None) -> Any:
    return SimpleNamespace(
        connection=connection or RecordingConnection(),
        headers=CIMultiDictProxy(CIMultiDict(headers or {})),
        method="POST",
        is_http10=False,
        keep_alive=True,
        content=body,
    )


def arriving_body(*pieces: bytes, error: Exception | None = None) -> StreamReader:
    """Return a body of which these pieces have arrived. It ends after them, unless the caller left with an error."""
    body = StreamReader(Mock(_reading_paused=False), 1 << 30, loop=asyncio.get_running_loop())
    for piece in pieces:
        body.feed_data(piece)
    if error is None:
        asyncio.get_running_loop().call_soon(body.feed_eof)
    else:
        asyncio.get_running_loop().call_soon(body.set_exception, error)
    return body
