"""Counters in a memory-mapped file that all worker processes of one machine share, and that survives their restart.

    header     magic number, sizes, the process that reported the Redis outage, and for each row whether it is in use
    windows    records of 36 words: key (2), tick, width, 32 counters
    slots      records of 131 words: key (2), last used, then a 32-bit counter for each process row

A word has 64 bits. Every access holds the file's lock (flock takes 0.8 µs for lock and unlock, fcntl 1.2 µs). The kernel
releases the lock when its holder dies. Each change is one write to a counter, so a crash leaves nothing to repair.

A process that holds slots has a row: it counts them there, and owns the file `PATH.ROW` (`gateway.owned_file`). So the slots of
a process that has ended are known, also if it ran in another container.

Both tables are hash tables with linear probing over 16 records. If all 16 are taken, a new window replaces an expired one,
or else the least recently used one (`evicted` counts these); new slots replace only an unoccupied record. So memory is
bounded, whatever the number of keys.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from fcntl import LOCK_EX, LOCK_UN, flock
from typing import Final

from penstock.errors import UserError
from penstock.gateway.limits.windows import TICKS
from penstock.gateway.storage import owned_file

_MAGIC: Final = 0x334C4E5350  # "PSNL3"
_HEADER_BYTES: Final = 8192
_ROWS: Final = 256
"""Maximum number of attached processes."""
_USED_ROWS_OFFSET: Final = 3
"""Word offset of the number of rows that have been used."""
_REPORTER_OFFSET: Final = 8
"""Word offset of the row, plus 1, of the process that reported the Redis outage; 0 if there is none."""
_ROWS_OFFSET: Final = 64
"""Word offset of the flags that say which rows are in use."""
_PROBES: Final = 16
RING: Final = 4
"""Offset of the counters within a window record."""
_WINDOW_WORDS: Final = RING + TICKS
_SLOT_COUNTERS: Final = 3
"""Offset of the counters within a slot record."""
_SLOT_WORDS: Final = _SLOT_COUNTERS + _ROWS // 2


class SharedTable:
    """The shared counters. The main process calls `open` before the workers start, and each worker `attach`."""

    def __init__(self, path: str, fd: int, memory: mmap.mmap) -> None:
        self.path = path
        self._fd = fd
        self._memory = memory
        self.words = memoryview(memory).cast("Q")
        self._counters32 = memoryview(memory).cast("I")
        self._windows = int(self.words[1])
        self._slots = int(self.words[2])
        self._windows_offset = _HEADER_BYTES // 8
        self._slots_offset = self._windows_offset + self._windows * _WINDOW_WORDS
        self._row = self._row_fd = -1
        self.evicted = 0

    @classmethod
    def open(cls, path: str, *, windows: int = 32768, slots: int = 8192) -> SharedTable:
        """Open the file, or create it if it is missing or not usable. 32,768 windows take 9 MB and 8,192 slots 9 MB."""
        with contextlib.suppress(OSError, ValueError):
            return cls.attach(path)
        new = f"{path}.{os.getpid()}"
        try:
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # Writing to a page without disk space would kill the process, so the space is reserved now.
                _reserve(fd, _table_bytes(windows, slots))
                os.pwrite(fd, struct.pack("3Q", _MAGIC, windows, slots), 0)
                os.replace(new, path)
            finally:
                os.close(fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise UserError(f"The table of the limits {path} cannot be created ({error.strerror}).") from None
        return cls.attach(path)

    @classmethod
    def attach(cls, path: str) -> SharedTable:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            magic, windows, slots = struct.unpack("3Q", os.pread(fd, 24, 0).ljust(24, b"\0"))
            if magic != _MAGIC or os.fstat(fd).st_size != _table_bytes(windows, slots):
                raise ValueError(f"{path} is not a limits table of this version of Penstock")
            return cls(path, fd, mmap.mmap(fd, 0))
        except BaseException:
            os.close(fd)
            raise

    def lock(self) -> None:
        flock(self._fd, LOCK_EX)

    def unlock(self) -> None:
        flock(self._fd, LOCK_UN)

    def close(self) -> None:
        """Release the slots and the row of this process, and unmap the table."""
        if self._row >= 0:
            self.lock()
            self._clear_row(self._row)
            os.close(self._row_fd)
            self._row = -1
            self.unlock()
        self.words.release()
        self._counters32.release()
        self._memory.close()
        os.close(self._fd)

    def claim_row(self) -> None:
        """Take a row for this process, after clearing those of dead processes."""
        if self._row >= 0:
            return
        self.lock()
        try:
            self.reap()
            for row in range(_ROWS):
                if not self.words[_ROWS_OFFSET + row]:
                    self.words[_USED_ROWS_OFFSET] = max(self.words[_USED_ROWS_OFFSET], row + 1)
                    self.words[_ROWS_OFFSET + row] = 1
                    self._row, self._row_fd = row, self._own(row)
                    return
        finally:
            self.unlock()
        raise RuntimeError(f"more than {_ROWS} processes share the limits in {self.path}")

    def _own(self, row: int) -> int:
        """Return a descriptor that owns the row; -1 if another process owns it."""
        fd = os.open(f"{self.path}.{row}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if owned_file.is_orphan(fd):
            return fd
        os.close(fd)
        return -1

    def claim_outage_report(self, *, down: bool) -> bool:
        """Return True if this process should log that Redis is down, or that it is back.

        Only one process of the machine logs each change. A report by a process that has died since may be repeated.
        """
        self.claim_row()
        self.lock()
        try:
            self.reap()
            reporter = self.words[_REPORTER_OFFSET]
            self.words[_REPORTER_OFFSET] = self._row + 1 if down else 0
            return not reporter if down else bool(reporter)
        finally:
            self.unlock()

    # The caller of the methods below must hold the lock.

    def reap(self) -> int:
        """Release the slots and rows of dead processes, and return their number."""
        dead = 0
        for row in range(self.words[_USED_ROWS_OFFSET]):
            if self.words[_ROWS_OFFSET + row] and row != self._row and (fd := self._own(row)) >= 0:
                self._clear_row(row)
                os.close(fd)
                dead += 1
        return dead

    def _clear_row(self, row: int) -> None:
        words = self.words
        for offset in range(self._slots_offset, self._slots_offset + self._slots * _SLOT_WORDS, _SLOT_WORDS):
            if words[offset]:
                self._counters32[2 * (offset + _SLOT_COUNTERS) + row] = 0
        words[_ROWS_OFFSET + row] = 0
        if words[_REPORTER_OFFSET] == row + 1:
            words[_REPORTER_OFFSET] = 0

    def window(self, low: int, high: int, width: int, tick: int) -> tuple[int, int]:
        """Return the offset of the key's record, which is created if needed and advanced to `tick`, and its tick, which is
        later if another process's clock was ahead."""
        words = self.words
        offset, others = self._find(self._windows_offset, self._windows, _WINDOW_WORDS, low, high)
        if offset >= 0:
            return offset, self.advance(offset, tick)
        oldest = min(others, key=lambda other: words[other + 2] * words[other + 3])
        if words[oldest] and (words[oldest + 2] + TICKS) * words[oldest + 3] > tick * width:
            self.evicted += 1
        self._replace(oldest, low, high, tick, _WINDOW_WORDS)
        words[oldest + 3] = width
        return oldest, tick

    def advance(self, offset: int, tick: int) -> int:
        """Advance the record to `tick` and return its tick."""
        words = self.words
        last = words[offset + 2]
        if last - TICKS < tick <= last:
            return last
        # Otherwise every counter has expired, or the clock was set back by more than a window.
        first = last + 1 if last < tick < last + TICKS else tick - TICKS + 1
        for expired in range(first, tick + 1):
            words[offset + RING + expired % TICKS] = 0
        words[offset + 2] = tick
        return tick

    def counts(self, offset: int, tick: int) -> list[int]:
        """Return the window's counters, oldest first."""
        ring = self.words[offset + RING : offset + RING + TICKS].tolist()
        first = (tick + 1) % TICKS
        return ring[first:] + ring[:first]

    def slots(self, low: int, high: int, now_us: int) -> int:
        """Return the offset of the key's record, creating it if needed; -1 if there is no free record."""
        words = self.words
        offset, others = self._find(self._slots_offset, self._slots, _SLOT_WORDS, low, high)
        if offset >= 0:
            words[offset + 2] = now_us
            return offset
        unused = [other for other in others if not self.held(other)]
        offset = min(unused, key=lambda other: words[other + 2], default=-1)
        if offset >= 0:
            self._replace(offset, low, high, now_us, _SLOT_WORDS)
        return offset

    def held(self, offset: int) -> int:
        """Return the number of slots that all processes hold in the record."""
        first = 2 * (offset + _SLOT_COUNTERS)
        return sum(self._counters32[first : first + self.words[_USED_ROWS_OFFSET]])

    def occupy(self, offset: int, change: int) -> None:
        """Change the number of slots that this process holds in the record."""
        counter = 2 * (offset + _SLOT_COUNTERS) + self._row
        self._counters32[counter] = max(0, self._counters32[counter] + change)

    def _find(self, first: int, records: int, words: int, low: int, high: int) -> tuple[int, list[int]]:
        """Return the offset of the key's record, or -1, and those of the other records where it may be."""
        others: list[int] = []
        for probe in range(_PROBES):
            offset = first + ((low + probe) % records) * words
            if self.words[offset] == low and self.words[offset + 1] == high:
                return offset, others
            others.append(offset)
            if not self.words[offset]:
                break
        return -1, others

    def _replace(self, offset: int, low: int, high: int, used: int, words: int) -> None:
        """Write an empty record. Its key comes last, so a crash leaves a record without one."""
        for word in range(words):
            self.words[offset + word] = 0
        self.words[offset + 2] = used
        self.words[offset + 1] = high
        self.words[offset] = low


def _table_bytes(windows: int, slots: int) -> int:
    return _HEADER_BYTES + 8 * (windows * _WINDOW_WORDS + slots * _SLOT_WORDS)


def _reserve(fd: int, size: int) -> None:
    """Extend a file to a size, with space on the disk for all of it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:  # macOS
        os.pwrite(fd, bytes(size), 0)
