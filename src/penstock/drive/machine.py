"""What the machine did to a worker while it ran: CPU time, and the time that it was kept from the CPU."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from penstock.records.worker_report import MachineFacts

__all__ = ["Machine"]


class Machine:
    """Reads the machine's counters now and again at `stop`."""

    def __init__(self) -> None:
        self._before = _counters()
        self._after = self._before

    def stop(self) -> None:
        self._after = _counters()

    def facts(self) -> MachineFacts:
        def difference(name: str) -> Any:
            first, last = self._before.get(name), self._after.get(name)
            return None if first is None or last is None else last - first

        return MachineFacts(
            wall_s=difference("wall"),
            cpu_s=difference("cpu"),
            run_delay_s=difference("run_delay"),
            throttled_s=difference("throttled"),
            steal_s=difference("steal"),
            switches=int(difference("switches")),
        )


def _counters() -> dict[str, float | None]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float | None] = {
        "wall": time.monotonic(),
        "cpu": usage.ru_utime + usage.ru_stime,
        "switches": usage.ru_nivcsw,
    }
    if sys.platform == "linux":
        found["run_delay"] = _field("/proc/self/schedstat", lambda text: int(text.split()[1]) / 1e9)
        found["throttled"] = _throttled()
        ticks = os.sysconf("SC_CLK_TCK")
        found["steal"] = _field("/proc/stat", lambda text: int(text.split("\n", 1)[0].split()[8]) / ticks)
    return found


def _throttled() -> float | None:
    """From the cgroup's cpu.stat: version 2 in µs, version 1 in ns."""

    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        value = _field(path, _throttled_in)
        if value is not None:
            return value
    return None


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split(None, 1) for line in text.splitlines() if " " in line)


def _throttled_in(text: str) -> float:
    pairs = _pairs(text)
    if "throttled_usec" in pairs:
        return int(pairs["throttled_usec"]) / 1e6
    return int(pairs["throttled_time"]) / 1e9


def _field(path: str, read: Any) -> float | None:
    try:
        with open(path) as f:
            return float(read(f.read()))
    except (OSError, ValueError, IndexError, KeyError):
        return None
