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
    """Reads the machine's counters now and again when it is asked what they say."""

    def __init__(self) -> None:
        self._before = _counters()

    def facts(self) -> MachineFacts:
        after = _counters()

        def difference(name: str) -> Any:
            first, last = self._before.get(name), after.get(name)
            return None if first is None or last is None else last - first

        run_delay, throttled = difference("run_delay"), difference("throttled")
        if run_delay and throttled:
            # Counted once for each core that the quota stopped, and while it stopped us we were ready to run.
            throttled = min(throttled, run_delay)
        return MachineFacts(
            wall_s=difference("wall"),
            cpu_s=difference("cpu"),
            run_delay_s=run_delay,
            throttled_s=throttled,
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
        found["steal"] = _field("/proc/stat", _stolen)
    return found


def _stolen(text: str) -> float:
    """Of each core, on average: the first line of /proc/stat adds up the lines of the cores behind it."""
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    return int(lines[0][8]) / (len(lines) - 1) / os.sysconf("SC_CLK_TCK")


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
    except (OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
        return None
