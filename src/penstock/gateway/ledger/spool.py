"""The spool: files to which workers append their entries until `ledger.mover` moves them into the ledger.

The folder holds segments, `entries-WORKER-TIME-PID.spool`. A segment is a sequence of frames (`penstock.frames`), each with
one entry in msgpack. A worker owns its segment while it lives (`gateway.owned_file`); the mover removes a segment once it
has no owner and all its entries are in the ledger. An entry is written to the file before `append` returns, so it survives
the death of any process, but not a power failure.

An append takes 3 to 5 µs with its encoding (ext4), less for each of several entries, and never waits for a database.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import BinaryIO, NamedTuple

import msgspec

from penstock import frames
from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry, repair_entry
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.storage import owned_file
from penstock.plural import counted

ENTRY = 1

SEGMENT_BYTES = 8 << 20
SEGMENT_S = 30.0
MAX_BUFFERED_BYTES = 64 << 20
"""Limit of the memory for entries while writes fail: about 80,000 entries."""
RETRY_S = 0.1
REPORT_S = 60.0
"""Shortest time between two messages about lost entries."""


def prepare_folder(folder: str) -> None:
    """Create the folder and check that it is writable. Raise UserError if it is not."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(owned_file.create(probe := os.path.join(folder, f"probe-{os.getpid()}")))
        os.unlink(probe)
        owned_file.remove_abandoned(folder)
    except OSError as error:
        raise UserError(
            f"The spool folder {folder} cannot be used ({error.strerror or error}); set another one in ledger.spool."
        ) from None


def segment_paths(folder: str) -> list[str]:
    """Return the paths of the segments, oldest first. Ignore other files."""
    return owned_file.paths(folder, "entries", ".spool")


