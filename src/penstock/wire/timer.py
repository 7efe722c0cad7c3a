"""A timer on the monotonic clock with microsecond resolution, for any asyncio loop.

libuv's own timers have a resolution of 1 ms. On Linux a timerfd wakes the loop instead: through `os` from Python 3.13
on, through ctypes before. Elsewhere the loop's `call_at` has to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import monotonic_ns

__all__ = ["Timer"]

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_ABSOLUTE = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Timer:
    """Calls `callback` once when the monotonic clock reaches the time last given to `at`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due: int | None = None
        self._fd = -1
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = _Itimerspec()
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            loop.add_reader(self._fd, self._fired)

    def at(self, due_ns: int) -> None:
        """Replaces any earlier time. A time in the past fires at once."""
        if due_ns == self._due:
            return
        self._due = due_ns
        if self._fd >= 0:
            value = self._spec.value
            value.sec, value.nsec = divmod(max(due_ns, 1), 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(self._spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, (due_ns - monotonic_ns()) / 1e9), self._fired)

    def _fired(self) -> None:
        if self._fd >= 0:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return
        self._due = None
        self._callback()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
