"""Counters in a memory-mapped file that all worker processes of one machine share.

    header     what this is, the sizes, who told that Redis is away, and a row for each attached process (pid, when it
               started)
    windows    records of 40 words: key (2), tick, sum, width, 3 unused, 32 counters
    slots      records of 68 words: key (2), last used, sum, then a 32-bit counter for each process row

Whoever reads or writes holds the file's lock (flock: 0.8 µs for the pair of calls, against 1.2 for fcntl). The kernel
releases it when its holder dies, whatever the holder was doing. A half-done change heals by itself: sums are computed
anew before a request is refused, whenever a window's tick changes, and whenever dead processes are cleared away.

The two tables are hash tables in which a record lies within 16 places of where its key points. When all of them are
taken, a window that has run out makes room, else the one that was used longest ago (`evicted` counts those); of slots
only an unoccupied record is replaced. So memory is bounded, whatever keys are thrown at it.
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
"""Processes that can be attached at once."""
_TOLD_AT: Final = 8
"""In words: pid and start time of whoever told that Redis is away; 0 when nobody did, or when it is back."""
_ROW_AT: Final = 64
"""In words: where the rows begin, each pid and start time."""
_WAYS: Final = 16
_WINDOW_WORDS: Final = 8 + TICKS
_SLOT_WORDS: Final = 4 + _ROWS // 2
RING: Final = 8
"""Offset of a window's counters."""


