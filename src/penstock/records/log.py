"""The append-only record of a run: facts go in as they happen, every artifact is derived from it.

A log is a folder:

    run.json        who ran what: written before the first request
    payloads.bin    each distinct request body once, with the id of its conversation before it
    payloads.idx    32 bytes a body: where it is and what is known of it
    worker-N.log    frames of worker N: records, and its report at the end

A frame is kind (1 byte), length and CRC-32 (4 bytes each, little endian), then the bytes. A process killed in
mid-write leaves a torn frame at the end of its file; reading stops before it and says how much was lost.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.errors import UserError
from penstock.records.record import Record

__all__ = ["LogWriter", "Payload", "PayloadStore", "PayloadWriter", "Phase", "RunHeader", "RunLog"]

T = TypeVar("T")

RECORD, REPORT = 1, 2
_FRAME = struct.Struct("<BII")
_INDEX = struct.Struct("<QIIiiII")
_FLUSH_BYTES = 1 << 18
_FLUSH_NS = 500_000_000


class Phase(msgspec.Struct, frozen=True):
    name: str
    kind: str
    """`warmup` or `profiling`."""


class RunHeader(msgspec.Struct, kw_only=True):
    penstock_version: str
    benchmark_id: str
    epoch_wall_ns: int
    """The wall clock (Unix time) at the run's epoch."""
    epoch_monotonic_ns: int
    phases: list[Phase]
    endpoint: str
    streaming: bool
    """Whether a stream was asked for; what came is in each record."""
    server_token_count: bool
    models: list[str]
    urls: list[str]
    dataset: str
    """`synthetic`, or the format of the file."""
    conversations: int
    sampling: str
    seed: int | None
    concurrency: int | None
    rate: float | None
    arrivals: str
    requests: int | None
    duration_s: float | None
    workers: int
    kernel_stamps: bool
    tokenizer: str | None
    """The one asked for, or None for the model's own."""
    tokenizer_revision: str
    level: str
    prefix: str | None
    http_trace: bool
    command: str
    input_config: dict[str, Any]
    machine: dict[str, Any]


class Payload(NamedTuple):
    offset: int
    length: int
    id_length: int
    input_tokens: int
    """-1 when nobody counted yet."""
    output_tokens: int
    """The reply length asked for, -1 for none."""
    conversation: int
    turn: int


class PayloadWriter:
    def __init__(self, folder: str) -> None:
        self._bodies = open(os.path.join(folder, "payloads.bin"), "wb", buffering=1 << 20)  # noqa: SIM115
        self._index = open(os.path.join(folder, "payloads.idx"), "wb", buffering=1 << 16)  # noqa: SIM115
        self._offset = 0
        self.count = 0

    def add(
        self, body: bytes, session: str, conversation: int, turn: int, input_tokens: int | None, output_tokens: int | None
    ) -> int:
        name = session.encode()
        self._bodies.write(name)
        self._bodies.write(body)
        known = -1 if input_tokens is None else input_tokens
        asked = -1 if output_tokens is None else output_tokens
        start = self._offset + len(name)
        self._index.write(_INDEX.pack(start, len(body), len(name), known, asked, conversation, turn))
        self._offset = start + len(body)
        self.count += 1
        return self.count - 1

    def close(self) -> None:
        self._bodies.close()
        self._index.close()


