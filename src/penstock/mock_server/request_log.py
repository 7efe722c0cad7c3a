"""The request log: one JSON line for each request, written when the request ends.

All times are nanoseconds on CLOCK_REALTIME. `arrived_ns` is the kernel's timestamp of the network read that held the
request's last byte, if the kernel gives one (`kernel_stamp`), and otherwise the time of the read. `first_write_ns` and
`write_ns` are taken right before the write calls that carry tokens, so no client can have received a token earlier.
"""

from __future__ import annotations

import asyncio
from typing import BinaryIO

import msgspec

FLUSH_S = 0.2
BUFFERED_LINES = 4096


class LoggedRequest(msgspec.Struct, omit_defaults=False, kw_only=True):
    k: int | None
    """Arrival number among the requests to a model endpoint, from 0; None for other requests."""
    request_id: str | None
    correlation_id: str | None
    connection: int
    method: str
    path: str
    stream: bool
    status: int
    arrived_ns: int
    kernel_stamp: bool
    queue_ns: int
    """How long the request waited for a slot: it was processed from `arrived_ns + queue_ns` on, unless it was aborted."""
    first_write_ns: int | None
    ended_ns: int
    tokens: int
    """Tokens written, of all choices, including reasoning."""
    reasoning_tokens: int
    prompt_tokens: int
    """Prompt tokens in the usage block."""
    cached_tokens: int
    """Prompt tokens that were in the prefix cache."""
    completion_tokens: int
    """The planned number of tokens."""
    images: int
    audios: int
    fault: str | None
    """The names of the injected faults, joined by plus signs."""
    end: str
    """complete, cut (by a fault), or aborted (the client left before the end)."""
    blocked: int
    """Number of writes that the socket did not accept in full: their bytes left later than `write_ns`."""
    body_bytes: int
    body_sha256: str | None
    write_ns: list[int] | None
    write_tokens: list[int] | None
    """The number of tokens in each of the writes of `write_ns`."""


class RequestLog:
    """Buffers lines for `FLUSH_S`, so that logging costs each request little."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: BinaryIO, *, writes: bool, hashes: bool) -> None:
        self._loop = loop
        self._file = file
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._encode = msgspec.json.Encoder().encode
        self.writes = writes
        self.hashes = hashes

    def add(self, request: LoggedRequest) -> None:
        self._lines.append(self._encode(request))
        if len(self._lines) >= BUFFERED_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            self._lines.append(b"")
            self._file.write(b"\n".join(self._lines))
            self._file.flush()
            self._lines.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()
