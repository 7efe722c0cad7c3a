"""The append-only record of a run: facts go in as they happen, every artifact is derived from it.

A log is a folder:

    run.json        who ran what: written before the first request
    payloads.*      the bodies, see `records.payloads`
    worker-N.log    frames of worker N: records, and its report at the end

A worker that was killed leaves a torn frame at the end of its file; reading stops before it and says how much was lost, and
whether that can have been requests.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from penstock import frames
from penstock.errors import UserError
from penstock.records.payloads import Payload, PayloadStore
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport

__all__ = ["LogWriter", "Phase", "RunHeader", "RunLog"]

RECORD, REPORT = 1, 2
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
    context_mode: str = "deltas_without_responses"
    """What a turn carries of the turns before it."""
    payload_files: list[str] = []
    """The user's files in which bodies lie."""
    conversations: int | None
    """None when the dataset was still being read as the run began."""
    sampling: str
    seed: int | None
    """The one asked for."""
    plan_seed: int | None = None
    """The one that was used."""
    concurrency: int | None
    rate: float | None
    arrivals: str
    requests: int | None
    duration_s: float | None
    workers: int
    tokenizer: str | None
    """The one asked for, or None for the model's own."""
    tokenizer_revision: str
    prompt_tokenizer: tuple[str, str] | None = None
    """Name and source of the one that counted the synthetic prompts as they were made."""
    level: str
    prefix: str | None
    http_trace: bool
    command: str
    input_config: dict[str, Any]
    machine: dict[str, Any]


class LogWriter:
    """Appends frames for one worker; what is older than half a second is in the kernel's hands."""

    def __init__(self, folder: str, worker: int, before_flush: Callable[[], None] | None = None) -> None:
        """`before_flush` writes what records refer to."""
        self._before_flush = before_flush
        path = os.path.join(folder, f"worker-{worker}.log")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = bytearray()
        self._flushed = time.monotonic_ns()

    def record(self, record: Record) -> None:
        self._frame(RECORD, self._encode(record))

    def report(self, report: WorkerReport) -> None:
        self._frame(REPORT, self._encode(report))

    def _frame(self, kind: int, data: bytes) -> None:
        buffer = self._buffer
        buffer += frames.pack(kind, data)
        if len(buffer) >= _FLUSH_BYTES:
            self.flush()

    def flush_if_due(self, now_ns: int) -> None:
        if now_ns - self._flushed >= _FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        if self._before_flush is not None:
            self._before_flush()
        buffer = self._buffer
        while buffer:
            # What is written goes at once: after a full disk the next attempt must not write it a second time.
            del buffer[: os.write(self._file, buffer)]
        self._flushed = time.monotonic_ns()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class RunLog:
    """Reads a log, also one whose run was killed."""

    def __init__(self, folder: str, *, url: int | None = None) -> None:
        """With `url`, only the records of requests to that one."""
        self.folder = folder
        self._url = url
        self.header = self.read_header(folder)
        try:
            self.payloads = PayloadStore(folder, self.header.payload_files)
        except FileNotFoundError as error:
            raise UserError(f"{folder} is not whole: {os.path.basename(error.filename)} is missing.") from None
        self._built: dict[int, PayloadStore] = {}
        self.torn_bytes = 0
        """What a killed writer left behind; known after `records()` or `reports()` has been read to its end."""
        self.torn_requests = False
        """Whether requests are in it: a torn report is the last thing in its file, and has none behind it."""

    @staticmethod
    def read_header(folder: str) -> RunHeader:
        try:
            with open(os.path.join(folder, "run.json"), "rb") as f:
                return msgspec.json.decode(f.read(), type=RunHeader)
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: there is no run.json in it.") from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{folder}/run.json is not readable as a run of this version: {error}.") from None

    @staticmethod
    def write_header(folder: str, header: RunHeader) -> None:
        path = os.path.join(folder, "run.json")
        with open(path + ".new", "wb") as f:
            f.write(msgspec.json.format(msgspec.json.encode(header), indent=2))
        os.replace(path + ".new", path)

    def records(self) -> Iterator[Record]:
        """Every record, in the order in which its worker wrote them: as they ended, give or take what was read in one go. Those
        of several workers are merged by their ends."""
        decode = msgspec.msgpack.Decoder(Record).decode
        self._mend()
        workers = [map(decode, self._frames_of(path, RECORD)) for path in self.worker_files()]
        found = iter(workers[0]) if len(workers) == 1 else heapq.merge(*workers, key=lambda record: record.end)
        return found if self._url is None else (record for record in found if record.url == self._url)

    def reports(self) -> list[WorkerReport]:
        """Of the workers that lived to write one."""
        decode = msgspec.msgpack.Decoder(WorkerReport).decode
        self._mend()
        return [decode(data) for path in self.worker_files() for data in self._frames_of(path, REPORT)]

    def entry(self, record: Record) -> Payload:
        store, number = self._place(record)
        return store.entry(number)

    def body(self, record: Record) -> bytes:
        """What was sent for this record."""
        store, number = self._place(record)
        return store.body(number)

    def _place(self, record: Record) -> tuple[PayloadStore, int]:
        if record.built is None:
            return self.payloads, record.payload
        store = self._built.get(record.worker)
        if store is None:
            store = self._built[record.worker] = PayloadStore(self.folder, worker=record.worker)
        return store, record.built

    def worker_files(self) -> list[str]:
        names = [n for n in os.listdir(self.folder) if n.startswith("worker-") and n.endswith(".log")]
        return [os.path.join(self.folder, n) for n in sorted(names, key=lambda n: int(n[7:-4]))]

    def _frames_of(self, path: str, wanted: int) -> Iterator[bytes]:
        with open(path, "rb", buffering=1 << 20) as f:
            reading = frames.read(f)
            while True:
                try:
                    kind, data = next(reading)
                except StopIteration as end:
                    self._tear(f, end.value)
                    return
                if kind == wanted:
                    yield data

    def _mend(self) -> None:
        self.torn_bytes, self.torn_requests = 0, False

    def _tear(self, file: BinaryIO, size: int) -> None:
        if size:
            self.torn_bytes += size
            file.seek(-size, os.SEEK_END)
            self.torn_requests |= file.read(1) != bytes([REPORT])

    def close(self) -> None:
        for store in (self.payloads, *self._built.values()):
            store.close()