class PayloadStore:
    """Bodies by number, read with pread: nothing but the index (32 bytes a body) stays in memory."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(os.path.join(folder, "payloads.bin"), os.O_RDONLY)
        with open(os.path.join(folder, "payloads.idx"), "rb") as f:
            self._index = f.read()
        self._first = array("I")  # conversation -> its first body
        for number in range(len(self)):
            if self.entry(number).turn == 0:
                self._first.append(number)

    def __len__(self) -> int:
        return len(self._index) // _INDEX.size

    @property
    def conversations(self) -> int:
        return len(self._first)

    def turns(self, conversation: int) -> range:
        """The numbers of a conversation's bodies, in order."""
        first = self._first[conversation]
        after = self._first[conversation + 1] if conversation + 1 < len(self._first) else len(self)
        return range(first, after)

    def entry(self, number: int) -> Payload:
        return Payload(*_INDEX.unpack_from(self._index, number * _INDEX.size))

    def body(self, number: int) -> bytes:
        entry = self.entry(number)
        return os.pread(self._file, entry.length, entry.offset)

    def session(self, number: int) -> str:
        entry = self.entry(number)
        return os.pread(self._file, entry.id_length, entry.offset - entry.id_length).decode()

    def close(self) -> None:
        os.close(self._file)


class LogWriter:
    """Appends frames for one worker; what is older than half a second is in the kernel's hands."""

    def __init__(self, folder: str, worker: int) -> None:
        path = os.path.join(folder, f"worker-{worker}.log")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = bytearray()
        self._flushed = time.monotonic_ns()

    def record(self, record: Record) -> None:
        self._frame(RECORD, self._encode(record))

    def report(self, report: Any) -> None:
        self._frame(REPORT, self._encode(report))

    def _frame(self, kind: int, data: bytes) -> None:
        buffer = self._buffer
        buffer += _FRAME.pack(kind, len(data), zlib.crc32(data))
        buffer += data
        if len(buffer) >= _FLUSH_BYTES:
            self.flush()

    def flush_if_due(self, now_ns: int) -> None:
        if now_ns - self._flushed >= _FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        view = memoryview(self._buffer)
        done = 0
        while done < len(view):
            done += os.write(self._file, view[done:])
        view.release()
        self._buffer = bytearray()
        self._flushed = time.monotonic_ns()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class RunLog:
    """Reads a log, also one whose run was killed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            with open(os.path.join(folder, "run.json"), "rb") as f:
                self.header = msgspec.json.decode(f.read(), type=RunHeader)
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: there is no run.json in it.") from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{folder}/run.json is not readable as a run of this version: {error}.") from None
        self.payloads = PayloadStore(folder)
        self.torn_bytes = 0
        """What a killed writer left behind; known after `records()` or `reports()` has been read to its end."""

    @staticmethod
    def write_header(folder: str, header: RunHeader) -> None:
        path = os.path.join(folder, "run.json")
        with open(path + ".new", "wb") as f:
            f.write(msgspec.json.format(msgspec.json.encode(header), indent=2))
        os.replace(path + ".new", path)

    def records(self) -> Iterator[Record]:
        """Every record; those of one worker in the order in which they ended."""
        decode = msgspec.msgpack.Decoder(Record).decode
        for data in self._frames(RECORD):
            yield decode(data)

    def reports(self, kind: type[T]) -> list[T]:
        decode = msgspec.msgpack.Decoder(kind).decode
        return [decode(data) for data in self._frames(REPORT)]

    def _frames(self, wanted: int) -> Iterator[bytes]:
        self.torn_bytes = 0
        for path in self.worker_files():
            yield from self._frames_of(path, wanted)

    def worker_files(self) -> list[str]:
        names = [n for n in os.listdir(self.folder) if n.startswith("worker-") and n.endswith(".log")]
        return [os.path.join(self.folder, n) for n in sorted(names, key=lambda n: int(n[7:-4]))]

    def _frames_of(self, path: str, wanted: int) -> Iterable[bytes]:
        size = _FRAME.size
        with open(path, "rb", buffering=1 << 20) as f:
            while head := f.read(size):
                if len(head) < size:
                    self.torn_bytes += len(head)
                    return
                kind, length, crc = _FRAME.unpack(head)
                data = f.read(length)
                if len(data) < length or zlib.crc32(data) != crc:
                    self.torn_bytes += size + len(data) + len(f.read())
                    return
                if kind == wanted:
                    yield data

    def close(self) -> None:
        self.payloads.close()
