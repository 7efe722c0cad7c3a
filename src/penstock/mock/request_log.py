"""The log of what the server did: one JSON line a request, written when the request ends.

All times are nanoseconds on CLOCK_REALTIME. `arrived_ns` is the kernel's stamp of the network read that held the
request's last byte, where there is one (`kernel_stamp`); `first_write_ns` and `write_ns` are taken right before the
write calls that carry tokens. A client cannot have seen a token earlier.
"""

from __future__ import annotations

import asyncio
from typing import BinaryIO

import msgspec

__all__ = ["LoggedRequest", "RequestLog"]

FLUSH_S = 0.2
HELD_LINES = 4096


class LoggedRequest(msgspec.Struct, omit_defaults=False, kw_only=True):
    k: int | None
    """Arrival number among the requests to the model, from 0; None for any other."""
    request_id: str | None
    correlation_id: str | None
    connection: int
    method: str
    path: str
    stream: bool
    status: int
    arrived_ns: int
    kernel_stamp: bool
    first_write_ns: int | None
    ended_ns: int
    tokens: int
    """Written, of all choices, reasoning included."""
    reasoning_tokens: int
    prompt_tokens: int
    """As the usage block counts them; `completion_tokens` is the length that was planned."""
    completion_tokens: int
    images: int
    audios: int
    """What the request held."""
    fault: str | None
    """What was injected; several are joined by a plus sign."""
    end: str
    """complete, cut (by a fault), or aborted (the client left before the end)."""
    blocked: int
    """Writes that the client's window did not take at once: their bytes left later than their stamp."""
    body_bytes: int
    body_sha256: str | None
    write_ns: list[int] | None
    write_tokens: list[int] | None
    """How many tokens went with each of `write_ns`."""


class RequestLog:
    """Lines are held for a moment, so that logging costs the requests little."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: BinaryIO, *, writes: bool, hashes: bool) -> None:
        self._loop = loop
        self._file = file
        self._held: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._encode = msgspec.json.Encoder().encode
        self.writes = writes
        self.hashes = hashes

    def add(self, truth: LoggedRequest) -> None:
        self._held.append(self._encode(truth))
        if len(self._held) >= HELD_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._held.append(b"")
            self._file.write(b"\n".join(self._held))
            self._file.flush()
            self._held.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()