class Spool:
    """The spool of one worker, for use by one thread. `append` raises neither for invalid entries nor for disk errors."""

    def __init__(self, folder: str, worker: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder = folder
        self._worker = worker
        self._encode = msgspec.msgpack.Encoder().encode
        self._file = -1
        self._size = 0
        self._opened = 0.0
        self._buffer = bytearray()
        self._next_retry = 0.0
        self._mid_frame = False
        """The file ends within a frame, and the buffer begins with the rest of that frame."""
        self._buffered = 0
        """Entries in the buffer."""
        self._next_report = 0.0
        self._reported = 0
        self.appended = 0
        """Entries written to the file."""
        self.failures = 0
        """Failed writes. Their entries stay in the buffer and are written again later."""
        self.dropped = 0
        """Lost entries: the buffer was full, or the entry could not be encoded."""

    def append(self, *entries: Entry) -> None:
        """Append entries with one write."""
        packed = [frame for entry in entries if (frame := self._pack(entry))]
        if self._buffer or self._file < 0 or self._size >= SEGMENT_BYTES:
            for frame in packed:
                self._append_to_buffer(frame)
            return
        data = packed[0] if len(packed) == 1 else b"".join(packed)
        try:
            written = os.write(self._file, data)
        except OSError:
            self.failures += 1
            written = 0
        self._size += written
        if written == len(data):
            self.appended += len(packed)
            return
        self._buffer += data[written:]
        for frame in packed:
            if written < len(frame):
                self._mid_frame = self._mid_frame or written > 0
                self._buffered += 1
            else:
                self.appended += 1
            written = max(0, written - len(frame))

    def _pack(self, entry: Entry) -> bytes:
        """Return the frame of an entry; nothing for one that cannot be encoded."""
        try:
            return frames.pack(ENTRY, self._encode(entry))
        except Exception:
            try:
                return frames.pack(ENTRY, self._encode(repair_entry(entry)))
            except Exception:
                self.dropped += 1
                return b""

    def tick(self) -> None:
        """Write the buffer and close an old segment. Call this about once a second."""
        if self._buffer:
            self._write_buffer()
        elif self._file >= 0 and time.monotonic() - self._opened >= SEGMENT_S:
            self._close_segment()
        if self.dropped > self._reported and time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_S
            self._report_dropped()

    def close(self) -> None:
        if self._buffer:
            self._write_buffer()
        self.dropped += self._buffered
        self._buffered = 0
        self._close_segment()
        if self.dropped > self._reported:
            self._report_dropped()

    def _report_dropped(self) -> None:
        lost = counted(self.dropped - self._reported, "usage entry was", "usage entries were")
        self._reported = self.dropped
        log_operator_message(f"{lost} lost because the spool {self._folder} could not be written", "error")

    def _append_to_buffer(self, frame: bytes) -> None:
        if len(self._buffer) + len(frame) > MAX_BUFFERED_BYTES:
            self.dropped += 1
            return
        self._buffer += frame
        self._buffered += 1
        if time.monotonic() >= self._next_retry:
            self._write_buffer()

    def _write_buffer(self) -> None:
        try:
            if not self._mid_frame and (self._file < 0 or self._size >= SEGMENT_BYTES):
                self._close_segment()
                self._open_segment()
            while self._buffer:
                written = os.write(self._file, self._buffer)
                del self._buffer[:written]
                self._size += written
                self._mid_frame = True  # until the whole buffer is written
            self._mid_frame = False
            self.appended += self._buffered
            self._buffered = 0
        except OSError:
            self.failures += 1
            self._next_retry = time.monotonic() + RETRY_S
            if not self._mid_frame:
                self._close_segment()  # a new file may succeed, for example after the folder was recreated

    def _open_segment(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._file = owned_file.create(owned_file.new_path(self._folder, f"entries-{self._worker}", ".spool"))
        self._size = 0
        self._opened = time.monotonic()

    def _close_segment(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1


class SegmentBatch(NamedTuple):
    """Frames read from a segment by one call of `Segment.read`."""

    frames: list[tuple[int, bytes]]
    """The kind and the data of each frame. Other versions may write frames that are not entries."""
    end: int
    """The position after the frames."""
    last: bool
    """The segment is read to its end and cannot grow any more."""
    incomplete_bytes: int
    """Bytes at the end that are not a valid frame: an interrupted write, or damage."""


class Segment:
    """One segment file. Opening it raises FileNotFoundError if another process has moved and removed it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "rb", buffering=1 << 18)  # noqa: SIM115
        self._orphan = False
        self.position = 0

    def read(self, max_frames: int) -> SegmentBatch:
        # Check the owner before reading: a file without an owner cannot grow, so its end is final.
        self._orphan = self._orphan or owned_file.is_orphan(self._file.fileno())
        batch: list[tuple[int, bytes]] = []
        end = self.position
        self._file.seek(end)
        reader = frames.Reader(self._file)
        for kind, data in reader:
            end += frames.HEAD.size + len(data)
            batch.append((kind, data))
            if len(batch) == max_frames:
                return SegmentBatch(batch, end, last=False, incomplete_bytes=0)
        return SegmentBatch(batch, end, self._orphan, reader.left)

    def remove(self) -> None:
        self.close()
        os.unlink(self.path)

    def mark_damaged(self) -> str:
        """Keep the file for inspection under a name that is not a segment's, and return its new path."""
        damaged_path = self.path + ".damaged"
        self.close()
        os.replace(self.path, damaged_path)
        return damaged_path

    def close(self) -> None:
        self._file.close()


class PendingCount(NamedTuple):
    entries: int
    bytes: int


class PendingCounter:
    """Counts the entries in the spool that are not in the ledger. It reads each entry once."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}  # path -> entries, position

    def count(self, paths: list[str], moved: dict[str, tuple[int, int]]) -> PendingCount:
        """`moved` gives, for each path, the entries and bytes that are in the ledger."""
        entries = size = 0
        counted = {}
        for path in paths:
            try:
                counted[path] = self._count(path)
            except FileNotFoundError:
                continue
            moved_entries, moved_bytes = moved.get(path, (0, 0))
            entries += max(0, counted[path][0] - moved_entries)
            size += max(0, counted[path][1] - moved_bytes)
        self._counted = counted
        return PendingCount(entries, size)

    def _count(self, path: str) -> tuple[int, int]:
        entries, position = self._counted.get(path, (0, 0))
        with open(path, "rb") as file:
            file.seek(position)
            for _, data in frames.Reader(file):
                entries += 1
                position += frames.HEAD.size + len(data)
        return entries, position
