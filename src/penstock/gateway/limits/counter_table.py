"""Counters in a memory-mapped file that all worker processes of one machine share.

    header     magic number, sizes, the process that reported the Redis outage, and a row for each attached process
               (pid, start time)
    windows    records of 40 words: key (2), tick, sum, width, 3 unused, 32 counters
    slots      records of 132 words: key (2), last used, sum, then a 32-bit counter for each process row

A word has 64 bits. Every access holds the file's lock (flock takes 0.8 µs for lock and unlock, fcntl 1.2 µs). The kernel
releases the lock when its holder dies. A change that a crash interrupted is repaired: sums are recomputed before a request
is refused, when a window's tick changes, and when the rows of dead processes are cleared.

Both tables are hash tables with linear probing over 16 records. If all 16 are taken, a new window replaces an expired one,
or else the least recently used one (`evicted` counts these); new slots replace only an unoccupied record. So memory is
bounded, whatever the number of keys.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from fcntl import LOCK_EX, LOCK_UN, flock
from typing import Final

from penstock.gateway.limits.windows import TICKS

__all__ = ["SharedTable"]

_MAGIC: Final = 0x314C4E5350  # "PSNL1"
_HEADER_BYTES: Final = 8192
_ROWS: Final = 256
"""Maximum number of attached processes."""
_REPORTER_OFFSET: Final = 8
"""Word offset of the pid and start time of the process that reported the Redis outage; 0 if there is none."""
_ROWS_OFFSET: Final = 64
"""Word offset of the process rows, each a pid and a start time."""
_PROBES: Final = 16
_WINDOW_WORDS: Final = 8 + TICKS
_SLOT_WORDS: Final = 4 + _ROWS // 2
RING: Final = 8
"""Offset of the counters within a window record."""


class SharedTable:
    """The shared counters. Call `create` in the main process before the workers start, and `attach` in each worker.

    Removing the file is left to the creator of its folder; attached processes keep the table until they close it.
    """

    def __init__(self, path: str | None, fd: int, memory: mmap.mmap) -> None:
        self.path = path
        self._fd = fd
        self._memory = memory
        self.words = memoryview(memory).cast("Q")
        self._counters32 = memoryview(memory).cast("I")
        if self.words[0] != _MAGIC:
            raise ValueError(f"{path} is not a limits table of this version of Penstock")
        self._windows = int(self.words[1])
        self._slots = int(self.words[2])
        self._windows_offset = _HEADER_BYTES // 8
        self._slots_offset = self._windows_offset + self._windows * _WINDOW_WORDS
        self._row = -1
        self.evicted = 0

    @classmethod
    def create(cls, name: str, *, windows: int = 32768, slots: int = 8192) -> SharedTable:
        """Create the file. `name` is a path, or a bare name for a file in /dev/shm if that exists.

        32,768 windows take 10 MB and 8,192 slots 9 MB of address space; pages are allocated as records are used.
        """
        path = _table_path(name)
        # An existing file belongs to an earlier run; following a symbolic link would be unsafe.
        if os.path.lexists(path):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, _table_bytes(windows, slots))
        os.pwrite(fd, struct.pack("3Q", _MAGIC, windows, slots), 0)
        return cls(path, fd, mmap.mmap(fd, 0))

    @classmethod
    def attach(cls, name: str) -> SharedTable:
        path = _table_path(name)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return cls(path, fd, mmap.mmap(fd, 0))
        except ValueError:
            os.close(fd)
            raise

    @classmethod
    def private(cls, *, windows: int = 16384, slots: int = 4096) -> SharedTable:
        """Return a table for a single process, without a file or a lock."""
        memory = mmap.mmap(-1, _table_bytes(windows, slots))
        memory[:24] = struct.pack("3Q", _MAGIC, windows, slots)
        return cls(None, -1, memory)

    def lock(self) -> None:
        if self._fd >= 0:
            flock(self._fd, LOCK_EX)

    def unlock(self) -> None:
        if self._fd >= 0:
            flock(self._fd, LOCK_UN)

    def close(self) -> None:
        """Release the slots and the row of this process, and unmap the table."""
        if self._row >= 0:
            self.lock()
            self._clear_rows([self._row])
            self.unlock()
            self._row = -1
        self.words.release()
        self._counters32.release()
        self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def claim_row(self) -> None:
        """Take a row for this process, after clearing those of dead processes."""
        if self._row >= 0:
            return
        self.lock()
        try:
            self.reap()
            words = self.words
            for row in range(_ROWS):
                offset = _ROWS_OFFSET + 2 * row
                if not words[offset]:
                    words[offset + 1] = _start_time(os.getpid())
                    words[offset] = os.getpid()
                    self._row = row
                    return
        finally:
            self.unlock()
        raise RuntimeError(f"more than {_ROWS} processes share the limits in {self.path}")

    def claim_outage_report(self, *, down: bool) -> bool:
        """Return True if this process should log that Redis is down, or that it is back.

        Only one process of the machine logs each change. A report by a process that has died since may be repeated.
        """
        words = self.words
        self.lock()
        try:
            reporter = words[_REPORTER_OFFSET]
            if not down:
                words[_REPORTER_OFFSET] = 0
                return reporter != 0
            if reporter and _start_time(reporter) == words[_REPORTER_OFFSET + 1]:
                return False
            words[_REPORTER_OFFSET + 1] = _start_time(os.getpid())
            words[_REPORTER_OFFSET] = os.getpid()
            return True
        finally:
            self.unlock()

    # The caller of the methods below must hold the lock.

    def reap(self) -> int:
        """Release the slots and rows of dead processes, and return their number."""
        words = self.words
        dead = []
        for row in range(_ROWS):
            pid = words[_ROWS_OFFSET + 2 * row]
            if pid and pid != os.getpid() and _start_time(pid) != words[_ROWS_OFFSET + 2 * row + 1]:
                dead.append(row)
        if dead:
            self._clear_rows(dead)
        return len(dead)

    def _clear_rows(self, rows: list[int]) -> None:
        words, counters32 = self.words, self._counters32
        for offset in range(self._slots_offset, self._slots_offset + self._slots * _SLOT_WORDS, _SLOT_WORDS):
            if words[offset]:
                first = 2 * (offset + 4)
                for row in rows:
                    counters32[first + row] = 0
                words[offset + 3] = sum(counters32[first : first + _ROWS])
        for row in rows:
            words[_ROWS_OFFSET + 2 * row] = 0
            words[_ROWS_OFFSET + 2 * row + 1] = 0

    def find_window(self, low: int, high: int, width: int, tick: int) -> int:
        """Return the offset of the key's record, creating it if needed."""
        words = self.words
        candidate, candidate_used = -1, -1
        for probe in range(_PROBES):
            offset = self._windows_offset + ((low + probe) % self._windows) * _WINDOW_WORDS
            if words[offset] == low and words[offset + 1] == high:
                return offset
            if not words[offset] and not words[offset + 1]:
                candidate, candidate_used = offset, 0
                break
            used = words[offset + 2] * words[offset + 4]
            if candidate < 0 or used < candidate_used:
                candidate, candidate_used = offset, used
        if candidate_used and words[candidate + 2] * words[candidate + 4] + TICKS * words[candidate + 4] > tick * width:
            self.evicted += 1
        words[candidate] = words[candidate + 1] = 0
        for word in range(3, _WINDOW_WORDS):
            words[candidate + word] = 0
        words[candidate + 2] = tick
        words[candidate + 4] = width
        words[candidate + 1] = high
        words[candidate] = low
        return candidate

    def advance(self, offset: int, tick: int) -> int:
        """Advance the record to `tick` and return its tick, which is later if another process's clock was ahead."""
        words = self.words
        last = words[offset + 2]
        if tick == last:
            return tick
        ring = offset + RING
        if last < tick < last + TICKS:
            for skipped in range(last + 1, tick + 1):
                words[ring + skipped % TICKS] = 0
        elif last - TICKS < tick < last:
            return last
        else:
            # every counter has expired, or the clock was set back by more than a window
            for slot in range(TICKS):
                words[ring + slot] = 0
        words[offset + 2] = tick
        words[offset + 3] = sum(words[ring : ring + TICKS])
        return tick

    def repair_sum(self, offset: int) -> bool:
        """Recompute the sum from the counters, and return True if that changed it."""
        total = sum(self.words[offset + RING : offset + RING + TICKS])
        changed = total != self.words[offset + 3]
        self.words[offset + 3] = total
        return changed

    def counts(self, offset: int, tick: int) -> list[int]:
        """Return the window's counters, oldest first."""
        ring = self.words[offset + RING : offset + RING + TICKS].tolist()
        first = (tick + 1) % TICKS
        return ring[first:] + ring[:first]

    def find_slots(self, low: int, high: int, now_us: int) -> int:
        """Return the offset of the key's record, creating it if needed; -1 if there is no free record."""
        words = self.words
        candidate, candidate_used = -1, -1
        for probe in range(_PROBES):
            offset = self._slots_offset + ((low + probe) % self._slots) * _SLOT_WORDS
            if words[offset] == low and words[offset + 1] == high:
                return offset
            if not words[offset] and not words[offset + 1]:
                candidate = offset
                break
            if not words[offset + 3] and (candidate < 0 or words[offset + 2] < candidate_used):
                candidate, candidate_used = offset, words[offset + 2]
        if candidate >= 0:
            words[candidate] = words[candidate + 1] = 0
            for word in range(3, _SLOT_WORDS):
                words[candidate + word] = 0
            words[candidate + 2] = now_us
            words[candidate + 1] = high
            words[candidate] = low
        return candidate

    def occupy(self, offset: int, change: int) -> None:
        """Change the number of slots that this process holds in the record."""
        counter = 2 * (offset + 4) + self._row
        held = self._counters32[counter]
        change = max(change, -held)
        self._counters32[counter] = held + change
        self.words[offset + 3] = max(0, self.words[offset + 3] + change)


def _table_bytes(windows: int, slots: int) -> int:
    return _HEADER_BYTES + 8 * (windows * _WINDOW_WORDS + slots * _SLOT_WORDS)


def _table_path(name: str) -> str:
    if os.sep in name:
        return name
    # Safe in a shared folder: the file is created with O_EXCL and mode 0600, and opened with O_NOFOLLOW.
    memory = "/dev/shm"  # noqa: S108
    return os.path.join(memory if os.path.isdir(memory) else tempfile.gettempdir(), name)


def _start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks, which distinguishes it from later processes with the same pid.

    Returns 0 if there is no such process, and 1 if it exists but the system has no /proc.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # a zombie holds no slots
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return 0
    except OSError:
        return 0
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass
    return 1