class SharedTable:
    """`create` in the main process before the workers start, `attach` in each worker. To remove the file is left to whoever
    made its folder; processes that are attached keep the table until they close it."""

    def __init__(self, path: str | None, fd: int, memory: mmap.mmap) -> None:
        self.path = path
        self._fd = fd
        self._memory = memory
        self.words = memoryview(memory).cast("Q")
        self._halves = memoryview(memory).cast("I")
        if self.words[0] != _MAGIC:
            raise ValueError(f"{path} is not a table of Penstock's limits, or one of another version")
        self._windows = int(self.words[1])
        self._slots = int(self.words[2])
        self._windows_at = _HEADER_BYTES // 8
        self._slots_at = self._windows_at + self._windows * _WINDOW_WORDS
        self._row = -1
        self.evicted = 0

    @classmethod
    def create(cls, name: str, *, windows: int = 32768, slots: int = 8192) -> SharedTable:
        """`name` is a path, or a bare name for a file in memory where the system has a place for such.

        32,768 windows are 10 MB and 8,192 slots 9 MB of address space; memory is taken page by page as records are used.
        """
        path = _place(name)
        # whatever is there belongs to a run that is over; a link would lead elsewhere
        if os.path.lexists(path):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, _bytes(windows, slots))
        os.pwrite(fd, struct.pack("3Q", _MAGIC, windows, slots), 0)
        return cls(path, fd, mmap.mmap(fd, 0))

    @classmethod
    def attach(cls, name: str) -> SharedTable:
        path = _place(name)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return cls(path, fd, mmap.mmap(fd, 0))
        except ValueError:
            os.close(fd)
            raise

    @classmethod
    def private(cls, *, windows: int = 16384, slots: int = 4096) -> SharedTable:
        """For one process alone: the same tables without a file and without a lock."""
        memory = mmap.mmap(-1, _bytes(windows, slots))
        memory[:24] = struct.pack("3Q", _MAGIC, windows, slots)
        return cls(None, -1, memory)

    def lock(self) -> None:
        if self._fd >= 0:
            flock(self._fd, LOCK_EX)

    def unlock(self) -> None:
        if self._fd >= 0:
            flock(self._fd, LOCK_UN)

    def close(self) -> None:
        """Gives back the slots of this process and its row."""
        if self._row >= 0:
            self.lock()
            self._clear_rows([self._row])
            self.unlock()
            self._row = -1
        self.words.release()
        self._halves.release()
        self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def claim_row(self) -> None:
        """Takes a row for this process, once those of dead processes are cleared."""
        if self._row >= 0:
            return
        self.lock()
        try:
            self.reap()
            words = self.words
            for row in range(_ROWS):
                at = _ROW_AT + 2 * row
                if not words[at]:
                    words[at + 1] = _started(os.getpid())
                    words[at] = os.getpid()
                    self._row = row
                    return
        finally:
            self.unlock()
        raise RuntimeError(f"more than {_ROWS} processes share the limits in {self.path}")

    def first_to_tell(self, *, away: bool) -> bool:
        """Whether no other process has told yet that Redis is away, or that it is back: one line is enough for all of
        them. What somebody told who has died meanwhile may be told again."""
        words = self.words
        self.lock()
        try:
            teller = words[_TOLD_AT]
            if not away:
                words[_TOLD_AT] = 0
                return teller != 0
            if teller and _started(teller) == words[_TOLD_AT + 1]:
                return False
            words[_TOLD_AT + 1] = _started(os.getpid())
            words[_TOLD_AT] = os.getpid()
            return True
        finally:
            self.unlock()

    # From here on the caller holds the lock.

    def reap(self) -> int:
        """Frees what processes held that are no more; how many such processes there were."""
        words = self.words
        dead = []
        for row in range(_ROWS):
            pid = words[_ROW_AT + 2 * row]
            if pid and pid != os.getpid() and _started(pid) != words[_ROW_AT + 2 * row + 1]:
                dead.append(row)
        if dead:
            self._clear_rows(dead)
        return len(dead)

    def _clear_rows(self, rows: list[int]) -> None:
        words, halves = self.words, self._halves
        for at in range(self._slots_at, self._slots_at + self._slots * _SLOT_WORDS, _SLOT_WORDS):
            if words[at]:
                first = 2 * (at + 4)
                for row in rows:
                    halves[first + row] = 0
                words[at + 3] = sum(halves[first : first + _ROWS])
        for row in rows:
            words[_ROW_AT + 2 * row] = 0
            words[_ROW_AT + 2 * row + 1] = 0

    def find_window(self, low: int, high: int, width: int, tick: int) -> int:
        """Where the record of this key is, made if there is none."""
        words = self.words
        spare, spare_used = -1, -1
        for way in range(_WAYS):
            at = self._windows_at + ((low + way) % self._windows) * _WINDOW_WORDS
            if words[at] == low and words[at + 1] == high:
                return at
            if not words[at] and not words[at + 1]:
                spare, spare_used = at, 0
                break
            used = words[at + 2] * words[at + 4]
            if spare < 0 or used < spare_used:
                spare, spare_used = at, used
        if spare_used and words[spare + 2] * words[spare + 4] + TICKS * words[spare + 4] > tick * width:
            self.evicted += 1
        words[spare] = words[spare + 1] = 0
        for offset in range(3, _WINDOW_WORDS):
            words[spare + offset] = 0
        words[spare + 2] = tick
        words[spare + 4] = width
        words[spare + 1] = high
        words[spare] = low
        return spare

    def advance(self, at: int, tick: int) -> int:
        """The record's tick, brought up to `tick`; later than it when another process was ahead of our clock."""
        words = self.words
        last = words[at + 2]
        if tick == last:
            return tick
        ring = at + RING
        if last < tick < last + TICKS:
            for passed in range(last + 1, tick + 1):
                words[ring + passed % TICKS] = 0
        elif last - TICKS < tick < last:
            return last
        else:
            # it all ran out, or the clock was set back by more than a window
            for slot in range(TICKS):
                words[ring + slot] = 0
        words[at + 2] = tick
        words[at + 3] = sum(words[ring : ring + TICKS])
        return tick

    def heal(self, at: int) -> bool:
        """Whether the sum was not that of the counters, which it now is."""
        total = sum(self.words[at + RING : at + RING + TICKS])
        wrong = total != self.words[at + 3]
        self.words[at + 3] = total
        return wrong

    def counts(self, at: int, tick: int) -> list[int]:
        """The window's counters, the oldest first."""
        ring = self.words[at + RING : at + RING + TICKS].tolist()
        first = (tick + 1) % TICKS
        return ring[first:] + ring[:first]

    def find_slots(self, low: int, high: int, now_us: int) -> int:
        """Where the record of this key is, made if there is none; -1 when there is no room for it."""
        words = self.words
        spare, spare_used = -1, -1
        for way in range(_WAYS):
            at = self._slots_at + ((low + way) % self._slots) * _SLOT_WORDS
            if words[at] == low and words[at + 1] == high:
                return at
            if not words[at] and not words[at + 1]:
                spare = at
                break
            if not words[at + 3] and (spare < 0 or words[at + 2] < spare_used):
                spare, spare_used = at, words[at + 2]
        if spare >= 0:
            words[spare] = words[spare + 1] = 0
            for offset in range(3, _SLOT_WORDS):
                words[spare + offset] = 0
            words[spare + 2] = now_us
            words[spare + 1] = high
            words[spare] = low
        return spare

    def occupy(self, at: int, change: int) -> None:
        """This process holds `change` more slots of the record, or fewer."""
        counter = 2 * (at + 4) + self._row
        held = self._halves[counter]
        change = max(change, -held)
        self._halves[counter] = held + change
        self.words[at + 3] = max(0, self.words[at + 3] + change)


def _bytes(windows: int, slots: int) -> int:
    return _HEADER_BYTES + 8 * (windows * _WINDOW_WORDS + slots * _SLOT_WORDS)


def _place(name: str) -> str:
    if os.sep in name:
        return name
    # the file is made with O_EXCL, or opened with O_NOFOLLOW, and is the user's alone
    memory = "/dev/shm"  # noqa: S108
    return os.path.join(memory if os.path.isdir(memory) else tempfile.gettempdir(), name)


def _started(pid: int) -> int:
    """When a process began, in the kernel's count, so that a pid that is used again is not taken for its first owner.

    Where the system does not tell: 1 for a process that is there. 0 when there is none.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # a zombie holds nothing any more
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
