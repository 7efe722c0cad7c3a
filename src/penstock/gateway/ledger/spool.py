"""Where a worker leaves its entries: an append to a file of its own, in the kernel's hands before the call returns.

The folder holds segments, `entries-WORKER-TIME-PID.spool`, each a sequence of frames (`penstock.frames`) with one entry in
msgpack. A segment is its worker's while the worker lives (`gateway.owned_file`); `ledger.mover` takes the entries out and
removes a segment that has no owner any more. What is here outlives every process, though not the machine's power.

An append with its encoding takes 3 to 5 µs (ext4); nothing here waits for a database.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

import msgspec

from penstock import frames
from penstock.errors import UserError
from penstock.gateway import owned_file
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.repair import repaired

__all__ = ["ENTRY", "Spool", "open_folder", "segment_paths"]

ENTRY = 1
_NAME = re.compile(r"entries-[0-9]+-([0-9]{20})-[0-9]+\.spool")

SEGMENT_BYTES = 8 << 20
SEGMENT_S = 30.0
WAITING_BYTES = 64 << 20
"""What is kept in memory while the disk takes nothing: some 80,000 entries."""
RETRY_S = 0.1


def open_folder(folder: str) -> None:
    """Make the folder, and say so in a sentence when that, or writing in it, is not possible."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(owned_file.create(probe := os.path.join(folder, f"probe-{os.getpid()}")))
        os.unlink(probe)
        owned_file.sweep(folder)
    except OSError as error:
        raise UserError(
            f"The spool folder {folder} cannot be used ({error.strerror or error}); name another one in ledger.spool."
        ) from None


def segment_paths(folder: str) -> list[str]:
    """The oldest first. What somebody else put there is not ours to read, or to remove."""
    try:
        there = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [(name[1], name[0]) for name in map(_NAME.fullmatch, there) if name is not None]
    return [os.path.join(folder, name) for _, name in sorted(found)]


class Spool:
    """For one thread. `append` never raises for what is in an entry or for a disk that fails."""

    def __init__(self, folder: str, worker: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder = folder
        self._worker = worker
        self._encode = msgspec.msgpack.Encoder().encode
        self._file = -1
        self._size = 0
        self._opened = 0.0
        self._waiting = bytearray()
        self._next_try = 0.0
        self._torn = False
        """The file ends in the middle of a frame, and the rest of it is the first thing that waits."""
        self.appended = 0
        self.failures = 0
        """Writes that the disk refused; what they held waits in memory and is tried again."""
        self.dropped = 0
        """Entries lost: the disk took nothing for so long that memory ran out, or there was no sense in one."""

    def append(self, entry: Entry) -> None:
        try:
            data = self._encode(entry)
        except Exception:
            try:
                data = self._encode(repaired(entry))
            except Exception:
                self.dropped += 1
                return
        frame = frames.pack(ENTRY, data)
        self.appended += 1
        if self._waiting or self._file < 0 or self._size >= SEGMENT_BYTES:
            self._append_slowly(frame)
            return
        try:
            written = os.write(self._file, frame)
        except OSError:
            self.failures += 1
            self._waiting += frame
            return
        self._size += written
        if written < len(frame):
            self._torn = True
            self._waiting += frame[written:]

    def tick(self) -> None:
        """To be called about once a second: tries again what the disk refused, and lets go of an old segment."""
        if self._waiting:
            self._write_waiting()
        elif self._file >= 0 and time.monotonic() - self._opened >= SEGMENT_S:
            self._release()

    def close(self) -> None:
        if self._waiting:
            self._write_waiting()
        self._release()

    def _append_slowly(self, frame: bytes) -> None:
        if len(self._waiting) + len(frame) > WAITING_BYTES:
            self.dropped += 1
            return
        self._waiting += frame
        if time.monotonic() >= self._next_try:
            self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            if not self._torn and (self._file < 0 or self._size >= SEGMENT_BYTES):
                self._release()
                self._open()
            while self._waiting:
                written = os.write(self._file, self._waiting)
                del self._waiting[:written]
                self._size += written
                self._torn = True  # until all of it is there
            self._torn = False
        except OSError:
            self.failures += 1
            self._next_try = time.monotonic() + RETRY_S
            if not self._torn:
                self._release()  # a new file, perhaps of a folder made anew, may do better

    def _open(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        name = f"entries-{self._worker}-{time.time_ns():020d}-{os.getpid()}.spool"
        self._file = owned_file.create(os.path.join(self._folder, name))
        self._size = 0
        self._opened = time.monotonic()

    def _release(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1
