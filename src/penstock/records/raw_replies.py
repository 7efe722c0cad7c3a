"""The replies of a run byte for byte, with the times of their reads, kept on request (`--export-level raw`).

Worker N appends them to `replies-N.bin`, one frame for each reply; the record of the request has the position of the frame.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from penstock import frames
from penstock.records.interpret import read_ends
from penstock.secrets import REDACTED
from penstock.wire import sse
from penstock.wire.exchange import Exchange

_REPLY = 1


class RawReply(msgspec.Struct, array_like=True):
    headers: list[tuple[str, str]]
    """Headers of the request as sent, with secrets redacted."""
    content_type: str
    times: list[int]
    """Arrival of each read, in ns from the epoch."""
    ends: list[int]
    """Size of the body after each read."""
    body: bytes
    """Without its content coding."""

    def events(self) -> Iterator[tuple[int, bytes]]:
        """Yield the events of a stream, each with the arrival of the read that completed it."""
        start = 0
        for end in sse.split(self.body).ends:
            read = min(bisect_left(self.ends, end), len(self.times) - 1)
            yield self.times[read], self.body[start:end]
            start = end


class ReplyWriter:
    def __init__(self, folder: str, worker: int, hidden_headers: Iterable[str], secrets: Iterable[str]) -> None:
        """The values of `hidden_headers`, in lower case, are not written. `secrets` are masked in replies."""
        self._file = open(_path(folder, worker), "wb", buffering=1 << 20)  # noqa: SIM115
        self._offset = 0
        self._hidden = frozenset(hidden_headers)
        self._secrets = [secret.encode() for secret in secrets]
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, exchange: Exchange, bytes_sent: int, epoch: int) -> int:
        """Append the reply of an interpreted exchange, whose body was `bytes_sent` long. Return its position."""
        body = b"".join(exchange.pieces)
        for secret in self._secrets:
            body = body.replace(secret, b"*" * len(secret))  # of the same length, so that the reads keep their ends
        head = exchange.data[: len(exchange.data) - bytes_sent]
        content_type = (exchange.header(b"content-type") or b"").decode("latin-1")
        times = [time - epoch for time in exchange.times]
        reply = RawReply(self._headers(head), content_type, times, read_ends(exchange), body)
        frame = frames.pack(_REPLY, self._encode(reply))
        position, self._offset = self._offset, self._offset + len(frame)
        self._file.write(frame)
        return position

    def _headers(self, head: bytes) -> list[tuple[str, str]]:
        pairs = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:] if line)
        return [(name, REDACTED if name.lower() in self._hidden else value) for name, _, value in pairs]

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ReplyReader:
    """Reads the replies of one worker."""

    def __init__(self, folder: str, worker: int) -> None:
        self._file: BinaryIO | None = None
        path = _path(folder, worker)
        if os.path.exists(path):
            self._file = open(path, "rb", buffering=1 << 16)  # noqa: SIM115
        self._decode = msgspec.msgpack.Decoder(RawReply).decode

    def read(self, position: int) -> RawReply | None:
        """Return the reply at a position; None if it is damaged or was not written completely."""
        if self._file is None:
            return None
        self._file.seek(position)
        for _, data in frames.Reader(self._file):
            return self._decode(data)
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _path(folder: str, worker: int) -> str:
    return os.path.join(folder, f"replies-{worker}.bin")
