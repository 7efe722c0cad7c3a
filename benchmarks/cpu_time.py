"""CPU time of processes, and what the cores of this machine are."""

from __future__ import annotations

import bisect
import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["CpuSamples", "cpu_s", "physical_cores"]

_INTERVAL_S = 0.02


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def physical_cores() -> int:
    """Return the number of cores, where hyper-threads of one core count once."""
    siblings = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({path.read_text() for path in siblings}) or os.cpu_count() or 1


class CpuSamples:
    """Samples the CPU time of a process while it runs, in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._times: list[int] = []
        self._used: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            while not self._ended.wait(_INTERVAL_S):
                used = cpu_s(self._pid)
                self._times.append(time.time_ns())
                self._used.append(used)

    def between(self, begin_ns: int, end_ns: int) -> float:
        """Return the CPU time between two times of the wall clock, at which there are samples nearby."""
        first = bisect.bisect_left(self._times, begin_ns)
        last = bisect.bisect_right(self._times, end_ns) - 1
        return self._used[last] - self._used[first] if last > first else 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
