"""A timer on the monotonic clock, accurate to some tens of microseconds.

The event loop's own timers have a resolution of a millisecond. On Linux the timer is a timerfd that the loop polls like a
socket (through `os` from Python 3.13, through ctypes before). Elsewhere it uses the loop's timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

CLOCK_MONOTONIC = 1
TFD_NONBLOCK = os.O_NONBLOCK
TFD_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
TFD_TIMER_ABSTIME = 1


class Timer:
    """Calls `callback()` once, at or after the time that was last passed to `at`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._fd = -1
        self._armed = False
        self._due = 0
        self._handle: asyncio.TimerHandle | None = None
        self._set: Callable[[int], None] = self._set_handle
        if sys.platform == "linux":
            self._fd, self._set = _timerfd()
            loop.add_reader(self._fd, self._ready)

    def at(self, monotonic_ns: int) -> None:
        """Set the timer, replacing any earlier time. A time in the past fires on the loop's next iteration."""
        if self._armed and monotonic_ns == self._due:
            return
        self._armed = True
        self._due = monotonic_ns
        self._set(monotonic_ns if monotonic_ns > 0 else 1)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ready(self) -> None:
        self._armed = False
        self._callback()
        # Setting a timerfd again also clears its readiness, so the read is only needed if the callback did not set it.
        if not self._armed and self._fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)

    def _set_handle(self, monotonic_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay = max(0, monotonic_ns - time.monotonic_ns()) / 1e9
        self._handle = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if time.monotonic_ns() < self._due:
            self._set_handle(self._due)  # call_later counts from the loop's cached time
            return
        self._armed = False
        self._callback()


def _timerfd() -> tuple[int, Callable[[int], None]]:
    """Return a timerfd and the function that sets it to an absolute time."""
    if sys.version_info >= (3, 13):
        fd = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

        def arm(ns: int) -> None:
            os.timerfd_settime_ns(fd, flags=os.TFD_TIMER_ABSTIME, initial=ns)

        return fd, arm

    import ctypes

    class Itimerspec(ctypes.Structure):
        _fields_ = (
            ("interval_s", ctypes.c_long),
            ("interval_ns", ctypes.c_long),
            ("value_s", ctypes.c_long),
            ("value_ns", ctypes.c_long),
        )

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    settime: Any = libc.timerfd_settime
    settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    spec: Any = Itimerspec()
    address = ctypes.addressof(spec)

    def arm_by_ctypes(ns: int) -> None:
        spec.value_s, spec.value_ns = divmod(ns, 1_000_000_000)
        settime(fd, TFD_TIMER_ABSTIME, address, None)

    return fd, arm_by_ctypes
